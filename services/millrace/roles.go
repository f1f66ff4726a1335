package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/edge"
	"github.com/millrace/millrace/edge/auth"
	"github.com/millrace/millrace/edge/jetstream"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
	"github.com/millrace/millrace/services/devcluster"
	"github.com/millrace/millrace/services/everything"
	"github.com/millrace/millrace/services/glossary"
	"github.com/millrace/millrace/worker"
)

const (
	// connectTimeout is how long a role waits for NATS before it gives up.
	connectTimeout = 10 * time.Second
	// readyTimeout is how long a process waits for its workers, some of which
	// read their files first.
	readyTimeout = 2 * time.Minute
)

// roles builds the actors of a process. Each command names the roles it wants;
// all commands use the same constructors. What a constructor returns is bound
// and connected already; the actor only has to run.
type roles struct {
	app *app
	// conn is how the roles of this process reach NATS; its Name is set for
	// each role.
	conn bus.ConnConfig
	// store is what the edges share; nil: nothing.
	store *storage
	// measured is what measures the process; nil: nothing does.
	measured *measurement
}

// connect opens a role's own connection to NATS.
func (r *roles) connect(ctx context.Context, name string) (*bus.Conn, error) {
	cfg := r.conn
	cfg.Name, cfg.Logger = name, r.app.log
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return bus.Connect(ctx, cfg)
}

// natsFlags say which NATS a role uses.
type natsFlags struct {
	NATS string `required:"" name:"nats" env:"MILLRACE_NATS" placeholder:"URL" help:"NATS server, several separated by commas; user and password may be in it."`
	natsAccess
}

func (f *natsFlags) conn() bus.ConnConfig { return f.access(f.NATS) }

// natsAccess says as whom to connect to NATS, and whom to trust.
type natsAccess struct {
	NATSCreds string `name:"nats-creds" env:"MILLRACE_NATS_CREDS" type:"existingfile" placeholder:"FILE" help:"Credentials for NATS, as nsc writes them."`
	NATSCA    string `name:"nats-ca" env:"MILLRACE_NATS_CA" type:"existingfile" placeholder:"FILE" help:"Certificates of the authorities that NATS servers are trusted by, instead of those of the system; the connection must be TLS then."`
	NATSCert  string `name:"nats-cert" env:"MILLRACE_NATS_CERT" type:"existingfile" placeholder:"FILE" and:"nats-cert" help:"Certificate to show to NATS, with --nats-key."`
	NATSKey   string `name:"nats-key" env:"MILLRACE_NATS_KEY" type:"existingfile" placeholder:"FILE" and:"nats-cert" help:"Key of that certificate."`
}

func (f *natsAccess) access(url string) bus.ConnConfig {
	return bus.ConnConfig{URL: url, CredsFile: f.NATSCreds, CAFile: f.NATSCA, CertFile: f.NATSCert, KeyFile: f.NATSKey}
}

// nats starts a NATS server inside this process, for the roles that are built
// after it. Its actor is to be added last.
func (r *roles) nats(cfg localnats.Config) (actor, error) {
	cfg.Logger = r.app.log
	server, err := localnats.Start(cfg)
	if err != nil {
		return actor{}, fmt.Errorf("embedded NATS: %w", err)
	}
	if url := server.ClientURL(); url != "" {
		r.app.log.Info("NATS takes workers and edges of other processes", "url", url)
	}
	r.conn = bus.ConnConfig{InProcess: server}
	return actor{"nats", server.Run}, nil
}

// edgeFlags configure an edge.
type edgeFlags struct {
	Listen         string   `default:"127.0.0.1:8080" env:"MILLRACE_LISTEN" help:"Address of the MCP endpoint."`
	AllowedHosts   []string `env:"MILLRACE_ALLOWED_HOSTS" placeholder:"NAME" help:"Names clients may use besides localhost; * allows all."`
	AllowedOrigins []string `env:"MILLRACE_ALLOWED_ORIGINS" placeholder:"ORIGIN" help:"Web origins that may call besides those on localhost; * allows all."`
	namespaceFlag
	limitFlags
	SessionMaxAge  time.Duration `default:"24h" env:"MILLRACE_SESSION_MAX_AGE" help:"Age at which every session ends."`
	SessionIdle    time.Duration `default:"30m" env:"MILLRACE_SESSION_IDLE" help:"How long a session that has changed something may go unused."`
	SessionKeyFile []string      `env:"MILLRACE_SESSION_KEY_FILE" type:"existingfile" help:"File with a key for sessions, at least 16 bytes; repeat for several: the first one signs, all are accepted. Without it the edges share one that they keep in JetStream."`
	Tokens         string        `env:"MILLRACE_TOKENS" type:"existingfile" help:"File of the bearer tokens that are let in, read again when it changes; see docs/authentication.md. Without it everybody is."`
	RequireScope   []string      `env:"MILLRACE_REQUIRE_SCOPE" placeholder:"SCOPE" help:"Scope that every token must have; repeat for several."`
}

// namespaceFlag is that of every command with an edge.
type namespaceFlag struct {
	NamespaceConflicts bool `env:"MILLRACE_NAMESPACE_CONFLICTS" help:"Offer a tool or prompt whose name another pool keeps as POOL.NAME instead of hiding it; the same for all edges."`
}

// config is what the flags say, and the actors that an edge needs for it: they
// are to be stopped after the edge's door.
func (f *edgeFlags) config(a *app) (edge.Config, []actor, error) {
	cfg := edge.Config{
		Server:  mcp.Implementation{Name: "millrace", Title: "Millrace", Version: version()},
		Hosts:   f.AllowedHosts,
		Origins: f.AllowedOrigins,
		Logger:  a.log,

		NamespaceConflicts: f.NamespaceConflicts,
		SessionMaxAge:      f.SessionMaxAge,
		SessionIdle:        f.SessionIdle,

		RequiredScopes: f.RequireScope,
	}
	f.apply(&cfg)
	keys, err := readKeys(f.SessionKeyFile)
	if err != nil {
		return cfg, nil, err
	}
	cfg.Keys = keys
	if f.Tokens == "" {
		return cfg, nil, nil
	}
	tokens, err := auth.OpenTokens(auth.TokensConfig{File: f.Tokens, Logger: a.log})
	if err != nil {
		return cfg, nil, err
	}
	cfg.Authenticator = tokens
	return cfg, []actor{{"tokens", tokens.Run}}, nil
}

// edge builds an edge without a listener.
func (r *roles) edge(ctx context.Context, cfg edge.Config) (*edge.Edge, actor, error) {
	conn, err := r.connect(ctx, "millrace-edge")
	if err != nil {
		return nil, actor{}, fmt.Errorf("edge: %w", err)
	}
	r.measured.configure(&cfg)
	var store *jetstream.Store
	if r.store != nil {
		if store, err = r.store.open(ctx, conn, &cfg, r.app.log); err != nil {
			conn.Close()
			return nil, actor{}, fmt.Errorf("edge: %w", err)
		}
	}
	e, err := edge.New(conn, cfg)
	if err != nil {
		conn.Close()
		return nil, actor{}, err
	}
	r.measured.edge(e, conn)
	return e, actor{"edge", func(ctx context.Context) error {
		defer conn.Close()
		return runEdge(ctx, e, store)
	}}, nil
}

// http serves an edge on a listener, and says so once the edge is ready and
// has the pools. Its actor is to be added before the edge's, so that it drains
// first. It serves on for delay when it is told to stop: the edge is unready then,
// and who sends requests here has to learn that before nobody takes them.
func (r *roles) http(ln net.Listener, e *edge.Edge, pools []string, delay time.Duration) actor {
	// HTTP/2 without TLS is how proxies and meshes like to speak to what stands
	// behind them; a client has to begin with it, nothing is negotiated.
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler:           e.Handler(),
		Protocols:         protocols,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		// No write timeout: streams live as long as their calls, and each
		// write has a deadline of its own.
	}
	return actor{"http", func(ctx context.Context) error {
		r.store.await(ctx)
		failed := make(chan error, 1) // one result, never blocks
		go func() { failed <- server.Serve(ln) }()
		wait, cancel := context.WithTimeout(ctx, readyTimeout)
		defer cancel()
		if err := e.WaitReady(wait, pools...); err != nil && ctx.Err() == nil {
			return errors.Join(err, server.Close(), <-failed)
		}
		if ctx.Err() == nil {
			r.app.log.Info(devcluster.MessageEdge, "url", "http://"+ln.Addr().String()+"/mcp")
		}
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
		}
		e.Unready()
		drain, stop := context.WithTimeout(context.WithoutCancel(ctx), drainGrace-time.Second)
		defer stop()
		select {
		case err := <-failed:
			return err
		case <-time.After(delay):
		}
		e.Drain()
		err := server.Shutdown(drain)
		if err != nil {
			r.app.log.Warn("calls cut off: they did not end within the grace period")
			err = server.Close()
		}
		<-failed
		return err
	}}
}

// workerFlags configure the workers of a process.
type workerFlags struct {
	Dir string `type:"existingdir" env:"MILLRACE_GLOSSARY_DIR" help:"Folder of the glossary's Markdown files; without it the built-in terms are served."`
	// development is a flag of its own in each command: its default differs.
	development bool
}

// workers are the workers this binary has, by the name of their pool.
//
//nolint:gochecknoglobals // a table
var workers = map[string]func(*app, *workerFlags) (workerRole, error){
	"everything": func(a *app, f *workerFlags) (workerRole, error) {
		return everything.New(everything.Config{Version: version(), Development: f.development, Logger: a.log}), nil
	},
	"glossary": func(a *app, f *workerFlags) (workerRole, error) {
		return glossary.New(glossary.Config{Dir: f.Dir, Version: version(), Development: f.development, Logger: a.log})
	},
}

// workerRole is a worker as the binary runs it.
type workerRole interface {
	Run(ctx context.Context, conn *bus.Conn) error
	Ready() <-chan struct{}
	Worker() *worker.Worker
}

// worker builds a worker by the name of its pool.
func (r *roles) worker(ctx context.Context, name string, flags *workerFlags) (actor, error) {
	if err := knownWorkers([]string{name}); err != nil {
		return actor{}, err
	}
	w, err := workers[name](r.app, flags)
	if err != nil {
		return actor{}, fmt.Errorf("%s: %w", name, err)
	}
	conn, err := r.connect(ctx, "millrace-worker-"+name)
	if err != nil {
		return actor{}, fmt.Errorf("%s: %w", name, err)
	}
	r.measured.worker(name, w, conn)
	return actor{name, func(ctx context.Context) error {
		defer conn.Close()
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error {
			select {
			case <-w.Ready():
				r.app.log.Info(devcluster.MessageWorker, "pool", name)
			case <-ctx.Done():
			}
			return nil
		})
		g.Go(func() error { return w.Run(ctx, conn) })
		return g.Wait()
	}}, nil
}

// knownWorkers fails for the first name that is none of a worker.
func knownWorkers(names []string) error {
	for _, name := range names {
		if workers[name] == nil {
			return &exitError{exitUsage, fmt.Errorf("there is no worker %q: this binary has %s", name, strings.Join(workerNames(), ", "))}
		}
	}
	return nil
}

// embedded builds the roles of a whole server in one process: NATS, an edge
// and workers. The actors are in drain order and start with the edge's.
func (r *roles) embedded(ctx context.Context, server localnats.Config, cfg edge.Config, names []string, flags *workerFlags) (*edge.Edge, []actor, error) {
	nats, err := r.nats(server)
	if err != nil {
		return nil, nil, err
	}
	e, edgeActor, err := r.edge(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	actors := []actor{edgeActor}
	for _, name := range names {
		w, err := r.worker(ctx, name, flags)
		if err != nil {
			return nil, nil, err
		}
		actors = append(actors, w)
	}
	return e, append(actors, nats), nil
}

func workerNames() []string {
	names := make([]string, 0, len(workers))
	for name := range workers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// release is the version of a released binary; its build sets it.
//
//nolint:gochecknoglobals // the linker writes to variables only
var release string

// version is what the release, the module proxy or the build says this binary
// is.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "0.1.0-dev"
	}
	return strings.TrimPrefix(info.Main.Version, "v")
}
