package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

const (
	defaultSlots = 64
	defaultGrace = 10 * time.Second
	// maxRequest is the largest request by default, with room for its envelope.
	maxRequest = 16<<20 + 1<<20

	// acceptDelay is how long the ACCEPT of a call with a complete request
	// waits for the result to travel in the same message. It is short beside
	// the accept budget of a client.
	acceptDelay = 5 * time.Millisecond
	// holdDelay is how long the first message of a stream waits for the end of
	// the call.
	holdDelay = time.Millisecond

	// drainNotice is how long a leaving instance answers BUSY before it
	// unsubscribes, so that calls on the way to it find another one.
	drainNotice = 300 * time.Millisecond
	// stuckWait is how long handlers may take to notice that their context has
	// ended.
	stuckWait = time.Second
	// callerCheck is how often a running call asks whether its caller is still
	// there. Nothing else would tell: a worker does not watch the edges.
	callerCheck = 5 * time.Second
)

// ServerConfig is the configuration of a Server. Pool is needed, the rest has
// defaults.
type ServerConfig struct {
	// Pool is the name of the group of equal instances, a subject token.
	Pool string
	// Version is the version of the software of the pool, for operators.
	Version string
	// ID is the id of this instance; a random one when empty.
	ID string
	// Slots is how many calls run at the same time; 0 means 64. Any further
	// call is refused with BUSY and goes to another instance.
	Slots int
	// Grace is how long running calls may take when Run is stopped; 0 means
	// 10 s.
	Grace time.Duration
	// MaxRecvMsgSize bounds a received message in bytes; 0 means 17 MiB.
	MaxRecvMsgSize int
	// Window is the flow control window granted to clients in bytes; 0 means
	// 256 KiB.
	Window int
	// Chunk is the largest part of a message in one frame in bytes; 0 means
	// 128 KiB. Half of what the server takes is never exceeded.
	Chunk int
	// EventBytes is how much payload of one resumable call is sent to its
	// events; 0 means 4 MiB. A message for which there is no room goes to the
	// caller alone, and is lost for whoever follows.
	EventBytes int
	// EventMemory is how many bytes of the events of its calls the instance keeps,
	// for a minute at most, for those who missed them; 0 means 8 MiB.
	EventMemory int
	// Admit decides about a call before it is accepted, by what the instance
	// alone can know: false refuses it with BUSY, so that another instance may
	// take it. head is the beginning of the request, valid during Admit only.
	// The context it returns is that of the handler and comes from ctx; leave,
	// unless nil, is called when the call has ended. limit names what admitted
	// or refused it, if that is a limit for its sort of calls: refused calls then
	// wait apart from those that any slot would do for, until a call that the
	// same limit had admitted ends; "" means none. Admit runs on the goroutine
	// that reads from the bus and must not block. Nil: every call is admitted.
	Admit func(ctx context.Context, method string, head []byte) (admitted context.Context, leave func(), limit string, ok bool)
	// UnaryInterceptors and StreamInterceptors wrap every handler, the first
	// outermost.
	UnaryInterceptors  []grpc.UnaryServerInterceptor
	StreamInterceptors []grpc.StreamServerInterceptor
	// StatsHandlers hear what happens to every call that has a handler, as
	// those of gRPC do; of connections they hear nothing.
	StatsHandlers []stats.Handler
	// Logger receives panics of handlers and faults of peers; nil discards
	// them.
	Logger *slog.Logger
}

// Server is the worker's side of the carrier: one instance of a pool. It is a
// grpc.ServiceRegistrar. Its methods may be called concurrently.
type Server struct {
	conn   *Conn
	cfg    ServerConfig
	logger *slog.Logger
	id     []byte
	prefix string // "mr.<tenant>.i.<instance>."
	replyP string // "mr.<tenant>.e.": where callers are
	bufs   buffers
	unary  grpc.UnaryServerInterceptor  // nil without interceptors
	stream grpc.StreamServerInterceptor // the same
	ready  chan struct{}                // closed by Run once the instance takes calls
	poke   chan struct{}                // capacity 1, never closed: a heartbeat is due; excess is dropped
	// work hands calls to idle goroutines: unbuffered, so a call for which none
	// waits gets a new one. Never closed; quit is, by Run.
	work chan *serverCall
	quit chan struct{}

	accepts, holds delayQueue[*serverCall]
	events         eventMemory
	staleOwn       staleness // of what is addressed to this instance; touched by its goroutine only
	lastTick       atomic.Int64
	stalled        atomic.Int64
	start          time.Time

	methods atomic.Pointer[map[string]*method]
	epoch   atomic.Uint64
	used    atomic.Int32
	demand  demand       // of those who take any instance
	wanted  atomic.Int64 // the latest end of all demands
	closing atomic.Bool  // it drains
	offers  atomic.Uint64
	busies  atomic.Uint64
	wg      sync.WaitGroup // one for each call

	mu        sync.Mutex
	calls     map[uint64]*serverCall
	draining  bool
	closed    bool // no call is taken any more, not even to be refused
	gone      bool // Run is about to return
	services  map[string]grpc.ServiceInfo
	regErr    error
	unsent    []*serverCall // ended without a connection, so at most Slots
	memory    callMemory
	fences    uint64 // questions about calls so far
	manifest  []byte
	manifests []servedManifest // newest last
}

var _ grpc.ServiceRegistrar = (*Server)(nil)

// method is a registered method of either kind.
type method struct {
	name   string
	impl   any
	unary  grpc.MethodHandler
	stream *grpc.StreamDesc
}

// NewServer returns a server on conn. It does nothing before Run.
func NewServer(conn *Conn, cfg ServerConfig) *Server {
	if cfg.ID == "" {
		cfg.ID = newID()
	}
	if cfg.Slots <= 0 {
		cfg.Slots = defaultSlots
	}
	if cfg.Grace <= 0 {
		cfg.Grace = defaultGrace
	}
	if cfg.MaxRecvMsgSize <= 0 {
		cfg.MaxRecvMsgSize = maxRequest
	}
	if cfg.Window <= 0 {
		cfg.Window = defaultWindow
	}
	if cfg.Chunk <= 0 {
		cfg.Chunk = defaultChunk
	}
	if cfg.EventBytes <= 0 {
		cfg.EventBytes = defaultEventBytes
	}
	if cfg.EventMemory <= 0 {
		cfg.EventMemory = defaultEventMemory
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		conn:     conn,
		cfg:      cfg,
		logger:   cfg.Logger.With("instance", cfg.ID, "pool", cfg.Pool),
		id:       []byte(cfg.ID),
		prefix:   conn.prefix + "i." + cfg.ID + ".",
		replyP:   conn.prefix + "e.",
		unary:    chainUnaryServer(cfg.UnaryInterceptors),
		stream:   chainStreamServer(cfg.StreamInterceptors),
		ready:    make(chan struct{}),
		poke:     make(chan struct{}, 1),
		work:     make(chan *serverCall),
		quit:     make(chan struct{}),
		calls:    make(map[uint64]*serverCall),
		services: make(map[string]grpc.ServiceInfo),
		events:   eventMemory{limit: cfg.EventMemory},
	}
	s.methods.Store(&map[string]*method{})
	s.demand.manifest = anyManifest
	s.accepts.init(acceptDelay, (*serverCall).flush)
	s.holds.init(holdDelay, (*serverCall).flush)
	s.epoch.Store(newEpoch())
	return s
}

func newEpoch() uint64 { return rand.Uint64() | 1 }

// Instance returns the id of this instance.
func (s *Server) Instance() string { return s.cfg.ID }

// Ready returns a channel that is closed when the instance takes calls.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// RegisterService adds a service; generated code calls it. A service that is
// already registered, or whose implementation has the wrong type, is not added
// and makes Run fail.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.services[desc.ServiceName]; ok {
		s.regErr = errors.Join(s.regErr, fmt.Errorf("bus: service %s is registered twice", desc.ServiceName))
		return
	}
	if desc.HandlerType != nil {
		want := reflect.TypeOf(desc.HandlerType).Elem()
		if got := reflect.TypeOf(impl); got == nil || !got.Implements(want) {
			s.regErr = errors.Join(s.regErr, fmt.Errorf("bus: service %s: %v does not implement %v", desc.ServiceName, got, want))
			return
		}
	}
	info := grpc.ServiceInfo{Metadata: desc.Metadata}
	next := maps.Clone(*s.methods.Load())
	for i := range desc.Methods {
		name := "/" + desc.ServiceName + "/" + desc.Methods[i].MethodName
		next[name] = &method{name: name, impl: impl, unary: desc.Methods[i].Handler}
		info.Methods = append(info.Methods, grpc.MethodInfo{Name: desc.Methods[i].MethodName})
	}
	for i := range desc.Streams {
		name := "/" + desc.ServiceName + "/" + desc.Streams[i].StreamName
		next[name] = &method{name: name, impl: impl, stream: &desc.Streams[i]}
		info.Methods = append(info.Methods, grpc.MethodInfo{
			Name:           desc.Streams[i].StreamName,
			IsClientStream: desc.Streams[i].ClientStreams,
			IsServerStream: desc.Streams[i].ServerStreams,
		})
	}
	s.services[desc.ServiceName] = info
	s.methods.Store(&next)
}

// GetServiceInfo returns the registered services, by name. The reflection
// service of gRPC asks for it.
func (s *Server) GetServiceInfo() map[string]grpc.ServiceInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.services)
}

// Run takes calls until ctx is done and then drains: new calls are refused for
// a moment while heartbeats say so, running ones have the grace period, and
// what is left ends with Unavailable and reason DRAINING. It returns when all
// handlers have returned, or with an error when one ignores the end of its
// context; callers that could not be told for want of a connection keep it until
// they are or the grace period is over. When the connection is closed for good, all
// calls end and Run returns an error. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	if !validToken(s.cfg.Pool) {
		return fmt.Errorf("bus: pool %q is not a subject token", s.cfg.Pool)
	}
	if !validToken(s.cfg.ID) {
		return fmt.Errorf("bus: instance %q is not a subject token", s.cfg.ID)
	}
	s.mu.Lock()
	err := s.regErr
	s.mu.Unlock()
	if err != nil {
		return err
	}
	r := &serverRun{s: s, hello: make(chan struct{}, 1), down: make(chan struct{}, 1), up: make(chan struct{}, 1)}
	defer r.close()
	if err := r.subscribe(ctx); err != nil {
		return err
	}
	close(s.ready)
	err = r.loop(ctx)
	return errors.Join(err, r.drain())
}

// serverRun is the state of Run, owned by its goroutine.
type serverRun struct {
	s    *Server
	subs []*nats.Subscription
	pool *nats.Subscription
	seq  uint64 // of heartbeats

	// Events from subscriptions and the connection. Capacity 1 and never
	// closed: a full channel holds the news already.
	hello, down, up chan struct{}
	remove          func()
}

func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (r *serverRun) subscribe(ctx context.Context) error {
	s := r.s
	nc := s.conn.nc
	s.start = time.Now()
	s.lastTick.Store(0)
	s.staleOwn.init(s.start)
	add := func(sub *nats.Subscription, err error) error {
		if err != nil {
			return fmt.Errorf("bus: subscribe: %w", err)
		}
		r.subs = append(r.subs, sub)
		if err := sub.SetPendingLimits(-1, s.conn.pending); err != nil {
			return fmt.Errorf("bus: %w", err)
		}
		return nil
	}
	// Frames of accepted calls first: the pool's subscription makes calls.
	if err := add(nc.Subscribe(s.prefix+"*", s.onMsg)); err != nil {
		return err
	}
	if err := add(nc.Subscribe(s.conn.prefix+"hello", func(*nats.Msg) { notify(r.hello) })); err != nil {
		return err
	}
	if err := add(nc.Subscribe(s.conn.wantSubject(s.cfg.Pool, "*"), s.onWant)); err != nil {
		return err
	}
	// Who may take a call is announced before: a watcher knows of every instance
	// that may have been given one, even if it did not live to say more.
	if err := r.serveManifest(); err != nil {
		return err
	}
	r.beat(busv1.Heartbeat_STATE_READY)
	pool, err := s.subscribePool(&s.demand)
	if err := add(pool, err); err != nil {
		return err
	}
	r.pool = pool
	if err := r.serveCalls(); err != nil {
		return err
	}
	r.remove = s.conn.listen(&connListener{
		down: func() { notify(r.down) },
		up:   func() { notify(r.up) },
		slow: func(sub *nats.Subscription) {
			if slices.Contains(r.subs, sub) || s.takesCalls(sub) {
				// Frames are missing: what runs cannot be trusted.
				notify(r.down)
				notify(r.up)
			}
		},
	})
	return flush(ctx, nc)
}

// loop announces the instance and looks after its calls until ctx is done, or
// returns an error when the connection is closed for good.
func (r *serverRun) loop(ctx context.Context) error {
	s := r.s
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	beat := time.NewTimer(0)
	defer beat.Stop()
	lastCheck := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.conn.dead:
			r.lose()
			return s.conn.deadError()
		case <-tick.C:
			now := time.Now()
			r.tick(ctx, now)
			if now.Sub(lastCheck) >= callerCheck {
				lastCheck = now
				r.checkCallers(now)
			}
		case <-beat.C:
			r.beat(busv1.Heartbeat_STATE_READY)
			beat.Reset(jitter(heartbeatEvery))
		case <-s.poke:
			if err := errors.Join(r.serveManifest(), r.serveCalls()); err != nil {
				s.logger.Error("manifest not served", "error", err)
			}
			beat.Reset(0)
		case <-r.hello:
			// Jitter, because the whole bus answers.
			beat.Reset(rand.N(helloJitter))
		case <-r.down:
			r.lose()
		case <-r.up:
			r.restored()
			beat.Reset(0)
		}
	}
}

// restored: the connection was lost and is back.
func (r *serverRun) restored() {
	r.lose() // the event of the loss may have been merged with an older one
	r.s.epoch.Store(newEpoch())
	r.sendUnsent()
}

// sendUnsent tells the callers whose calls ended without a connection.
func (r *serverRun) sendUnsent() {
	for _, call := range r.s.takeUnsent() {
		call.endLate()
	}
}

// lose gives up all calls: frames of theirs are missing and nobody would tell.
func (r *serverRun) lose() {
	for _, call := range r.s.snapshot() {
		call.abort(errConnLost)
	}
}

// close undoes subscribe.
func (r *serverRun) close() {
	if r.remove != nil {
		r.remove()
	}
	for _, sub := range r.subs {
		unsubscribe(sub)
	}
	r.s.mu.Lock()
	r.s.closed, r.s.gone = true, true
	manifests := r.s.manifests
	r.s.manifests = nil
	r.s.mu.Unlock()
	for _, m := range manifests {
		m.unsubscribe()
	}
	close(r.s.quit)
	r.s.accepts.close()
	r.s.holds.close()
}

func (s *Server) snapshot() []*serverCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := make([]*serverCall, 0, len(s.calls))
	for _, call := range s.calls {
		calls = append(calls, call)
	}
	return calls
}

// keepUnsent remembers a call whose caller is to be told when the connection
// is back.
func (s *Server) keepUnsent(call *serverCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gone {
		s.unsent = append(s.unsent, call)
	}
}

func (s *Server) takeUnsent() []*serverCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.unsent
	s.unsent = nil
	return calls
}

// checkCallers sends a frame without meaning to the caller of each old call,
// with the call as reply subject: when nobody listens there any more, the NATS
// server says so to the call and it is cancelled.
func (r *serverRun) checkCallers(now time.Time) {
	for _, call := range r.s.snapshot() {
		if now.Sub(call.began) >= callerCheck {
			call.askCaller()
		}
	}
}

// onMsg takes what is addressed to this instance. It runs on the goroutine of
// the subscription and never waits for a call.
func (s *Server) onMsg(m *nats.Msg) {
	now := time.Now()
	age := s.staleOwn.begin(now)
	s.onOwn(m, now, age)
	pending, _, _ := m.Sub.Pending() // see onPool
	s.staleOwn.end(time.Now, max(pending-1, 0))
}

func (s *Server) onOwn(m *nats.Msg, now time.Time, age time.Duration) {
	switch token := m.Subject[len(s.prefix):]; token {
	case tokenOpen:
		s.onOpen(m, now, age, &s.demand, true)
	case tokenPing:
		s.onPing(m)
	case tokenFence:
		s.onFence(m)
	case tokenAsk:
		s.onEvents(m)
	default:
		if manifest, ok := strings.CutPrefix(token, tokenOpenFor); ok {
			s.onOpen(m, now, age, s.demandFor(manifest), true)
			return
		}
		id, ok := parseCall(token)
		if !ok {
			return
		}
		s.mu.Lock()
		call := s.calls[id]
		s.mu.Unlock()
		if call == nil {
			return
		}
		if noResponders(m) {
			call.callerGone()
			return
		}
		var f frame
		if err := f.decode(m.Data); err != nil {
			call.abort(status.Error(codes.Internal, "malformed frame from the caller"))
			return
		}
		call.onFrame(&f)
	}
}

// onOpen starts a call or refuses it. age bounds how long the OPEN has waited
// in this process; d is for what its caller needs, nil when this instance does not
// have it; direct says that it is for this instance alone.
func (s *Server) onOpen(m *nats.Msg, now time.Time, age time.Duration, d *demand, direct bool) {
	caller, id, ok := s.callOf(m.Reply)
	if !ok {
		return
	}
	var f frame
	if err := f.decode(m.Data); err != nil || f.kind != kindOpen || f.seq != 1 {
		s.logger.Debug("malformed OPEN", "reply", m.Reply)
		return
	}
	if len(f.events) > 0 && !s.validEvents(string(f.events), m.Reply) {
		s.logger.Debug("malformed OPEN", "reply", m.Reply, "events", string(f.events))
		return
	}
	if d == nil {
		s.busy(m.Reply, nil) // it offered the slot when it had another manifest
		return
	}
	// A caller that has given up must not be served: it may have asked
	// another instance meanwhile.
	if limit := time.Duration(f.openBy) * time.Microsecond; limit > 0 && max(age, s.stalledFor(now)) > limit {
		s.busy(m.Reply, d)
		return
	}
	name := (*s.methods.Load())[string(f.method)]
	if name == nil {
		s.refuse(m.Reply, s.unknown(string(f.method)))
		return
	}
	timeout := min(time.Duration(min(f.timeout, uint64(maxTimeout.Microseconds())))*time.Microsecond, maxTimeout)
	if timeout <= 0 {
		s.refuse(m.Reply, status.New(codes.DeadlineExceeded, "the call came without time left"))
		return
	}

	if s.used.Load() >= int32(s.cfg.Slots) {
		s.busy(m.Reply, d) // before anything is made; decided under the lock below
		return
	}
	call := newServerCall(s, name, m.Reply, &f, now, timeout)
	if s.cfg.Admit != nil && !call.admit(f.data) {
		call.cancel()
		s.busyWith(m.Reply, d, call.limit)
		return
	}
	s.mu.Lock()
	if s.draining || s.closed || len(s.calls) >= s.cfg.Slots {
		s.mu.Unlock()
		call.cancel()
		call.leaveSlot()
		s.busy(m.Reply, d)
		return
	}
	call.callerN, call.callID = s.memory.caller(caller, now), id
	if s.memory.isFenced(call.key()) {
		// Its caller has been told that it will not begin here.
		s.mu.Unlock()
		call.cancel()
		call.leaveSlot()
		s.busy(m.Reply, d)
		return
	}
	for call.id == 0 || s.calls[call.id] != nil {
		// Not guessable, so that only the caller can speak for its call.
		call.id = rand.Uint64()
	}
	call.ctl = callSubject(s.prefix, call.id)
	s.calls[call.id] = call
	s.used.Store(int32(len(s.calls)))
	s.wg.Add(1)
	s.mu.Unlock()
	select {
	case s.work <- call:
	default:
		go s.serve(call)
	}
	if direct {
		s.offerMore()
	}
}

// serve runs a call and then others: a goroutine that has run one has the stack
// for the next. There are never more of them than calls ran at a time.
func (s *Server) serve(call *serverCall) {
	for {
		call.run()
		select {
		case call = <-s.work:
		case <-s.quit:
			return
		}
	}
}

// hold keeps Run waiting for one more goroutine of a call, and reports false
// when the call is over.
func (s *Server) hold(call *serverCall) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[call.id] != call {
		return false
	}
	s.wg.Add(1)
	return true
}

// done frees the slot of a call.
func (s *Server) done(call *serverCall) {
	call.leaveSlot()
	s.mu.Lock()
	delete(s.calls, call.id)
	s.memory.ran(call.key())
	s.used.Store(int32(len(s.calls)))
	s.mu.Unlock()
	if s.isWanted() {
		s.offer(call.limit)
	}
	s.wg.Done()
}

func (s *Server) load() uint32 { return uint32(s.used.Load()) }

func (s *Server) publish(subject, reply string, f *frame) error {
	buf := s.bufs.get()
	f.load = s.load()
	buf.b = f.appendTo(buf.b)
	err := s.conn.publish(subject, reply, buf.b)
	s.bufs.put(buf)
	return err
}

// busy refuses a call that another instance may take.
func (s *Server) busy(reply string, d *demand) { s.busyWith(reply, d, "") }

// busyWith is busy because of a limit for this sort of calls.
func (s *Server) busyWith(reply string, d *demand, limit string) {
	s.busies.Add(1)
	if d != nil {
		s.wantedNow(d, refusedFor) // whoever is refused everywhere waits
	}
	_ = s.publish(reply, "", &frame{kind: kindBusy, instance: s.id, limit: []byte(limit)})
}

// refuse ends a call that no instance can serve.
func (s *Server) refuse(reply string, st *status.Status) {
	_ = s.publish(reply, "", &frame{
		kind: kindEnd, flags: FlagAccepted, seq: 1, epoch: s.epoch.Load(),
		instance: s.id, status: encodeStatus(st),
	})
}

func (s *Server) unknown(name string) *status.Status {
	service, m, ok := cutMethod(name)
	if !ok {
		return status.Newf(codes.Unimplemented, "malformed method name: %q", name)
	}
	s.mu.Lock()
	_, known := s.services[service]
	s.mu.Unlock()
	if known {
		return status.Newf(codes.Unimplemented, "unknown method %v for service %v", m, service)
	}
	return status.Newf(codes.Unimplemented, "unknown service %v", service)
}

func (s *Server) onPing(m *nats.Msg) {
	if m.Reply == "" {
		return
	}
	s.mu.Lock()
	state := busv1.Heartbeat_STATE_READY
	if s.draining {
		state = busv1.Heartbeat_STATE_DRAINING
	}
	s.mu.Unlock()
	b, err := proto.Marshal(&busv1.ProbeResponse{Epoch: s.epoch.Load(), State: state})
	if err == nil {
		_ = s.conn.nc.Publish(m.Reply, b)
	}
}
