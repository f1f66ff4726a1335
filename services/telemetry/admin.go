package telemetry

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
)

// Handler is what the admin listener serves: /metrics, /healthz (the process
// runs), /readyz (it can serve), the gRPC services health and reflection, and
// with Config.Pprof the profiles at /debug/pprof/. Whoever reaches it may read
// all of that.
func (t *Telemetry) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n") // a probe that left needs no answer
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		text := "ok"
		if ok, reason := t.Ready(); !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
			text = reason
		}
		_, _ = io.WriteString(w, text+"\n") // as above
	})
	if t.metrics != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(t.metrics.registry, promhttp.HandlerOpts{
			ErrorLog: slog.NewLogLogger(t.log.Handler(), slog.LevelError), ErrorHandling: promhttp.ContinueOnError,
		}))
	}
	if t.cfg.Pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	server := grpc.NewServer()
	healthv1.RegisterHealthServer(server, &health{t: t})
	reflection.Register(server)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			server.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// serve serves the admin listener until ctx ends. Running requests are cut off:
// a scrape comes again, and a watch of health has no end.
func (t *Telemetry) serve(ctx context.Context, ln net.Listener) error {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // gRPC
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	server := &http.Server{
		Handler: t.Handler(), Protocols: protocols, ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:    slog.NewLogLogger(t.log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return base },
	}
	failed := make(chan error, 1) // one result, never blocks
	go func() { failed <- server.Serve(ln) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	err := server.Close()
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// health is grpc.health.v1 over what /readyz says. It knows one service, the
// process, by the empty name.
type health struct {
	healthv1.UnimplementedHealthServer

	t *Telemetry
}

// watchEvery is how often a watch looks.
const watchEvery = time.Second

// Check implements healthv1.HealthServer.
func (h *health) Check(_ context.Context, req *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	if req.GetService() != "" {
		return nil, status.Error(codes.NotFound, "the process is known by the empty name only")
	}
	return &healthv1.HealthCheckResponse{Status: h.status()}, nil
}

// List implements healthv1.HealthServer.
func (h *health) List(context.Context, *healthv1.HealthListRequest) (*healthv1.HealthListResponse, error) {
	return &healthv1.HealthListResponse{Statuses: map[string]*healthv1.HealthCheckResponse{"": {Status: h.status()}}}, nil
}

// Watch implements healthv1.HealthServer.
func (h *health) Watch(req *healthv1.HealthCheckRequest, stream healthv1.Health_WatchServer) error {
	if req.GetService() != "" {
		return stream.Send(&healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVICE_UNKNOWN})
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	told := healthv1.HealthCheckResponse_UNKNOWN
	for {
		if now := h.status(); now != told {
			if err := stream.Send(&healthv1.HealthCheckResponse{Status: now}); err != nil {
				return err
			}
			told = now
		}
		select {
		case <-tick.C:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

func (h *health) status() healthv1.HealthCheckResponse_ServingStatus {
	if ok, _ := h.t.Ready(); ok {
		return healthv1.HealthCheckResponse_SERVING
	}
	return healthv1.HealthCheckResponse_NOT_SERVING
}
