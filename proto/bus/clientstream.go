package bus

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func isMaxPayload(err error) bool { return errors.Is(err, nats.ErrMaxPayload) }

// Invoke makes a unary call. It waits on the calling goroutine and starts none.
func (cc *clientConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if ic := cc.c.unary; ic != nil {
		return ic(ctx, method, args, reply, nil, cc.invoke, opts...)
	}
	return cc.invoke(ctx, method, args, reply, nil, opts...)
}

// invoke is Invoke inside of the interceptors.
func (cc *clientConn) invoke(ctx context.Context, method string, args, reply any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
	call, err := cc.start(ctx, method, opts, nil)
	if err != nil {
		finishEarly(opts, err)
		return err
	}
	err = call.unary(args, reply)
	call.finish(err)
	return err
}

func (call *clientCall) unary(args, reply any) error {
	rest, err := call.sendOpen(args, true)
	if err != nil {
		call.fail(err)
		return err
	}
	var got message
	have := false
	for {
		for len(rest) > 0 {
			var sent bool
			if rest, sent, err = call.trySend(rest, false, true); err != nil {
				rest = nil // the status follows
			} else if !sent {
				break
			}
		}
		m, ok, end := call.tryRecv()
		switch {
		case ok && have:
			err := status.Error(codes.Internal, "the worker answered a unary call with two messages")
			call.fail(err)
			return err
		case ok:
			got, have = m, true
			continue
		case end == io.EOF && have:
			if err := unmarshal(got, reply); err != nil {
				return err
			}
			call.opts.tell(got)
			if call.stats != nil {
				call.tellHeader()
				call.stats.inPayload(reply, got.size)
			}
			return nil
		case end == io.EOF:
			return status.Error(codes.Internal, "the worker answered a unary call without a message")
		case end != nil:
			return end
		case call.makeRoom():
			continue
		}
		select {
		case <-call.wake:
		case <-call.ctx.Done():
			call.fail(contextError(call.ctx))
		}
	}
}

// finishEarly runs the callbacks of a call that never started.
func finishEarly(opts []grpc.CallOption, err error) {
	for _, opt := range opts {
		if f, ok := opt.(grpc.OnFinishCallOption); ok {
			f.OnFinish(err)
		}
	}
}

// NewStream starts a streaming call. One without client streaming opens with
// its first message, which so needs no message of its own.
func (cc *clientConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if ic := cc.c.stream; ic != nil {
		return ic(ctx, desc, nil, method, cc.newStream, opts...)
	}
	return cc.newStream(ctx, desc, nil, method, opts...)
}

// newStream is NewStream inside of the interceptors.
func (cc *clientConn) newStream(ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s := &clientStream{desc: desc}
	call, err := cc.start(ctx, method, opts, s)
	if err != nil {
		finishEarly(opts, err)
		return nil, err
	}
	if desc.ClientStreams {
		s.opened = true
		if _, err := call.sendOpen(nil, false); err != nil {
			call.fail(err)
			s.finish(err)
			return nil, err
		}
	}
	return s, nil
}

// clientStream is the grpc.ClientStream of a call. One goroutine may send and
// one receive at the same time.
type clientStream struct {
	call   *clientCall
	desc   *grpc.StreamDesc
	opened bool // the OPEN is out
	closed bool // CloseSend was called
	done   sync.Once
}

var _ grpc.ClientStream = (*clientStream)(nil)

// finish reports the end once, to whatever the options named.
func (s *clientStream) finish(err error) {
	s.done.Do(func() {
		if err == io.EOF {
			err = nil
		}
		s.call.finish(err)
		s.call.mu.Lock()
		stop := s.call.stopCtx
		s.call.mu.Unlock()
		if stop != nil {
			stop()
		}
	})
}

// Header waits for the headers.
func (s *clientStream) Header() (metadata.MD, error) {
	call := s.call
	defer call.tellHeader() // after the lock was given back
	call.mu.Lock()
	defer call.mu.Unlock()
	if !call.headerDone {
		if call.gotHeader == nil {
			call.gotHeader = make(chan struct{})
		}
		got := call.gotHeader
		call.mu.Unlock()
		<-got // closed by the end of the call at the latest
		call.mu.Lock()
	}
	if call.header == nil && call.ended && call.err != nil {
		return nil, call.err
	}
	return call.header, nil
}

// Trailer returns the trailers; they are there when RecvMsg has returned an
// error.
func (s *clientStream) Trailer() metadata.MD {
	s.call.mu.Lock()
	defer s.call.mu.Unlock()
	return s.call.trailer
}

// Context returns the context of the call.
func (s *clientStream) Context() context.Context { return s.call.ctx }

// CloseSend says that no message follows.
func (s *clientStream) CloseSend() error {
	if s.closed {
		return nil
	}
	s.closed = true
	call := s.call
	call.checkContext()
	if !s.opened {
		// A stream without client streaming that sends nothing: the server
		// will complain.
		s.opened = true
		_, err := call.sendOpen(nil, true)
		if err != nil {
			call.fail(err)
		}
		return nil
	}
	if !s.desc.ClientStreams {
		return nil // said with the message
	}
	call.mu.Lock()
	if call.ended {
		call.mu.Unlock()
		return nil
	}
	if !call.accepted {
		call.half = true
		call.mu.Unlock()
		return nil
	}
	call.seq++
	f := frame{kind: kindHalfClose, seq: call.seq}
	ctl := call.ctl
	call.mu.Unlock()
	if err := call.c.send(ctl, call.reply, &f); err != nil {
		call.fail(lostError(err))
	}
	return nil
}

// SendMsg sends a message and waits while the worker takes no more. When the
// call has ended it returns io.EOF, and RecvMsg the status.
func (s *clientStream) SendMsg(m any) error {
	call := s.call
	if s.closed {
		return status.Error(codes.Internal, "SendMsg called after CloseSend")
	}
	call.checkContext()
	if !s.opened {
		s.opened = true
		s.closed = true // the message said so
		rest, err := call.sendOpen(m, true)
		if err != nil {
			call.fail(err)
			return err
		}
		// Generated code of calls without client streaming takes io.EOF for an
		// error, while RecvMsg has the status.
		_ = s.sendRest(rest, true)
		return nil
	}
	pm, err := asProto(m)
	if err != nil {
		return err
	}
	size := proto.Size(pm)
	if limit := call.opts.maxSend; limit > 0 && size > limit {
		return status.Errorf(codes.ResourceExhausted, "trying to send message larger than max (%d vs. %d)", size, limit)
	}
	body, err := appendPayload(make([]byte, 0, size), pm)
	if err != nil {
		return err
	}
	if err := s.sendAll(body, false); err != nil {
		return err
	}
	call.stats.outPayload(m, size)
	return nil
}

// sendAll sends a message, which may be empty.
func (s *clientStream) sendAll(body []byte, half bool) error {
	for {
		rest, sent, err := s.call.trySend(body, true, half)
		if err != nil {
			return io.EOF
		}
		if sent {
			return s.sendRest(rest, half)
		}
		<-s.call.sendWake
	}
}

func (s *clientStream) sendRest(rest []byte, half bool) error {
	for len(rest) > 0 {
		next, sent, err := s.call.trySend(rest, false, half)
		if err != nil {
			return io.EOF
		}
		rest = next
		if !sent {
			<-s.call.sendWake
		}
	}
	return nil
}

// RecvMsg receives a message. It returns io.EOF after success and the status
// otherwise.
func (s *clientStream) RecvMsg(dst any) error {
	err := s.recv(dst)
	if err != nil {
		s.finish(err)
	}
	return err
}

func (s *clientStream) recv(dst any) error {
	m, err := s.next()
	if err != nil {
		if err == io.EOF && !s.desc.ServerStreams {
			return status.Error(codes.Internal, "the worker answered without a message")
		}
		return err
	}
	if err := unmarshal(m, dst); err != nil {
		s.call.fail(err)
		return err
	}
	s.call.opts.tell(m)
	if s.call.stats != nil {
		s.call.tellHeader()
		s.call.stats.inPayload(dst, m.size)
	}
	if s.desc.ServerStreams {
		return nil
	}
	// The only message: its status decides.
	switch _, err := s.next(); {
	case err == io.EOF:
		s.finish(nil)
		return nil
	case err != nil:
		return err
	}
	err = status.Error(codes.Internal, "the worker answered with two messages")
	s.call.fail(err)
	return err
}

func (s *clientStream) next() (message, error) {
	for {
		s.call.checkContext()
		m, ok, end := s.call.tryRecv()
		if ok {
			return m, nil
		}
		if end != nil {
			return message{}, end
		}
		if s.call.makeRoom() {
			continue
		}
		<-s.call.wake // sent by the end of the call at the latest
	}
}
