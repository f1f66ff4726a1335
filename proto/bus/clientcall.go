package bus

import (
	"context"
	"io"
	"reflect"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// callOptions are the call options that are honoured.
type callOptions struct {
	headers, trailers []*metadata.MD
	peers             []*peer.Peer
	onFinish          []func(error)
	maxRecv, maxSend  int
	waitForReady      bool
	kept              bool
	fair              *fairKey
	resume            *resumeOptions // nil: the call is not resumable
	unkept            *bool          // where it goes whether a message is no event, or nil
}

func (o *callOptions) parse(opts []grpc.CallOption) error {
	for _, opt := range opts {
		switch opt := opt.(type) {
		case grpc.StaticMethodCallOption, grpc.EmptyCallOption:
		case grpc.HeaderCallOption:
			o.headers = append(o.headers, opt.HeaderAddr)
		case grpc.TrailerCallOption:
			o.trailers = append(o.trailers, opt.TrailerAddr)
		case grpc.PeerCallOption:
			o.peers = append(o.peers, opt.PeerAddr)
		case grpc.OnFinishCallOption:
			o.onFinish = append(o.onFinish, opt.OnFinish)
		case grpc.MaxRecvMsgSizeCallOption:
			o.maxRecv = opt.MaxRecvMsgSize
		case grpc.MaxSendMsgSizeCallOption:
			o.maxSend = opt.MaxSendMsgSize
		case grpc.FailFastCallOption:
			o.waitForReady = !opt.FailFast
		case resumableOption:
			token, err := opt.key.token()
			if err != nil {
				return err
			}
			o.resume = &resumeOptions{token: token, number: opt.number}
		case unkeptOption:
			o.unkept = opt.unkept
		case keptOption:
			o.kept = true
		case fairOption:
			o.fair = opt.key
		default:
			if forInterceptor(opt) {
				continue
			}
			return status.Errorf(codes.Unimplemented, "call option %T is not supported by the bus", opt)
		}
	}
	return nil
}

// forInterceptor reports whether an option is made to be read by an interceptor
// and says nothing to the carrier: such types embed EmptyCallOption.
func forInterceptor(opt grpc.CallOption) bool {
	t := reflect.TypeOf(opt)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return false
	}
	f, ok := t.FieldByName("EmptyCallOption")
	return ok && f.Anonymous && f.Type == reflect.TypeFor[grpc.EmptyCallOption]()
}

// clientCall is one call at its caller. The frames of the worker change it on
// the goroutine of the subscription; the caller waits on wake. Nothing waits
// while mu is held.
type clientCall struct {
	c         *Client
	cc        *clientConn
	opts      callOptions
	ctx       context.Context
	stopCtx   func() bool // ends the watch over ctx, nil for unary calls
	onEnd     func()      // reports the end of a stream, once; nil when nobody wants to know
	stats     *callStats
	method    string
	subject   string
	id        uint64
	reply     string
	deadline  time.Time
	swept     bool // the deadline is not the one of ctx: the sweep enforces it
	unaryCall bool // reader and sender are one goroutine, which waits for wake

	// wake tells the reader that something has changed. Capacity 1 and never
	// closed: a full channel holds the news already.
	wake chan struct{}

	mu sync.Mutex
	// sendWake is the same for the sender, and gotHeader is closed when header
	// is final. Both are nil until somebody waits.
	sendWake, gotHeader chan struct{}

	accepted bool
	ended    bool
	err      error // of the end; nil is success
	local    bool  // the end was decided here: what is queued is not delivered
	left     bool  // the call goes on at its instance

	// The OPEN, kept until it is accepted.
	open      *buffer
	openFlags uint32
	openCost  int
	firstPush time.Time
	lastPush  time.Time // zero while none is on the way
	pushStill int64     // how long the client had stood still then
	pushes    int
	target    string // the only instance that may get the push; "": any of the pool
	wait      *wait  // nil until it has to wait for a slot
	fence     *fence // what became of the push is being asked; else nil
	retries   int    // how often it was found that nothing had started
	pushing   bool   // somebody publishes open without the lock, and owns it
	again     bool   // and has to do it once more
	timer     *time.Timer

	ctl      string
	instance []byte // aliases the frame
	sign     *lifeSign
	epoch    uint64
	seq      uint64 // of the last frame sent
	out      sender
	half     bool // HALF_CLOSE follows as soon as the call is accepted
	in       inbox

	header, trailer metadata.MD
	headerDone      bool // header is final
	headerIn        bool // because it came, and not because nothing will
	headerTold      bool // to the stats handlers
	trailerIn       bool
}

// start makes a call without sending anything; stream is nil for a unary one.
func (cc *clientConn) start(ctx context.Context, method string, opts []grpc.CallOption, stream *clientStream) (*clientCall, error) {
	call := &clientCall{c: cc.c, cc: cc, ctx: ctx, method: method, unaryCall: stream == nil, wake: make(chan struct{}, 1)}
	if err := call.opts.parse(opts); err != nil {
		return nil, err
	}
	var err error
	if call.subject, err = cc.route(method); err != nil {
		return nil, err
	}
	call.target = cc.instance
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	deadline, ok := ctx.Deadline()
	switch now := time.Now(); {
	case !ok:
		call.deadline, call.swept = now.Add(defaultTimeout), true
	case deadline.Sub(now) > maxTimeout:
		call.deadline, call.swept = now.Add(maxTimeout), true
	default:
		call.deadline = deadline
	}
	call.in = inbox{window: cc.c.cfg.Window, maxMsg: cc.c.cfg.MaxRecvMsgSize, asks: cc.c.cfg.Room != nil}
	if call.opts.maxRecv > 0 {
		call.in.maxMsg = call.opts.maxRecv
	}
	call.ctx, call.stats = tag(ctx, cc.c.cfg.StatsHandlers, method, true, !call.opts.waitForReady)
	if stream == nil {
		call.stats.begin(!call.opts.waitForReady, false, false)
	} else {
		call.stats.begin(!call.opts.waitForReady, stream.desc.ClientStreams, stream.desc.ServerStreams)
		stream.call = call
		if len(call.opts.onFinish) > 0 || call.stats != nil {
			call.onEnd = func() { stream.finish(call.endError()) }
		}
	}
	if err := cc.c.register(call.ctx, call); err != nil {
		call.release()
		call.stats.end(err, nil)
		return nil, err
	}
	if stream != nil {
		call.mu.Lock()
		if !call.ended {
			call.stopCtx = context.AfterFunc(call.ctx, call.leave)
		}
		call.mu.Unlock()
	}
	return call, nil
}

// checkContext ends a stream whose context has ended, before the goroutine that
// watches it does: what a caller does after its cancel has no effect.
func (call *clientCall) checkContext() {
	if call.ctx.Err() != nil {
		call.fail(contextError(call.ctx))
	}
}

// leave ends a stream whose context has ended. Whoever wants to know of the end
// learns it now, for nobody may read the stream any more.
func (call *clientCall) leave() {
	call.fail(contextError(call.ctx))
	if call.onEnd != nil {
		call.onEnd()
	}
}

// onFrame takes a frame of the worker; false when the call has ended already.
func (call *clientCall) onFrame(f *frame) (taken bool) {
	switch f.kind {
	case kindBusy:
		call.c.signs.of(f.instance).sign()
		call.onBusy(f)
		return true
	case kindWindow:
		call.mu.Lock()
		call.out.refill(f.window)
		if call.sign != nil {
			call.sign.sign()
		}
		sender := call.sendWake
		call.mu.Unlock()
		notify(sender)
		if call.unaryCall {
			notify(call.wake)
		}
		return true
	case kindFenced:
		call.onFenced(f)
		return true
	case kindAccept, kindHeaders, kindData, kindEnd:
	default:
		return true // a kind of a later version
	}

	call.mu.Lock()
	if call.ended {
		// It ended while the frame was on its way here: an ACCEPT would be the
		// only word of where the call runs.
		call.mu.Unlock()
		return false
	}
	wasAccepted := call.accepted
	owe, err := call.takeLocked(f)
	ctl := call.ctl
	halfNow := call.half && call.accepted && !wasAccepted && !call.ended
	var seq uint64
	if halfNow {
		call.half = false
		call.seq++
		seq = call.seq
	}
	ended := call.ended
	sender := call.sendWake
	queued := call.wait != nil && call.accepted && !wasAccepted
	call.mu.Unlock()
	if queued {
		call.cc.queue.leave(call, true)
	}

	switch {
	case err != nil:
		call.fail(err)
		return true
	case ended:
		call.release()
	case halfNow:
		_ = call.c.send(ctl, call.reply, &frame{kind: kindHalfClose, seq: seq})
	}
	if owe > 0 {
		_ = call.c.send(ctl, call.reply, &frame{kind: kindWindow, window: owe})
	}
	notify(call.wake)
	if !wasAccepted || ended {
		notify(sender)
	}
	return true
}

// takeLocked applies a numbered frame. owe is to be announced to the worker.
func (call *clientCall) takeLocked(f *frame) (owe uint32, err error) {
	if !call.accepted {
		if f.kind != kindAccept && f.flags&FlagAccepted == 0 {
			return 0, failure(codes.Unavailable, ReasonFrameLost, "the first frame of the worker is missing")
		}
		ctl := string(f.ctl)
		if f.kind != kindEnd && !call.c.validCtl(ctl) {
			return 0, status.Error(codes.Internal, "the worker accepted the call without an address")
		}
		call.accepted = true
		if call.fence != nil {
			call.fence.cancel()
			call.fence = nil
		}
		call.ctl, call.instance, call.epoch = ctl, f.instance, f.epoch
		call.sign = call.c.signs.of(f.instance)
		call.out.avail = int64(f.window) - int64(call.openCost)
		call.lastPush = time.Time{}
		if call.wait != nil {
			call.wait.timer.Stop()
		}
		call.dropOpenLocked()
	}
	call.sign.sign()
	if err := call.in.next(f.seq); err != nil {
		return 0, err
	}
	if f.kind == kindAccept {
		return 0, nil
	}
	if !call.headerDone {
		call.header, call.headerDone = toMD(f.header), true
		call.headerIn = f.kind != kindEnd || f.flags&FlagMessage != 0 || len(f.header) > 0
		if call.gotHeader != nil {
			close(call.gotHeader)
		}
	}
	if f.kind == kindData || f.kind == kindEnd && f.flags&FlagMessage != 0 {
		call.in.unkept = !f.event
		if err := call.in.push(f.data, f.flags&FlagMore != 0, f.total); err != nil {
			return 0, err
		}
		owe = call.in.owe()
	}
	if f.kind == kindEnd {
		call.ended = true
		call.err = decodeStatus(f.status)
		call.trailer, call.trailerIn = toMD(f.trailer), true
		if call.err == nil && call.in.partial {
			call.err = status.Error(codes.Internal, "the worker ended the call within a message")
		}
		owe = 0
	}
	return owe, nil
}

// dropOpenLocked lets go of the OPEN: it will not be pushed again.
func (call *clientCall) dropOpenLocked() {
	if !call.pushing {
		call.c.bufs.put(call.open)
	}
	call.open = nil
}

// fail ends the call here with err and tells the worker. The first end counts.
// What was lost on the way to us is not lost for those who follow the events.
func (call *clientCall) fail(err error) {
	call.stop(err, call.resumable() && Reason(err) == ReasonFrameLost)
}

// stop is fail; leave says that the worker is to go on.
func (call *clientCall) stop(err error, leave bool) {
	if leave {
		err = failure(codes.Unavailable, ReasonGoesOn, "the call goes on without its caller: "+status.Convert(err).Message())
	}
	call.mu.Lock()
	if call.ended {
		call.mu.Unlock()
		return
	}
	call.ended, call.err, call.local, call.left = true, err, true, leave
	// An error of the carrier comes behind what arrived before; what the
	// caller has decided by leaving counts at once.
	if Reason(err) != "" {
		call.local = false
	} else {
		call.in.drop()
	}
	if call.timer != nil {
		call.timer.Stop()
	}
	queued := call.wait != nil && !call.accepted
	if queued {
		call.wait.timer.Stop()
	}
	if !call.headerDone {
		call.headerDone = true
		if call.gotHeader != nil {
			close(call.gotHeader)
		}
	}
	call.dropOpenLocked()
	if call.fence != nil {
		call.fence.cancel()
		call.fence = nil
	}
	ctl := call.ctl
	sender := call.sendWake
	call.mu.Unlock()
	if queued {
		call.cc.queue.leave(call, false)
	}
	call.release()
	// Without an address the CANCEL has to wait for the ACCEPT, see onOrphan.
	if ctl != "" {
		var flags uint32
		if leave {
			flags = FlagDetach
		}
		call.c.cancelRemote(ctl, flags)
	}
	notify(call.wake)
	notify(sender)
}

// release gives back what the call holds. The goroutine that ended it calls it.
func (call *clientCall) release() {
	call.c.remove(call, call.isLeft())
	switch {
	case call.onEnd == nil:
		if call.stopCtx != nil {
			call.stopCtx()
		}
	case call.local:
		// Nothing is left to read; and this may be the goroutine that reads
		// frames, which calls nobody else's code.
		go call.onEnd()
	default:
		// The reader reports the end when it gets there, or else the end of
		// the context.
	}
}

// endError is the status of a call that has ended.
func (call *clientCall) endError() error {
	call.mu.Lock()
	defer call.mu.Unlock()
	return call.err
}

// isOut reports whether the call was accepted, and otherwise whether an OPEN is on
// the way.
func (call *clientCall) isOut() (accepted, pushed bool) {
	call.mu.Lock()
	defer call.mu.Unlock()
	return call.accepted, !call.lastPush.IsZero()
}

func (call *clientCall) acceptedBy(instance string, epoch uint64) bool {
	call.mu.Lock()
	defer call.mu.Unlock()
	return call.accepted && string(call.instance) == instance && (epoch == 0 || call.epoch == epoch)
}

// overdue reports whether a deadline has passed that no context enforces.
func (call *clientCall) overdue(now time.Time) bool { return call.swept && now.After(call.deadline) }

// trySend sends the next chunk of a message; begin says that it is the first. It
// returns the remainder, and false when it has to wait: a stream for sendWake,
// which is there then.
func (call *clientCall) trySend(rest []byte, begin, half bool) ([]byte, bool, error) {
	call.mu.Lock()
	if call.ended {
		call.mu.Unlock()
		return nil, false, io.EOF
	}
	if !call.accepted || !call.out.open() {
		if call.sendWake == nil && !call.unaryCall {
			call.sendWake = make(chan struct{}, 1)
		}
		call.mu.Unlock()
		return rest, false, nil
	}
	n := min(len(rest), call.c.chunk())
	call.out.spend(n)
	call.seq++
	f := frame{kind: kindData, seq: call.seq, data: rest[:n]}
	if begin && n < len(rest) {
		f.total = uint64(len(rest))
	}
	ctl := call.ctl
	call.mu.Unlock()
	rest = rest[n:]
	switch {
	case len(rest) > 0:
		f.flags = FlagMore
	case half:
		f.flags = FlagHalf
	}
	if err := call.c.send(ctl, call.reply, &f); err != nil {
		err = lostError(err)
		call.fail(err)
		return nil, false, err
	}
	return rest, true, nil
}

// tryRecv returns the next message, or the end of the call (io.EOF is
// success), or neither when it has to wait.
func (call *clientCall) tryRecv() (m message, ok bool, end error) {
	call.mu.Lock()
	if !call.local {
		m, ok = call.in.pop()
	}
	owe := call.in.owe()
	ctl := call.ctl
	if !ok && call.ended {
		if end = call.err; end == nil {
			end = io.EOF
		}
	}
	if call.ended {
		owe = 0
	}
	call.mu.Unlock()
	if owe > 0 {
		_ = call.c.send(ctl, call.reply, &frame{kind: kindWindow, window: owe})
	}
	return m, ok, end
}

// makeRoom asks for room for the message that is being received, if it needs
// more. It reports whether it did; then there may be something to receive.
func (call *clientCall) makeRoom() bool {
	if !call.in.asks {
		return false
	}
	call.mu.Lock()
	size := 0
	if !call.ended {
		size = call.in.lacks()
	}
	call.mu.Unlock()
	if size == 0 {
		return false
	}
	if err := call.c.cfg.Room(call.ctx, size); err != nil {
		if call.ctx.Err() != nil {
			err = contextError(call.ctx)
		}
		call.fail(err)
		return true
	}
	call.mu.Lock()
	call.in.grant(size)
	call.mu.Unlock()
	return true
}

// finish fills what the call options asked for.
func (call *clientCall) finish(err error) {
	o := &call.opts
	if o.headers == nil && o.trailers == nil && o.peers == nil && o.onFinish == nil && call.stats == nil {
		return
	}
	call.mu.Lock()
	header, trailer, instance := call.header, call.trailer, call.instance
	trailerIn := call.trailerIn
	call.mu.Unlock()
	if call.stats != nil {
		call.tellHeader()
		if trailerIn {
			call.stats.inTrailer(trailer)
		}
		call.stats.end(err, trailer)
	}
	for _, p := range o.headers {
		*p = header.Copy()
	}
	for _, p := range o.trailers {
		*p = trailer.Copy()
	}
	for _, p := range o.peers {
		p.Addr = Addr(instance)
	}
	for _, f := range o.onFinish {
		f(err)
	}
}

// tellHeader tells the stats handlers of the headers, once they are here.
func (call *clientCall) tellHeader() {
	if call.stats == nil {
		return
	}
	call.mu.Lock()
	tell := call.headerIn && !call.headerTold
	call.headerTold = call.headerTold || tell
	header := call.header
	call.mu.Unlock()
	if tell {
		call.stats.inHeader(call.method, header, nil, nil)
	}
}

// Addr is the address of a peer on the bus: the id of an instance or client.
type Addr string

// Network returns "bus".
func (Addr) Network() string { return "bus" }

// String returns the id.
func (a Addr) String() string { return string(a) }
