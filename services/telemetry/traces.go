package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// scope names what makes the spans.
const scope = "github.com/millrace/millrace"

// TracesConfig says how traces are exported. Everything else is read from the
// environment by the OpenTelemetry SDK: the endpoint, headers, certificates and
// timeouts of OTLP (OTEL_EXPORTER_OTLP_*), the sampler (OTEL_TRACES_SAMPLER and
// OTEL_TRACES_SAMPLER_ARG; parentbased_always_on is the default), the batches
// (OTEL_BSP_*), the limits of spans, the service name and OTEL_RESOURCE_ATTRIBUTES.
type TracesConfig struct {
	// GRPC exports over gRPC, and not as protobuf over HTTP.
	GRPC bool
	// Endpoint is the URL of the collector without a path; empty: what the environment says.
	Endpoint string
}

// TracesFromEnv reads from the standard variables whether and how traces are to
// be exported: they are when a collector is named, or OTLP is asked for, and
// OTEL_SDK_DISABLED and OTEL_TRACES_EXPORTER do not say no. Nil: they are not.
func TracesFromEnv(getenv func(string) string) (*TracesConfig, error) {
	first := func(keys ...string) string {
		for _, key := range keys {
			if v := getenv(key); v != "" {
				return v
			}
		}
		return ""
	}
	exporter := getenv("OTEL_TRACES_EXPORTER")
	endpoint := first("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
	switch {
	case getenv("OTEL_SDK_DISABLED") == "true", exporter == "none", exporter == "" && endpoint == "":
		return nil, nil
	case exporter != "" && exporter != "otlp":
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER is %q: otlp and none are known here", exporter)
	}
	switch protocol := first("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); protocol {
	case "", "http/protobuf":
		return &TracesConfig{}, nil
	case "grpc":
		return &TracesConfig{GRPC: true}, nil
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q: http/protobuf and grpc are known here", protocol)
	}
}

func newProvider(ctx context.Context, cfg Config, log *slog.Logger) (*sdktrace.TracerProvider, error) {
	var exporter sdktrace.SpanExporter
	var err error
	if cfg.Traces.GRPC {
		var options []otlptracegrpc.Option
		if cfg.Traces.Endpoint != "" {
			options = append(options, otlptracegrpc.WithEndpointURL(cfg.Traces.Endpoint))
		}
		exporter, err = otlptracegrpc.New(ctx, options...)
	} else {
		var options []otlptracehttp.Option
		if cfg.Traces.Endpoint != "" {
			options = append(options, otlptracehttp.WithEndpointURL(cfg.Traces.Endpoint+"/v1/traces"))
		}
		exporter, err = otlptracehttp.New(ctx, options...)
	}
	if err != nil {
		return nil, fmt.Errorf("exporter of traces: %w", err)
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", cfg.Service), attribute.String("service.version", cfg.Version)),
		resource.WithHost(), resource.WithProcessPID(), resource.WithTelemetrySDK(),
		resource.WithFromEnv(), // last, so that it wins
	)
	if err != nil {
		// Part of it is there, and the rest is not worth a process that does
		// not start.
		log.Warn("the description of this process for traces is not complete", "error", err)
	}
	return sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&reporting{SpanExporter: exporter, log: log}),
		sdktrace.WithResource(about),
	), nil
}

// reporting is an exporter whose failures go to our log: the SDK would tell its
// global handler, which writes to stderr in a format of its own.
type reporting struct {
	sdktrace.SpanExporter
	log *slog.Logger

	mu   sync.Mutex
	last time.Time
	lost int
}

// reportEvery is how often it is said that a collector is away.
const reportEvery = time.Minute

// ExportSpans exports, and never fails.
func (r *reporting) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := r.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost += len(spans)
	if now := time.Now(); r.last.IsZero() || now.Sub(r.last) >= reportEvery {
		r.log.Warn("traces could not be exported", "spans", r.lost, "error", err)
		r.last, r.lost = now, 0
	}
	return nil
}
