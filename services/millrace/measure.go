package main

import (
	"context"
	"net"
	"os"

	"github.com/millrace/millrace/edge"
	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/services/devcluster"
	"github.com/millrace/millrace/services/telemetry"
)

// measureFlags say what operators see of a process. Traces are configured by
// the standard variables of OpenTelemetry (OTEL_*), see docs/metrics.md.
type measureFlags struct {
	Admin string `env:"MILLRACE_ADMIN_LISTEN" placeholder:"ADDR" help:"Address of the admin listener: /metrics, /healthz, /readyz, gRPC health. Without it there is none. Whoever reaches it reads all of that."`
	Pprof bool   `env:"MILLRACE_PPROF" help:"Serve profiles at /debug/pprof/ of the admin listener."`
}

// measurement is what measures a process, and the listener where it shows. Nil
// measures nothing.
type measurement struct {
	*telemetry.Telemetry

	ln net.Listener // nil: there is none
}

// measure builds what measures a process; nil when nothing is to. Service is its
// name in traces.
func (f *measureFlags) measure(ctx context.Context, a *app, service string) (*measurement, error) {
	traces, err := telemetry.TracesFromEnv(os.Getenv)
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	m := &measurement{}
	if f.Admin != "" {
		if m.ln, err = listen(f.Admin); err != nil {
			return nil, err
		}
	}
	m.Telemetry, err = telemetry.New(ctx, telemetry.Config{
		Service: service, Version: version(), Metrics: f.Admin != "", Traces: traces, Pprof: f.Pprof, Logger: a.log,
	})
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// close closes the listener of a process that does not start.
func (m *measurement) close() {
	if m != nil && m.ln != nil {
		_ = m.ln.Close() // closed already if the process has run
	}
}

// newProcess is newProcess for a process that is measured: it is unready before
// anything else in it stops. What measures is to be added last. The process runs
// for long, so its garbage collector is set for that.
func (m *measurement) newProcess(ctx context.Context, a *app) *process {
	p := newProcess(ctx, a.log)
	p.stopping(m.Stopping)
	p.add(collector()...)
	return p
}

// actor is what measures as an actor, to be added last: the others are measured
// to their end.
func (m *measurement) actor(a *app) actor {
	return actor{"telemetry", func(ctx context.Context) error {
		if m.ln != nil {
			a.log.Info(devcluster.MessageAdmin, "url", "http://"+m.ln.Addr().String())
		}
		return m.Run(ctx, m.ln)
	}}
}

// configure has an edge tell what it does.
func (m *measurement) configure(cfg *edge.Config) {
	if m == nil {
		return
	}
	if o := m.Observer(); o != nil {
		cfg.Observer, cfg.Calls, cfg.Lost = o, m.CallObserver(), m.Lost
	}
	cfg.CallStats, cfg.PeerStats = m.CallStats(), m.ServerStats()
}

// edge has an edge looked at.
func (m *measurement) edge(e *edge.Edge, conn *bus.Conn) {
	if m == nil {
		return
	}
	m.AddEdge(e)
	m.AddConn("edge", conn)
	m.AddPart("edge", e.Ready)
}

// worker has a worker looked at, before it runs.
func (m *measurement) worker(name string, w workerRole, conn *bus.Conn) {
	if m == nil {
		return
	}
	m.AddWorker(w.Worker())
	m.AddConn("worker-"+name, conn)
	m.AddPart(name, func() (bool, string) {
		select {
		case <-w.Ready():
		default:
			return false, "does not take calls yet"
		}
		if !conn.Connected() {
			return false, "not connected to NATS"
		}
		return true, ""
	})
}
