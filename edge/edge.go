// Package edge is the front of Millrace: it speaks MCP with clients over
// Streamable HTTP and stdio and passes their requests on to workers over the
// bus. It keeps nothing between requests, so any edge can serve any request.
//
// The path of a request: the door (http.go, stdio.go) admits it and decodes it
// once; the first era that claims it (edge/stateless, edge/legacy) reads what
// surrounds it; edge/methods runs its method through edge/backend, which finds
// the pool in edge/catalog and makes the call; edge/render writes the answer.
package edge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/stats"

	"github.com/millrace/millrace/edge/auth"
	"github.com/millrace/millrace/edge/backend"
	"github.com/millrace/millrace/edge/catalog"
	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jetstream"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/legacy"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/methods"
	"github.com/millrace/millrace/edge/notify"
	"github.com/millrace/millrace/edge/peer"
	"github.com/millrace/millrace/edge/render"
	"github.com/millrace/millrace/edge/seal"
	"github.com/millrace/millrace/edge/session"
	"github.com/millrace/millrace/edge/sse"
	"github.com/millrace/millrace/edge/stateless"
	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// Config configures an edge; the zero value works.
type Config struct {
	// Server is what clients are told about the server; the zero value is
	// Millrace without a version.
	Server mcp.Implementation
	// Hosts are the names clients may use in the Host header besides those of
	// the loopback interface; "*" allows every name.
	Hosts []string
	// Origins are the web origins whose pages may call the edge besides those
	// of the loopback interface, as "https://app.example"; "*" allows every
	// origin.
	Origins []string
	// Authenticator finds out who sends each HTTP request; nil: nobody does, and
	// every caller sees everything. Callers on stdio are not asked: who starts
	// a process owns it.
	Authenticator auth.Authenticator
	// RequiredScopes are those that every caller must have, whatever for.
	RequiredScopes []string
	// Limits bounds one message; the zero value means 16 MiB and 512 levels.
	Limits jsonrpc.Limits
	// CallTimeout and CallCeiling bound a call, see backend.Config; the ceiling is
	// an hour at most.
	CallTimeout, CallCeiling time.Duration
	// SlotWait is how long a call waits while all instances of its pool are busy;
	// 0 means 500 ms.
	SlotWait time.Duration
	// MaxResult is the most bytes of one result; 0 means 64 MiB.
	MaxResult int
	// MaxResultsInFlight is the most bytes of all results that are on their way
	// through the edge, from the worker until they are written to the client; 0
	// means 256 MiB. A result that finds no room waits at its worker. Those that
	// fit into the window of the bus are not counted. What the edge needs in
	// memory is twice as much: a result is there as it came and in one piece.
	MaxResultsInFlight int64
	// AskTimeout is how long a client may take to answer a request of a tool;
	// 0 means 10 min.
	AskTimeout time.Duration
	// TellTimeout is the longest that a client who changes a session waits until
	// the other edges have acted on that; 0 means 150 ms.
	TellTimeout time.Duration
	// Keepalive is the longest silence on an open stream; 0 means 15 s.
	Keepalive time.Duration
	// WriteTimeout is how long a client may leave bytes unread; 0 means 30 s.
	WriteTimeout time.Duration
	// Grace is how long running calls may go on after stdin has ended; 0 means
	// 10 s.
	Grace time.Duration
	// NamespaceConflicts: a tool or prompt whose name another pool keeps is offered
	// as POOL.NAME instead of not at all. All edges should agree.
	NamespaceConflicts bool
	// PageSize is the most items of one list page; 0 means 1,000.
	PageSize int
	// ListTTL is how long clients may keep a list; 0 means 5 s.
	ListTTL time.Duration
	// Keys authenticate session ids and cursors; the first one makes new
	// ones. Without any, a random key lives as long as the edge, and edges do
	// not accept each other's sessions.
	Keys []seal.Key
	// Store keeps what sessions change, for all edges that are to serve them,
	// and which answers that count once were used; nil keeps it in this edge.
	Store session.Store
	// Streams keeps what is sent on the streams of sessions, so that they can be
	// resumed on any edge; nil: they cannot. Its Run must be running.
	Streams *jetstream.Store
	// SessionMaxAge is the absolute age of a session; 0 means 24 h.
	SessionMaxAge time.Duration
	// SessionIdle is how long a session that has changed something may go unused;
	// 0 means 30 min.
	SessionIdle time.Duration
	// Observer hears of the messages of clients, Calls of the calls to workers,
	// and Lost of instances that vanished or left (as bus.WatcherConfig.OnLost);
	// nil: nobody does.
	Observer Observer
	Calls    backend.Observer
	Lost     func(bus.Member)
	// CallStats hear of each call over the bus, and PeerStats of those of other
	// edges, as handlers of gRPC do.
	CallStats, PeerStats []stats.Handler
	// Logger is the edge's log; nil discards.
	Logger *slog.Logger
}

// Edge serves clients. Run must be running while it serves.
type Edge struct {
	cfg     Config
	log     *slog.Logger
	conn    *bus.Conn
	client  *bus.Client
	watcher *bus.Watcher
	present presence
	catalog *catalog.Catalog
	peers   *peer.Peers
	eras    []exchange.Era
	modern  exchange.Era // the one of them without a handshake
	ring    *seal.Ring
	streams streams // of HTTP+SSE
	calls   *exchange.Calls
	posts   poster // nil: no other edges
	guard   guard
	auth    auth.Authenticator // nil: nobody is asked
	open    atomic.Int64       // SSE streams
	results *results
	// onCutOff is cutOff, made once.
	onCutOff func(error)

	bodies bufferPool
	// unready is done when nobody is to send requests here any more, draining
	// when streams that only wait are to end; leave and drain do that.
	unready  context.Context
	leave    context.CancelFunc
	draining context.Context
	drain    context.CancelFunc
	// stopping is done when Run is to return; stop does that. sessions are
	// waited for then.
	stopping context.Context
	stop     context.CancelFunc
	sessions *legacy.Era
	// restored says that the connection to the bus was lost and is back. The
	// connection sends; when it is full that is known already. Never closed.
	restored chan struct{}
}

// New returns an edge on a connection to the bus, which stays the caller's.
func New(conn *bus.Conn, cfg Config) (*Edge, error) {
	cfg.Server.Name = cmp.Or(cfg.Server.Name, "millrace")
	cfg.Server.Version = cmp.Or(cfg.Server.Version, "0.0.0")
	cfg.Limits.MaxBytes = cmp.Or(cfg.Limits.MaxBytes, 16<<20)
	cfg.MaxResult = cmp.Or(cfg.MaxResult, 64<<20)
	cfg.MaxResultsInFlight = cmp.Or(cfg.MaxResultsInFlight, 256<<20)
	cfg.Keepalive = cmp.Or(cfg.Keepalive, 15*time.Second)
	cfg.WriteTimeout = cmp.Or(cfg.WriteTimeout, 30*time.Second)
	cfg.Grace = cmp.Or(cfg.Grace, 10*time.Second)
	cfg.PageSize = cmp.Or(cfg.PageSize, 1000)
	cfg.ListTTL = cmp.Or(cfg.ListTTL, 5*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.CallCeiling > time.Hour {
		return nil, fmt.Errorf("edge: CallCeiling is %v, and no call may take more than an hour", cfg.CallCeiling)
	}
	server, err := json.Marshal(cfg.Server)
	if err != nil {
		return nil, fmt.Errorf("edge: server info: %w", err)
	}
	ring, err := seal.NewRing(cfg.Keys...)
	if err != nil {
		return nil, fmt.Errorf("edge: %w", err)
	}
	guard, err := newGuard(cfg.Hosts, cfg.Origins)
	if err != nil {
		return nil, fmt.Errorf("edge: %w", err)
	}
	authenticator, err := cfg.authenticator()
	if err != nil {
		return nil, fmt.Errorf("edge: %w", err)
	}
	e := &Edge{
		cfg:   cfg,
		log:   cfg.Logger,
		conn:  conn,
		guard: guard,
		auth:  authenticator,
		ring:  ring,
		calls: &exchange.Calls{},

		restored: make(chan struct{}, 1),
	}
	e.watcher = bus.NewWatcher(conn, bus.WatcherConfig{
		Logger: cfg.Logger,
		OnLost: e.lost,
		Heard:  func(instance string) uint64 { return e.client.Heard(instance) },
	})
	e.onCutOff = e.cutOff
	e.results = newResults(cfg.MaxResultsInFlight)
	e.client = bus.NewClient(conn, bus.ClientConfig{
		WaitBudget: cfg.SlotWait, MaxRecvMsgSize: cfg.MaxResult + envelope, Room: e.results.take,
		StatsHandlers: cfg.CallStats, Logger: cfg.Logger, Members: e.watcher,
		Restored: func() {
			select {
			case e.restored <- struct{}{}:
			default:
			}
		},
	})
	e.present.watcher = e.watcher
	e.unready, e.leave = context.WithCancel(context.Background())
	e.draining, e.drain = context.WithCancel(context.Background())
	e.stopping, e.stop = context.WithCancel(context.Background())
	e.catalog = catalog.New(e.watcher, catalog.Config{Namespace: cfg.NamespaceConflicts, Logger: cfg.Logger})
	runner := &methods.Runner{
		Backend: backend.New(e.catalog, e.client, backend.Config{
			CallTimeout: cfg.CallTimeout, CallCeiling: cfg.CallCeiling, Observer: cfg.Calls, Logger: cfg.Logger,
		}),
		Render: &render.Renderer{Server: server, PageSize: cfg.PageSize, ListTTL: cfg.ListTTL, Cursors: ring},
		Calls:  e.calls,
	}
	store := cfg.Store
	if store == nil {
		store = session.NewMemory()
	}
	changes := notify.NewHub(e.catalog, e.client)
	// The first era that claims a message serves it; legacy takes the rest.
	e.modern = &stateless.Era{Methods: runner, States: ring, Tickets: session.NewTickets(store), Changes: changes, Draining: e.draining}
	sessions := &legacy.Era{
		Methods: runner, Sessions: session.NewIssuer(ring, cfg.SessionMaxAge),
		Records: session.NewRecords(store, session.RecordsConfig{MaxAge: cfg.SessionMaxAge, Idle: cfg.SessionIdle, Logger: cfg.Logger}),
		Pending: &exchange.Pending{}, AskTimeout: cfg.AskTimeout,
		Changes: changes, Draining: e.draining, Stopping: e.stopping,
		Edge: e.client.ID(), Routes: ring, Logger: cfg.Logger,
	}
	if streams := cfg.Streams; streams != nil {
		sessions.Resumption = &legacy.Resumption{
			Calls: streams, Log: streams, Available: streams.Available, Bus: e.client, Alive: e.present.alive,
			SessionCalls: func(ctx context.Context, id string) (map[string]*millracev1.Continuation, error) {
				calls, err := streams.SessionCalls(ctx, id)
				byStream := make(map[string]*millracev1.Continuation, len(calls))
				for _, c := range calls {
					byStream[c.Stream] = c.Continuation
				}
				return byStream, err
			},
		}
	}
	e.sessions = sessions
	e.peers = peer.New(conn, e.client, e.watcher.Members, peer.Config{
		Deliver: sessions.Delivered, Post: e.takePost, Heard: sessions.Heard,
		TellTimeout: cfg.TellTimeout, StatsHandlers: cfg.PeerStats, Logger: cfg.Logger,
	})
	sessions.Peers, e.posts = e.peers, e.peers
	e.eras = []exchange.Era{
		e.modern,
		sessions,
	}
	return e, nil
}

// envelope is what a message of the bus may have around a result.
const envelope = 1 << 20

// Run keeps the edge's side of the bus: calls, membership, catalog, the other
// edges. It returns when the context has ended and all of them have stopped, or
// when one fails.
func (e *Edge) Run(ctx context.Context) error {
	defer e.sessions.Wait()
	g, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, e.stop)()
	defer e.stop()
	g.Go(func() error { return e.client.Run(ctx) })
	g.Go(func() error { return e.peers.Run(ctx) })
	g.Go(func() error { return e.watcher.Run(ctx) })
	g.Go(func() error { e.present.run(ctx); return nil })
	g.Go(func() error { return e.catalog.Run(ctx) })
	g.Go(func() error { e.makeUp(ctx); return nil })
	return g.Wait()
}

// makeUp makes up for what was missed while the bus was not there, until ctx ends.
func (e *Edge) makeUp(ctx context.Context) {
	for {
		select {
		case <-e.restored:
		case <-ctx.Done():
			return
		}
		// Not before everything is heard again. When the connection is lost
		// meanwhile, this comes again.
		err := e.sync(ctx)
		for err != nil && ctx.Err() == nil && e.conn.Connected() {
			err = e.sync(ctx)
		}
		if err == nil {
			e.sessions.Changes.Missed()
			e.sessions.NewsMissed()
		}
	}
}

func (e *Edge) sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return e.client.Sync(ctx)
}

// Catalog returns what workers announce, as this edge sees it.
func (e *Edge) Catalog() *catalog.Catalog { return e.catalog }

// Members returns the instances of workers this edge sees, sorted by pool and
// instance.
func (e *Edge) Members() []bus.Member {
	return e.members(func(m bus.Member) bool { return m.Pool != peer.Pool })
}

// Edges returns the edges this one sees, itself included, sorted by instance.
func (e *Edge) Edges() []bus.Member {
	return e.members(func(m bus.Member) bool { return m.Pool == peer.Pool })
}

func (e *Edge) members(wanted func(bus.Member) bool) (found []bus.Member) {
	for _, m := range e.watcher.Members() {
		if wanted(m) {
			found = append(found, m)
		}
	}
	return found
}

// lost acts on the loss of an instance.
func (e *Edge) lost(m bus.Member) {
	e.client.Lost(m.Instance, m.Epoch)
	e.present.lost(m.Instance)
	if m.Pool == peer.Pool {
		e.sessions.NewsMissed()
	}
	if e.cfg.Lost != nil {
		e.cfg.Lost(m)
	}
}

// Unready makes the edge unready and nothing else: load balancers that look at
// /readyz learn that they are to send no further requests, and those that come
// until they have are served, each on a connection that ends with its answer.
func (e *Edge) Unready() { e.leave() }

// Drain makes the edge unready, too, and ends streams that only wait for changes,
// whose clients come back: to another edge, if load balancers know by now. Requests
// that come are served, but for new connections of HTTP+SSE.
func (e *Edge) Drain() {
	e.leave()
	e.drain()
}

// Ready reports whether the edge can serve, and if not, why.
func (e *Edge) Ready() (ok bool, reason string) {
	if e.unready.Err() != nil {
		return false, "draining"
	}
	if !e.conn.Connected() {
		return false, "not connected to NATS"
	}
	select {
	case <-e.client.Ready():
	default:
		return false, "not subscribed yet"
	}
	select {
	case <-e.peers.Ready():
	default:
		return false, "not known to the other edges yet"
	}
	select {
	case <-e.catalog.Ready():
	default:
		return false, "still learning what workers there are"
	}
	return true, ""
}

// WaitReady returns when the edge can serve and each of the pools has an
// instance, or with an error that says what is missing when ctx ends.
func (e *Edge) WaitReady(ctx context.Context, pools ...string) error {
	for _, ready := range []<-chan struct{}{e.client.Ready(), e.peers.Ready(), e.catalog.Ready()} {
		select {
		case <-ready:
		case <-ctx.Done():
			_, reason := e.Ready()
			return fmt.Errorf("edge: not ready: %s: %w", reason, context.Cause(ctx))
		}
	}
	return e.catalog.WaitPools(ctx, pools...)
}

// claims finds the era of a message.
func (e *Edge) claims(req *exchange.Request) exchange.Era {
	for _, era := range e.eras {
		if era.Claims(req) {
			return era
		}
	}
	return nil
}

// serve passes a message to its era.
func (e *Edge) serve(ctx context.Context, req *exchange.Request, out exchange.Stream) exchange.Answer {
	if era := e.claims(req); era != nil {
		return e.serveBy(ctx, era, req, out)
	}
	return exchange.Refused(mcp.Modern(), http.StatusBadRequest, req.Message.ID, &jsonrpc.Error{
		Code: jsonrpc.CodeInvalidRequest, Message: "no supported protocol revision claims this message",
	})
}

// sseConfig is how streams are written.
func (e *Edge) sseConfig() sse.Config {
	return sse.Config{WriteTimeout: e.cfg.WriteTimeout, Keepalive: e.cfg.Keepalive, OnError: e.onCutOff}
}

// cutOff says in the log that a client was cut off because it does not read: the
// client can no longer be told. One that has left is no news.
func (e *Edge) cutOff(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		e.log.Warn("a client was cut off: it took nothing of its answer in time", "limit", "write-timeout", "after", e.cfg.WriteTimeout)
	}
}
