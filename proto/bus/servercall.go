package bus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// maxHeld is the largest first message that waits for the end of the call; a
// larger one would be copied for nothing.
const maxHeld = 32 << 10

// serverCall is one call at the instance that runs it. The caller's frames
// change it on the goroutine of a subscription under mu; what goes to the
// caller is written under sendMu, which that goroutine never takes.
type serverCall struct {
	s      *Server
	method *method
	id     uint64
	ctl    string // where the caller's frames arrive
	reply  string // where the caller is
	callID uint64 // the caller's own id of the call
	began  time.Time

	ctx     context.Context
	cancel  context.CancelFunc
	left    func() // what Admit wants to be called at the end; may be nil
	limit   string // that of its sort of calls, as Admit says
	reqHead []meta
	peer    peer.Peer
	stats   *callStats

	mu sync.Mutex
	// recvWake and sendWake tell the handler that something has changed. They
	// are nil until it waits. Capacity 1 and never closed: a full channel
	// holds the news already.
	recvWake, sendWake chan struct{}
	ready              func() // what OnSendReady was told last, until it is called

	in     inbox
	half   bool // nothing follows
	out    sender
	broken error // why the call was given up; overrides the handler

	sendMu     sync.Mutex
	seq        uint64
	accepted   bool // the ACCEPT is out
	ended      bool // the END is out
	headerSent bool
	headerTold bool // to the stats handlers
	header     metadata.MD
	trailer    metadata.MD
	held       *buffer // the first message while it waits, else nil
	prompt     bool    // no message waits
	window     uint32
	callerN    uint32        // the number of the caller in the memory of the server
	events     *serverEvents // nil: the call is not resumable

	// stalledAt is when the context of the handler was first seen to have ended,
	// in seconds since the server was started, plus 1; 0: not yet.
	stalledAt atomic.Uint32
	// detached: the caller is gone and the call goes on. Set under mu.
	detached atomic.Bool
}

// newServerCall makes a call from its OPEN. It runs on the goroutine of the
// subscription.
func newServerCall(s *Server, m *method, reply string, f *frame, now time.Time, timeout time.Duration) *serverCall {
	c := &serverCall{
		s: s, method: m, reply: reply, began: now,
		reqHead: f.header,
		in:      inbox{window: s.cfg.Window, maxMsg: s.cfg.MaxRecvMsgSize, seq: 1, server: true},
		half:    f.flags&FlagHalf != 0,
		window:  uint32(s.cfg.Window),
	}
	c.out.avail = int64(f.window)
	if len(f.events) > 0 {
		c.events = &serverEvents{subject: string(f.events), left: s.cfg.EventBytes, on: f.flags&FlagKeep != 0}
	}
	if f.flags&FlagMessage != 0 {
		if err := c.in.push(f.data, f.flags&FlagMore != 0, f.total); err != nil {
			c.broken = err
		}
	}
	c.ctx, c.cancel = context.WithDeadline(context.Background(), now.Add(timeout))
	return c
}

// run serves the call on its own goroutine.
func (c *serverCall) run() {
	defer c.s.done(c)
	defer c.cancel()
	c.mu.Lock()
	complete, broken := c.half, c.broken
	c.mu.Unlock()
	if broken != nil { // by its OPEN
		c.finish(nil, nil)
		return
	}
	md := toMD(c.reqHead)
	ctx := metadata.NewIncomingContext(c.ctx, md)
	c.reqHead = nil
	c.peer.Addr = (*caller)(c)
	ctx = peer.NewContext(ctx, &c.peer)
	ctx = grpc.NewContextWithServerTransportStream(ctx, (*transportStream)(c))
	// An incomplete request needs an address to go to; anything else may wait
	// for company.
	if complete {
		c.s.accepts.add(c)
	} else {
		c.flush()
	}
	if handlers := c.s.cfg.StatsHandlers; len(handlers) > 0 {
		ctx, c.stats = tag(ctx, handlers, c.method.name, false, false)
		c.stats.inHeader(c.method.name, md, c.peer.Addr, Addr(c.s.id))
		streams := c.method.stream != nil
		c.stats.begin(false, streams && c.method.stream.ClientStreams, streams && c.method.stream.ServerStreams)
	}
	// Deferred, for a handler that ends its goroutine.
	var resp any
	err := errPanic
	defer func() { c.finish(resp, err) }()
	resp, err = c.handle(ctx)
}

// key is the call as its caller names it.
func (c *serverCall) key() callKey { return callKey{caller: c.callerN, id: c.callID} }

// admit asks ServerConfig.Admit.
func (c *serverCall) admit(head []byte) bool {
	ctx, left, limit, ok := c.s.cfg.Admit(c.ctx, c.method.name, head)
	if c.limit = limit; ok {
		c.ctx, c.left = ctx, left
	}
	return ok
}

// leaveSlot gives back what admit took.
func (c *serverCall) leaveSlot() {
	if c.left != nil {
		c.left()
	}
}

// caller is the address of the client of a call.
type caller serverCall

func (*caller) Network() string { return "bus" }

func (a *caller) String() string {
	id, _, _ := strings.Cut(a.reply[len(a.s.replyP):], ".")
	return id
}

// handle runs the handler. resp is the message of a unary call.
func (c *serverCall) handle(ctx context.Context) (resp any, err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		// A panic, or the end of the goroutine from inside.
		r := recover()
		c.s.logger.Error("handler panicked", "method", c.method.name, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
		resp, err = nil, errPanic
	}()
	if c.method.unary != nil {
		resp, err = c.method.unary(c.method.impl, ctx, c.decode, c.s.unary)
	} else {
		stream := &serverStream{c: c, ctx: ctx}
		desc := c.method.stream
		if ic := c.s.stream; ic != nil {
			info := &grpc.StreamServerInfo{FullMethod: c.method.name, IsClientStream: desc.ClientStreams, IsServerStream: desc.ServerStreams}
			err = ic(c.method.impl, stream, info, desc.Handler)
		} else {
			err = desc.Handler(c.method.impl, stream)
		}
	}
	returned = true
	return resp, err
}

// decode reads the request of a unary call.
func (c *serverCall) decode(dst any) error {
	err := c.recv(dst)
	if err == io.EOF {
		return status.Error(codes.Internal, "the caller sent no message")
	}
	return err
}

// finish sends what is left: the message of a unary call and the END.
func (c *serverCall) finish(resp any, err error) {
	st, pm := c.result(resp, err)
	c.end(st, pm)
	if c.stats != nil {
		c.tellEnd(st, pm)
	}
}

// result is what the END says, with the message of a unary call unless it was
// too large to go with it.
func (c *serverCall) result(resp any, err error) (*status.Status, proto.Message) {
	c.mu.Lock()
	broken := c.broken
	c.mu.Unlock()
	if broken != nil {
		return status.Convert(broken), nil
	}
	if err != nil || c.method.unary == nil {
		return handlerStatus(err), nil
	}
	pm, err := asProto(resp)
	if err != nil {
		return status.Convert(err), nil
	}
	if proto.Size(pm) > c.chunk() {
		// More than one frame: like a stream of one message.
		return handlerStatus(c.send(resp)), nil
	}
	return nil, pm
}

// tellEnd tells the stats handlers how the call ended. When the caller has left
// there is nobody to get trailers.
func (c *serverCall) tellEnd(st *status.Status, pm proto.Message) {
	c.sendMu.Lock()
	header, trailer := c.header, c.trailer
	c.sendMu.Unlock()
	if pm != nil || len(header) > 0 {
		c.tellHeader()
	}
	if pm != nil {
		c.stats.outPayload(pm, proto.Size(pm))
	}
	c.mu.Lock()
	left := c.broken == nil && errors.Is(c.ctx.Err(), context.Canceled)
	c.mu.Unlock()
	if !left {
		c.stats.outTrailer(trailer)
	}
	c.stats.end(st.Err(), nil)
}

// tellHeader tells the stats handlers that the headers are final, once.
func (c *serverCall) tellHeader() {
	if c.stats == nil {
		return
	}
	c.sendMu.Lock()
	tell := !c.headerTold
	c.headerTold = true
	header := c.header
	c.sendMu.Unlock()
	if tell {
		c.stats.outHeader(c.method.name, header, nil)
	}
}

func (c *serverCall) chunk() int { return chunkSize(c.s.conn.nc, c.s.cfg.Chunk) }

// acceptLocked makes f an ACCEPT as well when none was sent. sendMu is held.
func (c *serverCall) acceptLocked(f *frame) {
	if c.accepted {
		return
	}
	c.accepted = true
	if f.kind != kindAccept {
		f.flags |= FlagAccepted
	}
	f.instance = c.s.id
	f.epoch = c.s.epoch.Load()
	f.window = c.window
	if f.kind != kindEnd {
		f.ctl = []byte(c.ctl)
	}
}

// writeLocked publishes a numbered frame whose payload is data or, when that
// is nil, pm. Headers go with the first frame that may carry them. sendMu is
// held, which keeps the numbers in order. After an error nothing was sent.
func (c *serverCall) writeLocked(f *frame, pm proto.Message) error {
	accepted, headerSent := c.accepted, c.headerSent
	c.acceptLocked(f)
	subject, events := c.reply, serverEvents{}
	if c.events != nil {
		events = *c.events
		subject = c.routeLocked(f)
	}
	c.seq++
	f.seq = c.seq
	f.load = c.s.load()
	buf := c.s.bufs.get()
	defer c.s.bufs.put(buf)
	b := f.appendHead(buf.b)
	if f.kind != kindAccept && !c.headerSent {
		c.headerSent = true
		b = appendMD(b, fieldHeader, c.header)
	}
	reply := c.ctl // with it the call learns when its caller is gone
	if f.kind == kindEnd {
		reply = ""
		b = appendMD(b, fieldTrailer, c.trailer)
	}
	var err error
	if pm != nil {
		b = appendDataTag(b, proto.Size(pm))
		b, err = appendPayload(b, pm)
	} else if len(f.data) > 0 {
		b = appendDataTag(b, len(f.data))
		b = append(b, f.data...)
	}
	if err == nil && subject != "" {
		buf.b = b
		err = c.s.conn.publish(subject, reply, b)
	}
	if err != nil {
		c.seq--
		c.accepted, c.headerSent = accepted, headerSent
		if c.events != nil {
			*c.events = events
		}
	} else if c.events != nil && subject == c.events.subject {
		c.keep(f, b)
	}
	return err
}

// flush sends the ACCEPT and the held message now. The queues of delays call
// it, after the call has ended too.
func (c *serverCall) flush() {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	_ = c.flushLocked() // a broken connection ends the call from elsewhere
}

func (c *serverCall) flushLocked() error {
	switch {
	case c.ended:
		return nil
	case c.held != nil:
		held := c.held
		c.held = nil
		err := c.writeLocked(&frame{kind: kindData, data: held.b}, nil)
		c.s.bufs.put(held)
		return err
	case !c.accepted:
		return c.writeLocked(&frame{kind: kindAccept}, nil)
	}
	return nil
}

// end sends the END, once. pm is the message that goes with it, or nil.
func (c *serverCall) end(st *status.Status, pm proto.Message) {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	f := frame{kind: kindEnd, status: encodeStatus(st)}
	held := c.held
	c.held = nil
	switch {
	case held != nil:
		f.flags, f.data = FlagMessage, held.b
	case pm != nil:
		f.flags = FlagMessage
	}
	err := c.writeLocked(&f, pm)
	c.s.bufs.put(held)
	if err == nil {
		return
	}
	// Nothing went out. What does not fit or cannot be marshalled is replaced
	// by a status that can; without a connection it has to wait for one.
	switch _, ok := status.FromError(err); {
	case isMaxPayload(err):
		st = status.New(codes.ResourceExhausted, "status and metadata do not fit into one message of the bus")
	case ok:
		st = status.Convert(err)
	default: // it may be back by now
		st = status.Convert(errConnLost)
	}
	c.header, c.trailer = nil, nil
	if c.writeLocked(&frame{kind: kindEnd, status: encodeStatus(st)}, nil) != nil {
		c.s.keepUnsent(c)
	}
}

// endLate sends the END that found no connection.
func (c *serverCall) endLate() {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	_ = c.writeLocked(&frame{kind: kindEnd, status: encodeStatus(status.Convert(errConnLost))}, nil) // if it is lost again: a new epoch began
}

// onFrame takes a frame of the caller.
func (c *serverCall) onFrame(f *frame) {
	switch f.kind {
	case kindCancel:
		if f.flags&FlagDetach != 0 {
			c.callerGone()
		} else {
			c.leave()
		}
	case kindWindow:
		c.mu.Lock()
		c.out.refill(f.window)
		wake, ready := c.sendWake, c.readyLocked()
		c.mu.Unlock()
		notify(wake)
		c.apart(ready)
	case kindData, kindHalfClose:
		c.mu.Lock()
		err := c.in.next(f.seq)
		if err == nil && c.half {
			err = status.Error(codes.Internal, "the caller sent a frame after its half-close")
		}
		if err == nil && f.kind == kindData {
			err = c.in.push(f.data, f.flags&FlagMore != 0, f.total)
		}
		if err == nil && (f.kind == kindHalfClose || f.flags&FlagHalf != 0) {
			c.half = true
		}
		owe := c.in.owe()
		wake := c.recvWake
		c.mu.Unlock()
		if err != nil {
			c.abort(err)
			return
		}
		if owe > 0 {
			_ = c.s.publish(c.reply, c.ctl, &frame{kind: kindWindow, window: owe})
		}
		notify(wake)
	}
}

// leave cancels the handler: the caller has left.
func (c *serverCall) leave() { c.cancel() }

// abort gives the call up with err, which the caller gets at once; the handler
// notices by its context.
func (c *serverCall) abort(err error) {
	c.mu.Lock()
	if c.broken != nil {
		c.mu.Unlock()
		return
	}
	c.broken = err
	c.in.drop()
	c.mu.Unlock()
	c.cancel()
	// The handler may be in the middle of a write and hold sendMu, and the
	// goroutine that reads frames must not wait for it.
	c.apart(func() { c.end(status.Convert(err), nil) })
}

// apart runs f, unless that is nil or the call is over, on a goroutine for which
// the server waits.
func (c *serverCall) apart(f func()) {
	if f != nil && c.s.hold(c) {
		go func() {
			defer c.s.wg.Done()
			f()
		}()
	}
}

// contextErr is the status for a handler that goes on after the end.
func (c *serverCall) contextErr() error {
	c.mu.Lock()
	broken := c.broken
	c.mu.Unlock()
	if broken != nil {
		return broken
	}
	return contextError(c.ctx)
}

// recv reads the next message; io.EOF when there are no more.
func (c *serverCall) recv(dst any) error {
	for {
		if c.ctx.Err() != nil {
			return c.contextErr()
		}
		c.mu.Lock()
		m, ok := c.in.pop()
		owe := c.in.owe()
		half, partial := c.half, c.in.partial
		if !ok && !half && c.recvWake == nil {
			c.recvWake = make(chan struct{}, 1)
		}
		wake := c.recvWake
		c.mu.Unlock()
		if owe > 0 {
			_ = c.s.publish(c.reply, c.ctl, &frame{kind: kindWindow, window: owe})
		}
		switch {
		case ok:
			if err := unmarshal(m, dst); err != nil {
				return err
			}
			c.stats.inPayload(dst, m.size)
			return nil
		case half && partial:
			return status.Error(codes.Internal, "the caller ended within a message")
		case half:
			return io.EOF
		}
		select {
		case <-wake:
		case <-c.ctx.Done():
		}
	}
}

// send writes a message of the handler and waits while the caller takes no
// more.
func (c *serverCall) send(m any) error {
	pm, err := asProto(m)
	if err != nil {
		return err
	}
	size := proto.Size(pm)
	if err := c.sendSized(pm, size); err != nil {
		return err
	}
	if c.stats != nil {
		c.tellHeader()
		c.stats.outPayload(m, size)
	}
	return nil
}

func (c *serverCall) sendSized(pm proto.Message, size int) error {
	chunk := c.chunk()
	var body []byte // of a message that takes more than one frame
	if size > chunk {
		var err error
		if body, err = appendPayload(make([]byte, 0, size), pm); err != nil {
			return err
		}
	}
	if c.events != nil {
		if err := c.beginMessage(size); err != nil {
			return err
		}
	}
	if size <= chunk {
		if err := c.acquire(size); err != nil {
			return err
		}
		err := c.sendSmall(pm, size)
		if err != nil {
			c.giveBack(size, size)
		}
		return err
	}
	for first := true; len(body) > 0; first = false {
		n := min(len(body), chunk)
		if err := c.acquire(n); err != nil {
			return err
		}
		f := frame{kind: kindData, data: body[:n]}
		if first {
			f.total = uint64(size)
		}
		if body = body[n:]; len(body) > 0 {
			f.flags = FlagMore
		}
		if !first && c.events != nil {
			f.flags |= FlagRest
		}
		if err := c.sendFrame(&f, nil, first); err != nil {
			if first {
				c.giveBack(n, size)
			}
			return err
		}
	}
	return nil
}

// sendSmall writes a message of one frame. The first one waits a moment: when
// the call ends meanwhile, one NATS message carries all of it.
func (c *serverCall) sendSmall(pm proto.Message, size int) error {
	c.sendMu.Lock()
	if c.ended || c.held != nil || c.prompt || !c.mayHoldLocked(size) {
		c.sendMu.Unlock()
		return c.sendFrame(&frame{kind: kindData}, pm, true)
	}
	buf := c.s.bufs.get()
	b, err := appendPayload(buf.b, pm)
	if err != nil {
		c.s.bufs.put(buf)
		c.sendMu.Unlock()
		return err
	}
	buf.b = b
	c.held = buf
	c.sendMu.Unlock()
	c.s.holds.add(c)
	return nil
}

// openLocked reports whether a frame may be sent. mu is held.
func (c *serverCall) openLocked() bool { return c.out.open() || c.detached.Load() }

func (c *serverCall) sendFrame(f *frame, pm proto.Message, flush bool) error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.ended {
		return c.contextErr()
	}
	if flush && c.held != nil {
		if err := c.flushLocked(); err != nil {
			return lostError(err)
		}
	}
	if err := c.writeLocked(f, pm); err != nil {
		if _, ok := status.FromError(err); ok {
			return err
		}
		return lostError(err)
	}
	return nil
}

// acquire waits for room in the caller's window.
func (c *serverCall) acquire(n int) error {
	var impatient <-chan time.Time // there while a resumable call waits
	for {
		if c.ctx.Err() != nil {
			return c.contextErr()
		}
		c.mu.Lock()
		ok := c.openLocked()
		if ok {
			c.out.spend(n)
		} else if c.sendWake == nil {
			c.sendWake = make(chan struct{}, 1)
		}
		wake := c.sendWake
		c.mu.Unlock()
		if ok {
			return nil
		}
		if c.events != nil && impatient == nil {
			timer := time.NewTimer(windowPatience)
			defer timer.Stop()
			impatient = timer.C
		}
		select {
		case <-wake:
		case <-impatient:
			c.askCaller()
		case <-c.ctx.Done():
		}
	}
}

func (c *serverCall) setHeader(md metadata.MD) error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.headerSent || c.held != nil || c.ended {
		return errHeaderSent
	}
	if len(md) > 0 {
		c.header = metadata.Join(c.header, md)
	}
	return nil
}

func (c *serverCall) sendHeader(md metadata.MD) error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.headerSent || c.held != nil || c.ended {
		return errHeaderSent
	}
	c.header = metadata.Join(c.header, md)
	if err := c.writeLocked(&frame{kind: kindHeaders}, nil); err != nil {
		return lostError(err)
	}
	return nil
}

// sendHeaderTold is sendHeader with news of it.
func (c *serverCall) sendHeaderTold(md metadata.MD) error {
	err := c.sendHeader(md)
	if err == nil {
		c.tellHeader()
	}
	return err
}

func (c *serverCall) setTrailer(md metadata.MD) {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if len(md) > 0 {
		c.trailer = metadata.Join(c.trailer, md)
	}
}

// errPanic is all that a caller learns about a panic.
var errPanic = status.Error(codes.Internal, "internal error")

// errConnLost ends the calls of a worker whose frames may be missing.
var errConnLost = failure(codes.Unavailable, ReasonFrameLost, "the worker lost its connection to the bus")

var errHeaderSent = errors.New("bus: the headers were sent already")

// transportStream is what grpc.SetHeader and its like find in the context.
type transportStream serverCall

var _ grpc.ServerTransportStream = (*transportStream)(nil)

func (t *transportStream) Method() string                 { return t.method.name }
func (t *transportStream) SetHeader(md metadata.MD) error { return (*serverCall)(t).setHeader(md) }
func (t *transportStream) SendHeader(md metadata.MD) error {
	return (*serverCall)(t).sendHeaderTold(md)
}
func (t *transportStream) SetTrailer(md metadata.MD) error {
	(*serverCall)(t).setTrailer(md)
	return nil
}

// serverStream is the stream of a handler.
type serverStream struct {
	c   *serverCall
	ctx context.Context
}

var _ grpc.ServerStream = (*serverStream)(nil)

func (s *serverStream) SetHeader(md metadata.MD) error  { return s.c.setHeader(md) }
func (s *serverStream) SendHeader(md metadata.MD) error { return s.c.sendHeaderTold(md) }
func (s *serverStream) SetTrailer(md metadata.MD)       { s.c.setTrailer(md) }
func (s *serverStream) Context() context.Context        { return s.ctx }
func (s *serverStream) SendMsg(m any) error             { return s.c.send(m) }
func (s *serverStream) RecvMsg(m any) error             { return s.c.recv(m) }
