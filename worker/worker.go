// Package worker is the SDK for authors of tools: it turns typed Go functions
// into MCP tools and resources and serves them on the bus.
//
//	w := worker.New(worker.Config{Pool: "greeter", Version: "1.0.0"})
//	worker.AddTool(w, worker.Tool{Name: "greet"}, greet)
//	err := w.Serve(ctx, "nats://127.0.0.1:4222")
//
// A call takes this way: a slot of the instance is taken, the middleware of
// [Worker.Use] is entered, the arguments are checked against the input schema,
// the handler runs, its result is checked against the output schema, and
// exactly one outcome is sent. The outcome is one of five kinds, and the author
// chooses by what the handler returns:
//
//   - a value: a result;
//   - an error: a result with isError set, whose text is the text of the
//     error, for the model to read and act on;
//   - a [*ProtocolError] (or [InvalidArguments], a [*MissingCapabilityError] or
//     a [*URLElicitationRequiredError]): a JSON-RPC error;
//   - [ErrNeedsInput], which [Call.Ask] returns: questions for the client. The
//     handler is run again, from its beginning, when they are answered;
//   - a panic, or a result that breaks its own schema or is no JSON: an
//     internal error. The client learns nothing of it, the log everything.
//
// Resources, prompts and completions are served in the same way, except that
// an error of the second kind is an internal error there: no model reads it.
//
// A worker keeps nothing between calls, nor between the rounds of one that
// asks: any instance of a pool may serve any of them, and instances with the
// same tools are interchangeable.
package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// Config describes a worker. Only Pool has no useful zero value.
type Config struct {
	// Pool is the name all instances of this worker share: 1 to 64 of the
	// characters A-Z, a-z, 0-9, "_" and "-", but not "_edge".
	Pool string
	// Version of the worker, shown to operators; a semantic version lets the
	// edges order the versions of a rolling update.
	Version string
	// Title is the name of the worker for people.
	Title string
	// Instructions tell a model how to use what the worker offers.
	Instructions string
	// Slots is how many calls run at the same time; a further call is refused
	// as busy and goes to another instance. Default 64.
	Slots int
	// Grace is how long running calls may go on after Run was told to stop.
	// Default 10 s.
	Grace time.Duration
	// MaxRequest is the largest request in bytes, arguments and all. Default 17
	// MiB, which is what an edge passes on unless it is set to more.
	MaxRequest int
	// Development shows a client what is otherwise logged only: that a result
	// does not fit the output schema of its tool, and where. Such a result is
	// never sent, in development or not.
	Development bool
	// Logger takes what only the operator may see, such as the stack of a
	// panic. Default: nothing is logged.
	Logger *slog.Logger
}

// Worker is a set of tools, resources and prompts that can be served. Its methods may
// be called from any goroutine.
type Worker struct {
	cfg Config
	log *slog.Logger
	// codec does not change; its caches are safe for concurrent use.
	codec *codec

	// changed wakes Run after a change of the registry. Its capacity is 1 and
	// a send that finds it full is dropped: the wake-up that waits there
	// covers the newer change. It is never closed.
	changed chan struct{}
	// ready is closed by Run, once.
	ready chan struct{}

	// limited: there is a tool with slots of its own.
	limited atomic.Bool

	mu         sync.RWMutex
	running    bool
	server     *bus.Server // nil unless Run is serving
	stats      []stats.Handler
	mistakes   []error
	middleware []func(Handler) Handler
	handler    Handler // the chain of middleware; nil without any
	tools      map[string]*tool
	problems   map[string]string // why a tool is not offered, by its name
	resources  map[string]*resource
	templates  map[string]*template
	prompts    map[string]*prompt
}

// New returns a worker that offers nothing yet.
func New(cfg Config) *Worker {
	cfg.Version = validText(cfg.Version) // in every heartbeat
	return &Worker{
		cfg:       cfg,
		log:       cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
		codec:     newCodec(),
		changed:   make(chan struct{}, 1),
		ready:     make(chan struct{}),
		tools:     map[string]*tool{},
		problems:  map[string]string{},
		resources: map[string]*resource{},
		templates: map[string]*template{},
		prompts:   map[string]*prompt{},
	}
}

// Ready returns a channel that is closed when the worker takes calls.
func (w *Worker) Ready() <-chan struct{} { return w.ready }

// Serve connects to the NATS server at url and runs the worker there. It waits
// for the server as long as ctx allows. See [Worker.Run].
func (w *Worker) Serve(ctx context.Context, url string) error {
	conn, err := bus.Connect(ctx, bus.ConnConfig{
		URL:    url,
		Name:   "millrace-worker/" + w.cfg.Pool,
		Logger: w.cfg.Logger,
	})
	if err != nil {
		return fmt.Errorf("worker: %w", err) // without url, which may hold a password
	}
	defer conn.Close()
	return w.Run(ctx, conn)
}

// Run serves the worker on conn until ctx is done. Then it takes no further
// call, lets the running ones end, cancels those that have not ended after
// Config.Grace, and returns nil. Everything Run started has stopped when it
// returns; conn stays open.
//
// Run returns at once with all mistakes made while the worker was put together
// (names, types without a schema, duplicates), joined. A tool whose schema
// cannot be used is no such mistake: it is left out, see [Worker.Problems]. A
// worker can be run once.
func (w *Worker) Run(ctx context.Context, conn *bus.Conn) error {
	if err := w.start(); err != nil {
		return err
	}
	server := bus.NewServer(conn, bus.ServerConfig{
		Pool:    w.cfg.Pool,
		Version: w.cfg.Version,
		Slots:   w.cfg.Slots,
		Grace:   w.cfg.Grace,
		Admit:   w.admit,
		Logger:  w.cfg.Logger,

		MaxRecvMsgSize: w.cfg.MaxRequest,
		StatsHandlers:  w.statsHandlers(),
	})
	millracev1.RegisterWorkerServiceServer(server, &service{w: w})
	if err := w.announce(server); err != nil {
		return err
	}

	w.setServer(server)
	defer w.setServer(nil)

	// Capacity 1: the server's goroutine never waits for the loop below.
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	ready := server.Ready()
	for {
		select {
		case <-ready:
			close(w.ready)
			ready = nil
		case <-w.changed:
			if err := w.announce(server); err != nil {
				w.log.Error("the manifest could not be announced", "pool", w.cfg.Pool, "error", err)
			}
		case err := <-ended:
			return err
		}
	}
}

// Register adds the worker's service to r, for servers other than the bus and
// for tests; the manifest is then the caller's matter. Like Run it returns the
// mistakes made while the worker was put together, and adds nothing if there
// are any.
func (w *Worker) Register(r grpc.ServiceRegistrar) error {
	w.mu.RLock()
	err := errors.Join(w.mistakes...)
	w.mu.RUnlock()
	if err != nil {
		return err
	}
	millracev1.RegisterWorkerServiceServer(r, &service{w: w})
	return nil
}

// Problem is a tool that is not offered.
type Problem struct {
	// Tool is its name.
	Tool string
	// Reason says what is wrong with its schema.
	Reason string
}

// Problems returns the tools that were added and are not offered because their
// schema cannot be used, sorted by name. The reasons are also logged, and
// operators see them beside the tools of all workers.
func (w *Worker) Problems() []Problem {
	w.mu.RLock()
	defer w.mu.RUnlock()
	list := make([]Problem, 0, len(w.problems))
	for _, name := range slices.Sorted(maps.Keys(w.problems)) {
		list = append(list, Problem{name, w.problems[name]})
	}
	return list
}

// poolName is what a pool may be called: it is part of NATS subjects.
const poolName = `^[A-Za-z0-9_-]{1,64}$`

// edgePool is the pool of the edges, which no worker may join: what edges say
// to each other would reach it.
const edgePool = "_edge"

// start marks the worker as running, or says why it cannot run.
func (w *Worker) start() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running {
		return errors.New("worker: Run was called before")
	}
	mistakes := w.mistakes
	if ok, _ := regexp.MatchString(poolName, w.cfg.Pool); !ok {
		mistakes = append([]error{fmt.Errorf(
			"worker: Config.Pool %q must be 1 to 64 of the characters A-Z, a-z, 0-9, _ and -", w.cfg.Pool)}, mistakes...)
	}
	if w.cfg.Pool == edgePool {
		mistakes = append([]error{fmt.Errorf("worker: Config.Pool %q is the name of the edges", edgePool)}, mistakes...)
	}
	if err := errors.Join(mistakes...); err != nil {
		return err
	}
	w.running = true
	return nil
}

func (w *Worker) setServer(server *bus.Server) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.server = server
}

// announce hands the manifest to the server.
func (w *Worker) announce(server *bus.Server) error {
	manifest, err := w.manifest()
	if err != nil {
		return err
	}
	server.SetManifest(manifest)
	return nil
}

// register runs add under the lock. What add finds wrong is kept for Run, or
// logged if the worker runs already; an addition that is right is announced.
func (w *Worker) register(add func() error) {
	w.mu.Lock()
	err := add()
	running := w.running
	if err != nil && !running {
		w.mistakes = append(w.mistakes, err)
	}
	w.mu.Unlock()
	if err == nil {
		w.wake()
	} else if running {
		w.log.Error("a registration was refused", "pool", w.cfg.Pool, "error", err)
	}
}

// remove takes name out of one of the maps of w and announces that.
func remove[T any](w *Worker, from map[string]T, name string) {
	w.mu.Lock()
	_, there := from[name]
	delete(from, name)
	w.mu.Unlock()
	if there {
		w.wake()
	}
}

func (w *Worker) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}
