package bus

import (
	"context"
	"io"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// openRoom is kept free in front of an OPEN for the fields that differ from
// one push to the next, so that what does not differ is marshalled once.
const openRoom = 64

// callOptions are the call options that are honoured.
type callOptions struct {
	headers, trailers []*metadata.MD
	peers             []*peer.Peer
	onFinish          []func(error)
	maxRecv, maxSend  int
	waitForReady      bool
	kept              bool
	resume            *resumeOptions // nil: the call is not resumable
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
		case keptOption:
			o.kept = true
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
	pushing   bool // somebody publishes open without the lock, and owns it
	again     bool // and has to do it once more
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
	call.in = inbox{window: cc.c.cfg.Window, maxMsg: cc.c.cfg.MaxRecvMsgSize}
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

// sendOpen marshals the OPEN with the first message (nil: none) and pushes it.
// rest is what of the message did not fit.
func (call *clientCall) sendOpen(msg any, half bool) (rest []byte, err error) {
	buf := call.c.bufs.get()
	var room [openRoom]byte
	b := append(buf.b, room[:]...) //nolint:gocritic // buf.b is set below, when b is complete
	b = appendBytes(b, fieldMethod, call.method)
	if call.resumable() {
		b = appendBytes(b, fieldEvents, call.c.prefix+call.opts.resume.token)
	}
	if md, ok := metadata.FromOutgoingContext(call.ctx); ok {
		b = appendMD(b, fieldHeader, md)
	}
	var flags uint32
	first, size := 0, 0
	if msg != nil {
		pm, err := asProto(msg)
		if err != nil {
			call.c.bufs.put(buf)
			return nil, err
		}
		size = proto.Size(pm)
		if limit := call.opts.maxSend; limit > 0 && size > limit {
			call.c.bufs.put(buf)
			return nil, status.Errorf(codes.ResourceExhausted, "trying to send message larger than max (%d vs. %d)", size, limit)
		}
		flags |= FlagMessage
		first = min(size, call.c.chunk())
		if first < size {
			b = appendVarint(b, fieldTotal, uint64(size))
		}
		b = appendDataTag(b, first)
		if first == size {
			b, err = appendPayload(b, pm)
		} else {
			flags |= FlagMore
			var body []byte
			body, err = appendPayload(make([]byte, 0, size), pm)
			if err == nil {
				b, rest = append(b, body[:first]...), body[first:]
			}
		}
		if err != nil {
			call.c.bufs.put(buf)
			return nil, err
		}
	}
	if half && rest == nil {
		flags |= FlagHalf
	}
	if call.opts.kept {
		flags |= FlagKeep
	}
	buf.b = b

	call.mu.Lock()
	if call.ended {
		err := call.err
		call.mu.Unlock()
		call.c.bufs.put(buf)
		return nil, err
	}
	call.open, call.openFlags, call.openCost = buf, flags, 0
	if msg != nil {
		call.openCost = first + frameCost
	}
	call.seq = 1
	call.pushing = true
	call.mu.Unlock()
	err = call.push()
	if err == nil && call.stats != nil {
		md, _ := metadata.FromOutgoingContext(call.ctx)
		call.stats.outHeader(call.method, md, Addr(call.c.cfg.ID))
		if msg != nil {
			call.stats.outPayload(msg, size)
		}
	}
	return rest, err
}

// push publishes the OPEN once. The caller has set pushing.
func (call *clientCall) push() error {
	now := time.Now()
	call.mu.Lock()
	if call.open == nil {
		err := call.err
		call.pushing = false
		call.mu.Unlock()
		return err
	}
	if call.pushes == 0 {
		call.firstPush = now
	}
	attempt := call.pushes
	call.pushes++
	call.lastPush, call.pushStill = now, call.c.still.Load()
	call.again = false
	buf := call.open
	call.mu.Unlock()

	f := frame{
		kind:    kindOpen,
		flags:   call.openFlags,
		seq:     1,
		timeout: uint64(max(call.deadline.Sub(now), time.Microsecond).Microseconds()),
		openBy:  uint64(call.c.cfg.AcceptBudget.Microseconds()),
		window:  uint32(call.in.window),
		attempt: uint32(attempt),
	}
	var room [openRoom]byte
	head := f.appendHead(room[:0])
	from := openRoom - len(head)
	copy(buf.b[from:], head)
	err := call.c.conn.publish(call.subject, call.reply, buf.b[from:])

	call.mu.Lock()
	if call.again && call.open != nil && err == nil {
		call.mu.Unlock()
		return call.push()
	}
	call.pushing = false
	gone := call.open == nil
	call.mu.Unlock()
	if gone {
		call.c.bufs.put(buf)
	}
	if err != nil {
		err = openError(err)
		call.fail(err)
	}
	return err
}

// repush is a push after a pause or an answer that allows one.
func (call *clientCall) repush() {
	call.mu.Lock()
	if call.accepted || call.ended || call.pushing {
		call.again = true // counts only while somebody pushes
		call.mu.Unlock()
		return
	}
	call.pushing = true
	call.mu.Unlock()
	_ = call.push() // an error has ended the call
}

// openError is the status of an OPEN that was not sent.
func openError(err error) error {
	if isMaxPayload(err) {
		return status.Error(codes.ResourceExhausted, "metadata of the call does not fit into one message of the bus")
	}
	return failure(codes.Unavailable, ReasonDisconnected, "no connection to the bus: "+err.Error())
}

// lostError is the status of a later frame that was not sent: the call had
// started.
func lostError(err error) error {
	if isMaxPayload(err) {
		return status.Error(codes.ResourceExhausted, "a frame of the call does not fit into one message of the bus")
	}
	return failure(codes.Unavailable, ReasonFrameLost, "no connection to the bus: "+err.Error())
}

// onBusy repeats the OPEN: at once at first, then with growing pauses.
func (call *clientCall) onBusy() {
	now := time.Now()
	call.mu.Lock()
	if call.accepted || call.ended || call.lastPush.IsZero() {
		call.mu.Unlock()
		return
	}
	call.lastPush = time.Time{}
	if call.pushes <= pushesAtOnce {
		call.mu.Unlock()
		call.repush()
		return
	}
	budget := min(call.c.cfg.WaitBudget, call.deadline.Sub(call.firstPush)/4)
	left := budget - now.Sub(call.firstPush)
	if left <= 0 {
		call.mu.Unlock()
		call.fail(failure(codes.ResourceExhausted, ReasonOverloaded, "every instance is busy"))
		return
	}
	pause := backoff(call.pushes - pushesAtOnce - 1)
	call.timer = time.AfterFunc(min(pause, left), call.repush)
	call.mu.Unlock()
}

// onNoResponders: nobody listens to the last thing that was sent.
func (call *clientCall) onNoResponders() {
	now := time.Now()
	call.mu.Lock()
	if call.ended {
		call.mu.Unlock()
		return
	}
	if call.accepted {
		call.mu.Unlock()
		call.fail(failure(codes.Unavailable, ReasonWorkerLost, "the instance that ran the call is gone"))
		return
	}
	call.lastPush = time.Time{}
	pushes, since := call.pushes, now.Sub(call.firstPush)
	call.mu.Unlock()

	pause := backoff(pushes - 1)
	if !call.opts.waitForReady {
		pause = min(pause, noResponderRetry-since)
		if call.cc.direct || call.c.cfg.Known == nil || !call.c.cfg.Known(call.cc.pool) {
			pause = 0
		}
	}
	if pause <= 0 {
		call.fail(failure(codes.Unavailable, ReasonNoResponders, "no instance of pool "+call.cc.pool+" is there"))
		return
	}
	call.mu.Lock()
	if !call.ended {
		call.timer = time.AfterFunc(pause, call.repush)
	}
	call.mu.Unlock()
}

// backoff is the n-th pause, from 2 ms doubling to 64 ms, of which up to a half
// is taken off at random.
func backoff(n int) time.Duration {
	d := min(minBackoff<<min(max(n, 0), 10), maxBackoff)
	return d - rand.N(d/2+1)
}

// onFrame takes a frame of the worker; false when the call has ended already.
func (call *clientCall) onFrame(f *frame) (taken bool) {
	switch f.kind {
	case kindBusy:
		call.c.signs.of(f.instance).sign()
		call.onBusy()
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
	call.mu.Unlock()

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
		call.ctl, call.instance, call.epoch = ctl, f.instance, f.epoch
		call.sign = call.c.signs.of(f.instance)
		call.out.avail = int64(f.window) - int64(call.openCost)
		call.lastPush = time.Time{}
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
	if !call.headerDone {
		call.headerDone = true
		if call.gotHeader != nil {
			close(call.gotHeader)
		}
	}
	call.dropOpenLocked()
	ctl := call.ctl
	sender := call.sendWake
	call.mu.Unlock()
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

func (call *clientCall) isAccepted() bool {
	call.mu.Lock()
	defer call.mu.Unlock()
	return call.accepted
}

func (call *clientCall) acceptedBy(instance string, epoch uint64) bool {
	call.mu.Lock()
	defer call.mu.Unlock()
	return call.accepted && string(call.instance) == instance && (epoch == 0 || call.epoch == epoch)
}

// overdue reports whether a deadline has passed that no context enforces.
func (call *clientCall) overdue(now time.Time) bool { return call.swept && now.After(call.deadline) }

// unansweredFor is how long the last push has been without an answer, without
// the time for which this process stood still, and the number of that push.
func (call *clientCall) unansweredFor(now time.Time) (waited time.Duration, push int) {
	call.mu.Lock()
	defer call.mu.Unlock()
	if call.accepted || call.lastPush.IsZero() {
		return 0, 0
	}
	return now.Sub(call.lastPush) - time.Duration(call.c.still.Load()-call.pushStill), call.pushes
}

// notAccepted: nobody has answered the push in time.
func (call *clientCall) notAccepted(push int) {
	call.mu.Lock()
	answered := call.ended || call.accepted || call.lastPush.IsZero() || call.pushes != push
	call.mu.Unlock()
	if !answered {
		call.fail(failure(codes.Unavailable, ReasonNotAccepted, "no instance accepted the call in time"))
	}
}

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
