package bus

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

const (
	// defaultTimeout is the deadline of a call whose context has none, and
	// maxTimeout the longest one: work that takes longer is a task.
	defaultTimeout = 5 * time.Minute
	maxTimeout     = time.Hour

	// maxResult is the largest result by default, with room for its envelope.
	maxResult = 64<<20 + 1<<20

	// clientSweep is how often calls without an answer are looked for. One
	// timer for all calls instead of one for each.
	clientSweep = 250 * time.Millisecond

	// noResponderRetry is how long a pool that should exist may stay without
	// responders: news of a subscription takes a moment to cross a cluster.
	noResponderRetry = 50 * time.Millisecond

	// pushesAtOnce is how often an OPEN is repeated after BUSY without delay.
	pushesAtOnce = 2
	minBackoff   = 2 * time.Millisecond
	maxBackoff   = 64 * time.Millisecond
)

// ClientConfig is the configuration of a Client. The zero value works.
type ClientConfig struct {
	// ID is the address of the client on the bus; a random one when empty.
	// Two clients must not share one.
	ID string
	// WaitBudget is how long a call waits for a free slot while every
	// instance it asks is busy, but at most a quarter of its time; 0 means
	// 500 ms, negative: refuse after the first tries.
	WaitBudget time.Duration
	// AcceptBudget is how long an instance may take to accept a call; 0 means
	// 1 s. An instance that sees the call later refuses it, and the client
	// gives up a quarter later.
	AcceptBudget time.Duration
	// MaxRecvMsgSize bounds a received message in bytes; 0 means 65 MiB.
	MaxRecvMsgSize int
	// Room is asked before more of a message is received than fits into the window:
	// size is what the rest of it takes in memory, in bytes, and ctx that of the
	// call. It may wait; the message waits at the worker meanwhile. Its error
	// ends the call. The goroutine that receives the message calls it. Nil: there
	// is always room.
	Room func(ctx context.Context, size int) error
	// Window is the flow control window granted to workers in bytes; 0 means
	// 256 KiB.
	Window int
	// Chunk is the largest part of a message in one frame in bytes; 0 means
	// 128 KiB. Half of what the server takes is never exceeded.
	Chunk int
	// Known reports whether a pool is believed to exist. A call to a known
	// pool without responders is repeated for 50 ms, any other fails at once.
	// It is called from the goroutine that reads frames and must not block.
	// Nil: the pools are known that Members knows.
	Known func(pool string) bool
	// Members tells who may have been given a call. With it the client finds
	// out what became of a call that nobody accepted in time, and offers it
	// again if it did not start; without it such a call may have started. Nil:
	// nobody knows.
	Members Membership
	// UnaryInterceptors and StreamInterceptors wrap every call, the first
	// outermost. They get no *grpc.ClientConn, as there is none.
	UnaryInterceptors  []grpc.UnaryClientInterceptor
	StreamInterceptors []grpc.StreamClientInterceptor
	// StatsHandlers hear what happens to every call, as those of gRPC do; of
	// connections they hear nothing.
	StatsHandlers []stats.Handler
	// Restored is called when the connection was lost and is back: what others
	// broadcast or announced between was lost. The connection's own goroutine
	// calls it, while Run runs, and it must not block. Nil: nobody is told.
	Restored func()
	// Logger receives faults of peers; nil discards them.
	Logger *slog.Logger
}

// Client is the caller's side of the carrier: any number of concurrent calls
// over one subscription. Its methods may be called concurrently.
type Client struct {
	conn   *Conn
	cfg    ClientConfig
	logger *slog.Logger
	prefix string // "mr.<tenant>.e.<id>."
	ctlPre string // "mr.<tenant>.i."
	bufs   buffers
	unary  grpc.UnaryClientInterceptor  // nil without interceptors
	stream grpc.StreamClientInterceptor // the same
	ready  chan struct{}                // closed by Run once calls are possible
	open   atomic.Bool                  // ready was closed: spares calls the channel
	over   chan struct{}                // closed by Run when it returns
	ids    atomic.Uint64
	sub    atomic.Pointer[nats.Subscription]
	signs  lifeSigns
	// fencing holds a value for each call that is being asked about: it bounds
	// them. Capacity maxFences, never closed.
	fencing chan struct{}
	queues  sync.Map // of *poolQueue, by poolKey
	pools   sync.Map // of *clientConn, by poolKey
	// offers carries free slots. The connection sends, dropping when it is full;
	// never closed.
	offers chan *nats.Msg
	wg     sync.WaitGroup // of the goroutines that ask
	// still is how long this process has stood still so far.
	still atomic.Int64

	mu      sync.Mutex
	calls   map[uint64]*clientCall
	events  map[string]*clientCall // the resumable ones of calls, by the token of their events
	left    map[string]time.Time   // the deadlines of calls that go on without us, by both their tokens
	stopped bool
	marks   []mark
	marked  uint64       // the number of the last one
	cancels []lateCancel // of calls that ended without a connection
}

// NewClient returns a client on conn. It does nothing before Run.
func NewClient(conn *Conn, cfg ClientConfig) *Client {
	if cfg.ID == "" {
		cfg.ID = newID()
	}
	if cfg.WaitBudget == 0 {
		cfg.WaitBudget = 500 * time.Millisecond
	}
	if cfg.AcceptBudget <= 0 {
		cfg.AcceptBudget = time.Second
	}
	if cfg.MaxRecvMsgSize <= 0 {
		cfg.MaxRecvMsgSize = maxResult
	}
	if cfg.Window <= 0 {
		cfg.Window = defaultWindow
	}
	if cfg.Chunk <= 0 {
		cfg.Chunk = defaultChunk
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Client{
		fencing: make(chan struct{}, maxFences),
		offers:  make(chan *nats.Msg, offerQueue),
		conn:    conn,
		cfg:     cfg,
		logger:  cfg.Logger,
		prefix:  conn.prefix + "e." + cfg.ID + ".",
		ctlPre:  conn.prefix + "i.",
		unary:   chainUnaryClient(cfg.UnaryInterceptors),
		stream:  chainStreamClient(cfg.StreamInterceptors),
		ready:   make(chan struct{}),
		over:    make(chan struct{}),
		calls:   make(map[uint64]*clientCall),
		events:  make(map[string]*clientCall),
		left:    make(map[string]time.Time),
	}
	// Ids are not used twice, even by a client that is started again under the
	// same name; and what an earlier one left on the way belongs to no call.
	c.ids.Store(rand.Uint64N(1<<runBits) << runShift)
	return c
}

// ID returns the address of the client on the bus.
func (c *Client) ID() string { return c.cfg.ID }

// Ready returns a channel that is closed when calls are possible. Calls made
// earlier wait for it, and end with Unavailable when Run returns before.
func (c *Client) Ready() <-chan struct{} { return c.ready }

// Run receives frames until ctx is done or, with an error, the connection is
// closed for good; then the calls that still run end with Unavailable, and the
// resumable ones go on at their instances. It may be called once.
func (c *Client) Run(ctx context.Context) error {
	defer c.stop()
	if !validToken(c.cfg.ID) {
		return fmt.Errorf("bus: client id %q is not a subject token", c.cfg.ID)
	}
	sub, err := c.conn.nc.Subscribe(c.prefix+">", c.onMsg)
	if err != nil {
		return fmt.Errorf("bus: subscribe: %w", err)
	}
	defer unsubscribe(sub)
	if err := sub.SetPendingLimits(-1, c.conn.pending); err != nil {
		return fmt.Errorf("bus: %w", err)
	}
	c.sub.Store(sub)
	remove := c.conn.listen(&connListener{
		down: func() { c.failAll("the connection to the bus was lost") },
		up: func() {
			c.sendCancels()
			if c.cfg.Restored != nil {
				c.cfg.Restored()
			}
		},
		slow: func(s *nats.Subscription) {
			if s == sub {
				c.failAll("frames were dropped because they were not read in time")
			}
		},
	})
	defer remove()
	if err := flush(ctx, c.conn.nc); err != nil {
		return err
	}
	quit := make(chan struct{})
	defer close(quit)
	c.wg.Go(func() { c.takeOffers(quit) })
	c.open.Store(true)
	close(c.ready)

	tick := time.NewTicker(clientSweep)
	defer tick.Stop()
	awake := clock{last: time.Now()}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.conn.dead:
			return c.conn.deadError()
		case <-tick.C:
			now := time.Now()
			awake.sweep(now)
			c.still.Store(int64(awake.lost))
			c.sweep(now)
		}
	}
}

// stop ends what still runs.
func (c *Client) stop() {
	c.mu.Lock()
	c.stopped = true
	calls := c.snapshotLocked()
	c.mu.Unlock()
	close(c.over)
	for _, call := range calls {
		call.stop(status.Error(codes.Unavailable, "the client has stopped"), call.resumable())
	}
	c.wg.Wait()
}

func (c *Client) snapshotLocked() []*clientCall {
	calls := make([]*clientCall, 0, len(c.calls))
	for _, call := range c.calls {
		calls = append(calls, call)
	}
	return calls
}

func (c *Client) snapshot() []*clientCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snapshotLocked()
}

// failAll ends every call that has something on the way: frames may be missing
// and nothing would tell. A call that was not accepted yet may have started.
func (c *Client) failAll(why string) {
	for _, call := range c.snapshot() {
		reason, leave := ReasonNotAccepted, false // perhaps nothing goes on
		switch accepted, pushed := call.isOut(); {
		case accepted:
			reason, leave = ReasonFrameLost, call.resumable()
		case !pushed:
			continue // it waits, and nothing of it is on the way
		}
		call.stop(failure(codes.Unavailable, reason, why), leave)
	}
}

// lateCancel is a CANCEL that found no connection.
type lateCancel struct {
	ctl   string
	flags uint32
}

// cancelRemote tells a worker that the caller of a call has left, with
// FlagDetach that it cannot read on. Without a connection that has to wait;
// meanwhile no call can be accepted, so what waits is bounded by the calls that
// ran when the connection was lost.
func (c *Client) cancelRemote(ctl string, flags uint32) {
	if c.send(ctl, "", &frame{kind: kindCancel, flags: flags}) == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		c.cancels = append(c.cancels, lateCancel{ctl, flags})
	}
}

// sendCancels makes up for the cancels that found no connection. Otherwise the
// handlers would go on until they notice by themselves.
func (c *Client) sendCancels() {
	c.mu.Lock()
	cancels := c.cancels
	c.cancels = nil
	c.mu.Unlock()
	for _, late := range cancels {
		_ = c.send(late.ctl, "", &frame{kind: kindCancel, flags: late.flags}) // lost again: the worker will ask
	}
}

// sweep looks for the calls that no instance has answered in time, and ends
// those whose deadline is ours.
func (c *Client) sweep(now time.Time) {
	c.forget(now)
	limit := c.cfg.AcceptBudget + c.cfg.AcceptBudget/4
	var silent []silentCall
	for _, call := range c.snapshot() {
		if call.overdue(now) {
			call.fail(status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error()))
			continue
		}
		if waited, push := call.unansweredFor(now); waited > limit {
			silent = append(silent, silentCall{call, push})
		}
	}
	if len(silent) == 0 {
		return
	}
	// The answer may be here and not read yet.
	c.whenRead(func() {
		for _, s := range silent {
			s.call.notAccepted(s.push)
		}
	})
}

// silentCall is a call whose push, which is told by its number, was not
// answered.
type silentCall struct {
	call *clientCall
	push int
}

// Lost fails all calls that the instance accepted in the epoch (any epoch for
// 0) with Unavailable and reason WORKER_LOST. What the instance sent before is
// delivered first, so Lost works on the calls a moment later.
func (c *Client) Lost(instance string, epoch uint64) {
	c.whenRead(func() {
		for _, call := range c.snapshot() {
			if call.acceptedBy(instance, epoch) {
				call.fail(failure(codes.Unavailable, ReasonWorkerLost, "the instance that ran the call is gone"))
			}
		}
	})
}

// onMsg dispatches a message to its call. It runs on the goroutine of the
// subscription and never waits for a call.
func (c *Client) onMsg(m *nats.Msg) {
	token := m.Subject[len(c.prefix):]
	if token == tokenMark {
		if len(m.Data) == 8 {
			c.reached(binary.BigEndian.Uint64(m.Data))
		}
		return
	}
	var call *clientCall
	events := strings.HasPrefix(token, tokenEvents)
	if events {
		c.mu.Lock()
		call = c.events[token]
		c.mu.Unlock()
	} else {
		id, ok := parseCall(token)
		if !ok {
			return
		}
		c.mu.Lock()
		call = c.calls[id]
		c.mu.Unlock()
	}
	if noResponders(m) {
		if call != nil {
			call.onNoResponders()
		}
		return
	}
	var f frame
	if err := f.decode(m.Data); err != nil {
		if call != nil {
			call.fail(status.Error(codes.Internal, "malformed frame from the worker"))
		}
		return
	}
	f.event = events
	if events && (f.kind == kindEnd && f.seq == 0 || f.flags&FlagAgain != 0) {
		return // our own, see EndEvents, or for those who follow
	}
	if call == nil || !call.onFrame(&f) {
		c.onOrphan(m, &f, call)
	}
}

// onOrphan answers a frame of a call that is over here: its handler need not
// go on. So a call that was cancelled before its ACCEPT came is cancelled when
// the ACCEPT comes. A call that was left to go on without us is told that
// instead. call is nil when nothing is known of it any more.
func (c *Client) onOrphan(m *nats.Msg, f *frame, call *clientCall) {
	if f.kind == kindEnd || f.kind == kindBusy || f.kind == kindFenced && len(f.ctl) == 0 {
		return
	}
	var flags uint32
	if call != nil && call.isLeft() || call == nil && c.isLeft(m.Subject[len(c.prefix):]) {
		flags = FlagDetach
	}
	ctl := string(f.ctl)
	if ctl == "" {
		ctl = m.Reply
	}
	if c.validCtl(ctl) {
		_ = c.send(ctl, "", &frame{kind: kindCancel, flags: flags}) // the next frame gets another
	}
}

// validCtl reports whether a worker may name s as the subject of its call:
// else one could make the client publish anywhere.
func (c *Client) validCtl(s string) bool {
	rest, ok := strings.CutPrefix(s, c.ctlPre)
	if !ok {
		return false
	}
	instance, call, ok := strings.Cut(rest, ".")
	if !ok || !validToken(instance) {
		return false
	}
	_, ok = parseCall(call)
	return ok
}

// send publishes a frame to a worker.
func (c *Client) send(subject, reply string, f *frame) error {
	buf := c.bufs.get()
	buf.b = f.appendTo(buf.b)
	err := c.conn.publish(subject, reply, buf.b)
	c.bufs.put(buf)
	return err
}

// chunk is the payload of one frame now.
func (c *Client) chunk() int { return chunkSize(c.conn.nc, c.cfg.Chunk) }

// known reports whether a pool is believed to exist.
func (c *Client) known(pool string) bool {
	if c.cfg.Known != nil {
		return c.cfg.Known(pool)
	}
	if c.cfg.Members == nil {
		return false
	}
	return slices.ContainsFunc(c.cfg.Members.Members(), func(m Member) bool { return m.Pool == pool })
}

// poolKey is a pool, and the manifest of the instances that may get calls;
// anyManifest: all.
type poolKey struct{ pool, manifest string }

// Pool returns a connection whose calls go to any instance of a pool. It may be
// used concurrently and needs no closing.
func (c *Client) Pool(pool string) grpc.ClientConnInterface {
	return c.pool(pool, anyManifest)
}

// Offering returns a connection whose calls go to those instances of a pool that
// offer what the manifest says, or did until it was replaced: while a pool has
// instances of several versions, not all of them may be able to take a call.
func (c *Client) Offering(pool string, manifest Hash) grpc.ClientConnInterface {
	return c.pool(pool, manifest.String())
}

func (c *Client) pool(pool, manifest string) *clientConn {
	key := poolKey{pool, manifest}
	if cc, ok := c.pools.Load(key); ok {
		return cc.(*clientConn)
	}
	cc := &clientConn{c: c, pool: pool, subject: c.conn.poolSubject(pool, manifest) + "."}
	if !validToken(pool) {
		cc.err = status.Errorf(codes.InvalidArgument, "pool %q is not a subject token", pool)
		return cc
	}
	if manifest != anyManifest {
		c.dropManifests()
	}
	cc.queue = c.queue(key)
	cc.open = openToken(manifest)
	got, _ := c.pools.LoadOrStore(key, cc)
	return got.(*clientConn)
}

// maxManifests is how many manifests of pools a client has queues for before it
// drops those that nobody uses: over the years, each version of a pool is one.
const maxManifests = 64

// dropManifests makes room for a new manifest.
func (c *Client) dropManifests() {
	n := 0
	c.pools.Range(func(key, _ any) bool {
		if key.(poolKey).manifest != anyManifest {
			n++
		}
		return true
	})
	if n < maxManifests {
		return
	}
	c.pools.Range(func(key, cc any) bool {
		if key.(poolKey).manifest != anyManifest && cc.(*clientConn).queue.idle() {
			c.pools.Delete(key)
			c.queues.Delete(key)
		}
		return true
	})
}

// Instance returns a connection whose calls go to one instance of a pool.
func (c *Client) Instance(pool, instance string) grpc.ClientConnInterface {
	cc := &clientConn{c: c, pool: pool, direct: true, instance: instance, open: tokenOpen, subject: c.ctlPre + instance + "." + tokenOpen}
	if !validToken(instance) {
		cc.err = status.Errorf(codes.InvalidArgument, "instance %q is not a subject token", instance)
	}
	return cc
}

// clientConn is where calls go.
type clientConn struct {
	c      *Client
	pool   string
	direct bool
	queue  *poolQueue // where calls wait for a slot; nil if direct
	// instance is the only one that may get the calls; "": any of the pool.
	instance string
	subject  string // direct: the subject; else its prefix, the method follows
	open     string // the token of an OPEN to one instance
	err      error  // every call fails with it

	// subjects caches the subject of each method; copied on write.
	subjects atomic.Pointer[map[string]string]
}

var _ grpc.ClientConnInterface = (*clientConn)(nil)

// route returns the subject for an OPEN of the method.
func (cc *clientConn) route(method string) (string, error) {
	if cc.err != nil {
		return "", cc.err
	}
	old := cc.subjects.Load()
	if old != nil {
		if s, ok := (*old)[method]; ok {
			return s, nil
		}
	}
	_, name, ok := cutMethod(method)
	if !ok || !validToken(name) {
		return "", status.Errorf(codes.Unimplemented, "malformed method name %q", method)
	}
	subject := cc.subject
	if !cc.direct {
		subject += name
	}
	// A lost race costs one more copy next time.
	next := map[string]string{method: subject}
	if old != nil && len(*old) < 1000 {
		maps.Copy(next, *old)
	}
	cc.subjects.Store(&next)
	return subject, nil
}

// cutMethod splits "/package.Service/Method".
func cutMethod(s string) (service, method string, ok bool) {
	rest, ok := strings.CutPrefix(s, "/")
	if !ok {
		return "", "", false
	}
	i := strings.LastIndexByte(rest, '/')
	if i <= 0 {
		return "", "", false
	}
	return rest[:i], rest[i+1:], true
}

// register gives the call its id.
func (c *Client) register(ctx context.Context, call *clientCall) error {
	if !c.open.Load() {
		select {
		case <-c.ready:
		case <-c.over: // it was never ready, and refuses the call below
		case <-ctx.Done():
			return contextError(ctx)
		}
	}
	call.id = c.ids.Add(1)
	call.reply = callSubject(c.prefix, call.id)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return status.Error(codes.Unavailable, "the client has stopped")
	}
	if call.resumable() {
		if c.events[call.opts.resume.token] != nil {
			return status.Error(codes.Internal, "two calls have the same key of events")
		}
		c.events[call.opts.resume.token] = call
	}
	c.calls[call.id] = call
	return nil
}

// remove forgets a call that has ended. leave says that it goes on without us.
func (c *Client) remove(call *clientCall, leave bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[call.id] != call {
		return // was never registered
	}
	delete(c.calls, call.id)
	if !call.resumable() {
		return
	}
	delete(c.events, call.opts.resume.token)
	if leave {
		c.left[call.opts.resume.token] = call.deadline
		c.left[call.reply[len(c.prefix):]] = call.deadline
	}
}

// Tokens of the last part of a subject that are no calls; those start with 'c'
// and go on with a number.
const (
	tokenMark = "mark"
	tokenOpen = "open"
	// tokenOpenFor begins those of an OPEN that an instance is to refuse unless it
	// has the manifest whose hash follows.
	tokenOpenFor = tokenOpen + "-"
	tokenPing    = "ping"
	// tokenFence takes questions about calls.
	tokenFence = "fence"
	// tokenAsk takes questions about events.
	tokenAsk = "events"
)

func callSubject(prefix string, id uint64) string {
	b := make([]byte, 0, 96)
	b = append(b, prefix...)
	b = append(b, 'c')
	b = strconv.AppendUint(b, id, 36)
	return string(b)
}

func parseCall(token string) (uint64, bool) {
	if len(token) < 2 || token[0] != 'c' {
		return 0, false
	}
	id, err := strconv.ParseUint(token[1:], 36, 64)
	return id, err == nil
}

// noResponders reports whether m says that nobody listens to what was sent.
func noResponders(m *nats.Msg) bool {
	return len(m.Data) == 0 && m.Header != nil && m.Header.Get("Status") == "503"
}

// chunkSize is read for each message, because the limit may be lowered while
// the server runs.
func chunkSize(nc *nats.Conn, chunk int) int {
	return max(1, min(chunk, int(nc.MaxPayload()/2)))
}

// flush returns when the server has seen everything published before, so that
// a subscription is known.
func flush(ctx context.Context, nc *nats.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("bus: flush: %w", err)
	}
	return nil
}

// unsubscribe ends a subscription; an error means that it has ended already.
func unsubscribe(sub *nats.Subscription) { _ = sub.Unsubscribe() }
