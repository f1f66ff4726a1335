package bus

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

type (
	outputRequest  = grpc_testing.StreamingOutputCallRequest
	outputResponse = grpc_testing.StreamingOutputCallResponse
	outputServer   = grpc.ServerStreamingServer[outputResponse]
)

// outputService is a testService whose StreamingOutputCall is a function.
type outputService struct {
	testService

	output func(*outputRequest, outputServer) error
}

func (s outputService) StreamingOutputCall(req *outputRequest, stream outputServer) error {
	return s.output(req, stream)
}

// text is a response that says s.
func text(s string) *outputResponse {
	return &outputResponse{Payload: &grpc_testing.Payload{Body: []byte(s)}}
}

// say sends a text.
func say(t testing.TB, stream outputServer, s string) {
	t.Helper()
	if err := stream.Send(text(s)); err != nil {
		t.Errorf("%q is not sent: %v", s, err)
	}
}

// memoryLog is an EventLog that hears what it keeps by a subscription, as a
// stream of JetStream does, which does not live in fake time.
type memoryLog struct {
	mu     sync.Mutex
	stored []*nats.Msg
	late   []*nats.Msg       // heard and not stored yet, while hold is set
	hold   bool              //
	lose   func(*frame) bool // what is not kept; nil: everything is
	err    error
	reads  int
}

func newMemoryLog(t testing.TB, conn *Conn) *memoryLog {
	t.Helper()
	l := &memoryLog{}
	sub, err := conn.nc.Subscribe(conn.prefix+"e.*.ev.>", func(m *nats.Msg) {
		l.mu.Lock()
		defer l.mu.Unlock()
		var f frame
		if err := f.decode(m.Data); err != nil {
			t.Error(err)
		}
		switch {
		case l.lose != nil && l.lose(&f):
		case l.hold:
			l.late = append(l.late, m)
		default:
			l.stored = append(l.stored, m)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unsubscribe(sub) })
	if err := flush(within(t), conn.nc); err != nil {
		t.Fatal(err)
	}
	return l
}

// holdBack makes what is heard from now on be stored by the release only.
func (l *memoryLog) holdBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold = true
}

func (l *memoryLog) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stored, l.late, l.hold = append(l.stored, l.late...), nil, false
}

func (l *memoryLog) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func (l *memoryLog) Stored(ctx context.Context, subject string, yield func(string, []byte) error) error {
	l.mu.Lock()
	stored, err := l.stored, l.err
	l.reads++
	l.mu.Unlock()
	if err != nil {
		return err
	}
	want := strings.Split(subject, ".")
	for _, m := range stored {
		have := strings.Split(m.Subject, ".")
		match := len(have) == len(want)
		for i := range want {
			match = match && (want[i] == "*" || want[i] == have[i])
		}
		if !match {
			continue
		}
		if err := yield(m.Subject, m.Data); err != nil {
			return fmt.Errorf("stopped: %w", err)
		}
	}
	return ctx.Err()
}

// frames is what the log keeps, as short words.
func (l *memoryLog) frames(t testing.TB) string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var words []string
	for _, m := range l.stored {
		var f frame
		if err := f.decode(m.Data); err != nil {
			t.Error(err)
		}
		words = append(words, frameWord(&f))
	}
	return strings.Join(words, " ")
}

func frameWord(f *frame) string {
	w := fmt.Sprintf("%s%d", strings.TrimPrefix(busv1.Frame_Kind(f.kind).String(), "KIND_"), f.seq)
	for _, flag := range []struct {
		bit  uint32
		name string
	}{{FlagAccepted, "+accept"}, {FlagMessage, "+message"}, {FlagFirst, "+first"}, {FlagRest, "+rest"}, {FlagMore, "+more"}} {
		if f.flags&flag.bit != 0 {
			w += flag.name
		}
	}
	return w
}

// resumable starts a call of the test service in a round of the stream "s.t".
func resumable(t testing.TB, c *Client, ctx context.Context, round uint32, number *uint64, opts ...grpc.CallOption) grpc.ServerStreamingClient[outputResponse] { //nolint:revive // t first
	t.Helper()
	stream, err := grpc_testing.NewTestServiceClient(c.Pool("test")).StreamingOutputCall(ctx, &outputRequest{},
		append(opts, Resumable(EventsKey{Session: "s", Stream: "t", Round: round}, number))...)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// hear reads a stream to its end.
func hear(stream interface {
	Recv() (*outputResponse, error)
}) (said []string, err error) {
	for {
		m, err := stream.Recv()
		if err == io.EOF {
			return said, nil
		}
		if err != nil {
			return said, err
		}
		said = append(said, string(m.GetPayload().GetBody()))
	}
}

// The messages of a call go to its events, and its caller does not notice.
func TestEventsOfACall(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		output       func(*testing.T, outputServer, func(time.Duration)) error
		said, events string
		numbers      []uint64
		code         codes.Code
	}{
		"messages": {
			output: func(t *testing.T, s outputServer, pause func(time.Duration)) error {
				pause(10 * time.Millisecond) // accepted alone
				for _, text := range []string{"a", "b", "c"} {
					say(t, s, text)
				}
				return nil
			},
			said: "a b c", events: "DATA2+first DATA3 DATA4 END5", numbers: []uint64{2, 3, 4},
		},
		"messages at once": {
			output: func(t *testing.T, s outputServer, _ func(time.Duration)) error {
				say(t, s, "a")
				say(t, s, "b")
				return nil
			},
			said: "a b", events: "DATA1+accept+first DATA2 END3", numbers: []uint64{1, 2},
		},
		"headers before": {
			output: func(t *testing.T, s outputServer, _ func(time.Duration)) error {
				if err := s.SendHeader(nil); err != nil {
					t.Error(err)
				}
				say(t, s, "a")
				say(t, s, "b")
				return nil
			},
			said: "a b", events: "DATA2+first DATA3 END4", numbers: []uint64{2, 3},
		},
		"a message and nothing for a while": {
			output: func(t *testing.T, s outputServer, pause func(time.Duration)) error {
				say(t, s, "a")
				pause(2 * time.Millisecond)
				return nil
			},
			said: "a", events: "DATA1+accept+first END2", numbers: []uint64{1},
		},
		"short call": {
			output: func(t *testing.T, s outputServer, _ func(time.Duration)) error { say(t, s, "a"); return nil },
			said:   "a", numbers: []uint64{1},
		},
		"less short call": {
			output: func(t *testing.T, s outputServer, pause func(time.Duration)) error {
				pause(490 * time.Millisecond)
				say(t, s, "a")
				return nil
			},
			said: "a", numbers: []uint64{2},
		},
		"large short call": {
			output: func(t *testing.T, s outputServer, _ func(time.Duration)) error {
				say(t, s, strings.Repeat("a", 100_000))
				return nil
			},
			said: strings.Repeat("a", 100_000), numbers: []uint64{1},
		},
		"short call with an error": {
			output: func(_ *testing.T, _ outputServer, _ func(time.Duration)) error {
				return status.Error(codes.NotFound, "no")
			},
			code: codes.NotFound,
		},
		"call of more than 500 ms": {
			output: func(t *testing.T, s outputServer, pause func(time.Duration)) error {
				pause(510 * time.Millisecond)
				say(t, s, "a")
				return nil
			},
			said: "a", events: "DATA2+first END3", numbers: []uint64{2},
		},
		"error after 500 ms": {
			output: func(_ *testing.T, _ outputServer, pause func(time.Duration)) error {
				pause(510 * time.Millisecond)
				return status.Error(codes.NotFound, "no")
			},
			events: "END2+first", code: codes.NotFound,
		},
		"message of several frames": {
			output: func(t *testing.T, s outputServer, _ func(time.Duration)) error {
				say(t, s, strings.Repeat("a", 2*defaultChunk))
				say(t, s, "b")
				return nil
			},
			said: strings.Repeat("a", 2*defaultChunk) + " b", events: "DATA1+accept+first+more DATA2+rest+more DATA3+rest DATA4 END5", numbers: []uint64{1, 4},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ns := startNATS(t)
				startServer(t, connect(t, ns), ServerConfig{}, outputService{output: func(_ *outputRequest, s outputServer) error { return c.output(t, s, time.Sleep) }})
				client := startClient(t, connect(t, ns), ClientConfig{})
				log := newMemoryLog(t, connect(t, ns))
				var number uint64
				var numbers []uint64
				var unkept bool
				stream := resumable(t, client, within(t), 1, &number, Unkept(&unkept))
				said, err := hear(recvFunc(func() (*outputResponse, error) {
					m, err := stream.Recv()
					if err == nil {
						numbers = append(numbers, number)
						if unkept != (c.events == "") {
							t.Errorf("message %d is no event: %v", number, unkept)
						}
					}
					return m, err
				}))
				wantCode(t, err, c.code)
				if got := strings.Join(said, " "); got != c.said {
					t.Errorf("the caller heard %.100q", got)
				}
				if fmt.Sprint(numbers) != fmt.Sprint(c.numbers) {
					t.Errorf("numbers %v, want %v", numbers, c.numbers)
				}
				synctest.Wait()
				if got := log.frames(t); got != c.events {
					t.Errorf("events %q, want %q", got, c.events)
				}
				for _, m := range log.stored {
					var f frame
					if err := f.decode(m.Data); err != nil || m.Subject != "mr.main.e."+client.ID()+".ev.s.t.1" ||
						(f.kind == kindData) != client.validCtl(string(f.ctl)) {
						t.Errorf("%s: %q, %v", m.Subject, f.ctl, err)
					}
				}
				if len(client.snapshot()) != 0 || len(client.events) != 0 || len(client.left) != 0 {
					t.Error("the client remembers the call")
				}
			})
		})
	}
}

type recvFunc func() (*outputResponse, error)

func (f recvFunc) Recv() (*outputResponse, error) { return f() }

// A call that is not resumable sends what it always did, and a key says where
// the frames of the others go.
func TestKeysOfEvents(t *testing.T) {
	t.Parallel()
	w, c, client := rawPair(t, ClientConfig{})
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	open := func(opts ...grpc.CallOption) *busv1.Frame {
		t.Helper()
		if _, err := client.StreamingOutputCall(ctx, &outputRequest{}, opts...); err != nil {
			t.Fatal(err)
		}
		f := &busv1.Frame{}
		if err := proto.Unmarshal((<-w.opens).Data, f); err != nil {
			t.Fatal(err)
		}
		return f
	}
	if got := open().GetEvents(); got != "" {
		t.Errorf("events %q", got)
	}
	if got, want := open(Resumable(EventsKey{"Se-1", "st_2", 40}, nil)).GetEvents(), "mr.main.e."+c.ID()+".ev.Se-1.st_2.14"; got != want {
		t.Errorf("events %q, want %q", got, want)
	}
	for _, key := range []EventsKey{{"Se-1", "st_2", 40}, {"", "t", 1}, {"s", "", 1}, {"a.b", "t", 1}, {"s", ">", 1}, {"*", "t", 1}} {
		stream, err := client.StreamingOutputCall(ctx, &outputRequest{}, Resumable(key, nil))
		if err == nil {
			_, err = stream.Recv()
		}
		if err == nil {
			t.Errorf("%v is taken", key)
		}
		if key.Round == 1 && c.EndEvents(key, nil) == nil {
			t.Errorf("the end of %v is published", key)
		}
	}
	if n := len(w.opens); n != 0 {
		t.Errorf("%d calls more", n)
	}
}

// An instance publishes to the events of the caller and to nothing else.
func TestAnInstanceChecksTheEvents(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	conn := connect(t, ns)
	s, _ := startServer(t, connect(t, ns), ServerConfig{}, testService{})
	const reply, good = "mr.main.e.me.c1", "mr.main.e.me.ev.s.t.1"
	for _, events := range []string{
		"mr.main.e.you.ev.s.t.1", "mr.main.e.me.ev.s.t", "mr.main.e.me.ev.s.t.1.2", "mr.main.e.me.ev.s.*.1", "mr.main.e.me.ev.s.t.",
		"mr.main.e.me.ev..t.1", "mr.main.e.me.c1", "mr.main.e.me.ev.>", "mr.other.e.me.ev.s.t.1", "x", good + "\r\n", "mr.main.i.me.ev.s.t.1",
	} {
		if s.validEvents(events, reply) {
			t.Errorf("%q is taken", events)
		}
	}
	if !s.validEvents(good, reply) {
		t.Error("nothing is taken")
	}
	// The OPEN is dropped.
	frames := make(chan *frame, 10) // two answers at most
	sub, err := conn.nc.Subscribe("mr.main.e.me.>", func(m *nats.Msg) {
		f := &frame{}
		if err := f.decode(m.Data); err != nil {
			t.Error(err)
		}
		frames <- f
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unsubscribe(sub) })
	for _, events := range []string{"mr.main.e.you.ev.s.t.1", good} {
		open := frame{
			kind: kindOpen, seq: 1, flags: FlagHalf | FlagMessage, timeout: 1e7, window: 1000,
			method: []byte("/grpc.testing.TestService/EmptyCall"), events: []byte(events),
		}
		if err := conn.publish("mr.main.rpc.test._.EmptyCall", reply, open.appendTo(nil)); err != nil {
			t.Fatal(err)
		}
	}
	if f := <-frames; frameWord(f) != "END1+accept+message" {
		t.Errorf("got %s", frameWord(f))
	}
	if err := flush(within(t), conn.nc); err != nil || len(frames) != 0 {
		t.Errorf("%d frames more, %v", len(frames), err)
	}
}

// A caller that grants a window, and then neither reads nor exists, does not keep
// the handler of a resumable call waiting, but that of any other.
func TestACallGoesOnWithoutItsCaller(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"window", "check", "other call"} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ns := startNATS(t)
				ended := make(chan error, 1) // one handler
				startServer(t, connect(t, ns), ServerConfig{}, outputService{output: func(_ *outputRequest, s outputServer) (err error) {
					defer func() { ended <- err }()
					if reason == "check" {
						time.Sleep(12 * time.Second)
						return s.Context().Err()
					}
					for i := 0; i < 100 && err == nil; i++ {
						err = s.Send(text(strings.Repeat("a", 10_000)))
					}
					return err
				}})
				log := newMemoryLog(t, connect(t, ns))
				dialer := &faultDialer{ns: ns}
				client := startClient(t, connectThrough(t, dialer), ClientConfig{})
				var opts []grpc.CallOption
				if reason != "other call" {
					opts = append(opts, Resumable(EventsKey{"s", "t", 1}, nil))
				}
				stream, err := grpc_testing.NewTestServiceClient(client.Pool("test")).StreamingOutputCall(within(t), &outputRequest{}, opts...)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond) // it is accepted
				dialer.cut(true)
				_, err = hear(stream)
				lost := ReasonGoesOn
				if len(opts) == 0 {
					lost = ReasonFrameLost
				}
				wantReason(t, err, codes.Unavailable, lost)
				began := time.Now()
				err = <-ended
				took := time.Since(began)
				synctest.Wait()
				frames := log.frames(t)
				switch reason {
				case "window":
					if err != nil || took > windowPatience || !strings.HasSuffix(frames, "DATA100 END101") {
						t.Errorf("ended after %v with %v: %s", took, err, frames)
					}
				case "check":
					if err != nil || frames != "END2+first" {
						t.Errorf("ended with %v: %s", err, frames)
					}
				default:
					if err == nil || frames != "" {
						t.Errorf("ended with %v: %s", err, frames)
					}
				}
			})
		})
	}
}

// The deadline and CANCEL end a call without a caller as any other.
func TestTheEndOfACallWithoutACaller(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"deadline", "cancel"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ns := startNATS(t)
				service := newWaitService()
				s, _ := startServer(t, connect(t, ns), ServerConfig{}, service)
				log := newMemoryLog(t, connect(t, ns))
				dialer := &faultDialer{ns: ns}
				client := startClient(t, connectThrough(t, dialer), ClientConfig{})
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				resumable(t, client, ctx, 1, nil)
				<-service.Started
				synctest.Wait()
				dialer.cut(true)
				time.Sleep(11 * time.Second)
				if len(service.Ended) != 0 {
					t.Fatalf("the handler ended with %v", <-service.Ended)
				}
				want := context.DeadlineExceeded
				if by == "cancel" {
					want = context.Canceled
					other := startClient(t, connect(t, ns), ClientConfig{})
					other.CancelEvents("mr.main.i.x.open") // is not the address of a call
					other.CancelEvents(s.snapshot()[0].ctl)
				}
				if err := <-service.Ended; err != want {
					t.Errorf("the handler ended with %v", err)
				}
				synctest.Wait()
				if got := log.frames(t); got != "END2+first" {
					t.Errorf("events %s", got)
				}
			})
		})
	}
}

// A call whose request is not complete has nothing to go on with.
func TestAnIncompleteRequestDoesNotGoOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		s, _ := startServer(t, connect(t, ns), ServerConfig{}, testService{})
		newMemoryLog(t, connect(t, ns))
		dialer := &faultDialer{ns: ns}
		client := startClient(t, connectThrough(t, dialer), ClientConfig{})
		if _, err := grpc_testing.NewTestServiceClient(client.Pool("test")).FullDuplexCall(within(t), Resumable(EventsKey{"s", "t", 1}, nil)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		dialer.cut(true)
		time.Sleep(11 * time.Second)
		if n := len(s.snapshot()); n != 0 {
			t.Errorf("%d calls run", n)
		}
	})
}

// A client whose context ends cancels, one that stops does not.
func TestACancelIsStillACancel(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"context", "deadline", "stop", "gap"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			ns := startNATS(t)
			w := newRawWorker(t, connect(t, ns), "test")
			c := NewClient(connect(t, ns), ClientConfig{})
			stop := actor(t, c.Ready(), c.Run)
			ctx, cancel := context.WithCancel(within(t))
			defer cancel()
			if by == "deadline" {
				ctx, cancel = context.WithTimeout(ctx, 20*time.Millisecond)
				defer cancel()
			}
			stream := resumable(t, c, ctx, 1, nil)
			m := <-w.opens
			accept := w.accept(7)
			w.send(m, accept)
			var flags uint32
			switch by {
			case "context":
				cancel()
			case "stop":
				call := c.snapshot()[0]
				eventually(t, func() bool { return accepted(call) })
				flags = FlagDetach
				stop()
			case "gap":
				flags = FlagDetach
				w.send(m, response(t, 3, 1))
			}
			if got := w.wantFrame(busv1.Frame_KIND_CANCEL).GetFlags(); got != flags {
				t.Errorf("flags %d, want %d", got, flags)
			}
			_, err := stream.Recv()
			if err == nil {
				t.Error("the call goes on")
			}
			if by == "stop" {
				return
			}
			// What comes afterwards is answered in the same way, whether it is
			// among the events or not.
			events := &nats.Msg{Reply: "mr.main.e." + c.ID() + ".ev.s.t.1"}
			for _, to := range []*nats.Msg{m, events} {
				late := response(t, 4, 1)
				late.Ctl = accept.GetCtl()
				w.send(to, late)
				if got := w.wantFrame(busv1.Frame_KIND_CANCEL).GetFlags(); got != flags {
					t.Errorf("flags %d later, want %d", got, flags)
				}
			}
		})
	}
}

// A caller that comes back says to its calls that they go on without it, as it
// does not know them any more.
func TestTheCallerOfAResumableCallComesBack(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	service := newWaitService()
	s, _ := startServer(t, connect(t, ns), ServerConfig{}, service)
	newMemoryLog(t, connect(t, ns))
	dialer := &faultDialer{ns: ns}
	c := startClient(t, connectThrough(t, dialer), ClientConfig{})
	stream := resumable(t, c, within(t), 1, nil)
	<-service.Started
	eventually(t, func() bool { calls := c.snapshot(); return len(calls) == 1 && accepted(calls[0]) })
	call := s.snapshot()[0]
	dialer.cut(false)
	_, err := stream.Recv()
	wantReason(t, err, codes.Unavailable, ReasonGoesOn)
	eventually(t, call.detached.Load)
	call.askCaller() // is nothing
	if len(service.Ended) != 0 {
		t.Error("the handler has ended")
	}
	c.mu.Lock()
	left := len(c.left)
	c.mu.Unlock()
	if left != 2 || len(c.snapshot()) != 0 {
		t.Errorf("the client remembers %d tokens and %d calls", left, len(c.snapshot()))
	}
	c.CancelEvents(call.ctl)
	if err := <-service.Ended; err != context.Canceled {
		t.Errorf("the handler ended with %v", err)
	}
	c.forget(time.Now().Add(time.Hour))
	if len(c.left) != 0 {
		t.Error("the client remembers the call for ever")
	}
}

// An OPEN that is offered again is the same call, so it names the same events.
func TestAnOpenThatIsRepeatedNamesTheSameEvents(t *testing.T) {
	t.Parallel()
	w, c, _ := rawPair(t, ClientConfig{})
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	resumable(t, c, ctx, 3, nil)
	want := "mr.main.e." + c.ID() + ".ev.s.t.3"
	for attempt := range uint32(4) {
		m := <-w.opens
		f := &busv1.Frame{}
		if err := proto.Unmarshal(m.Data, f); err != nil {
			t.Fatal(err)
		}
		if f.GetAttempt() != attempt || f.GetEvents() != want {
			t.Errorf("attempt %d names %q, want %q", f.GetAttempt(), f.GetEvents(), want)
		}
		w.send(m, &busv1.Frame{Kind: busv1.Frame_KIND_BUSY, Instance: w.id})
	}
}

// An instance whose call goes on without its caller sends it nothing: a caller
// that came back would cancel what it does not know.
func TestACallWithoutACallerIsSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		large := strings.Repeat("x", 1000)
		startServer(t, connect(t, ns), ServerConfig{EventBytes: 500}, outputService{output: func(req *outputRequest, s outputServer) error {
			time.Sleep(100 * time.Millisecond)
			if len(req.GetResponseParameters()) > 0 {
				if err := s.SendHeader(nil); err != nil {
					t.Error(err)
				}
				say(t, s, "a")
				say(t, s, large) // has no room among the events
				say(t, s, "b")
				time.Sleep(time.Minute)
			}
			return nil
		}})
		conn := connect(t, ns)
		var mu sync.Mutex
		got := make(map[string][]string) // by the end of the subject
		sub, err := conn.nc.Subscribe("mr.main.e.me.>", func(m *nats.Msg) {
			var f frame
			if err := f.decode(m.Data); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			token := strings.TrimPrefix(m.Subject, "mr.main.e.me.")
			got[token] = append(got[token], frameWord(&f))
			if f.kind == kindAccept {
				leave := frame{kind: kindCancel, flags: FlagDetach}
				if err := conn.publish(string(f.ctl), "", leave.appendTo(nil)); err != nil {
					t.Error(err)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unsubscribe(sub) })
		for name, req := range map[string]*outputRequest{"1": {}, "2": {ResponseParameters: sizes(1)}} {
			data, err := proto.Marshal(req)
			if err != nil {
				t.Fatal(err)
			}
			open := frame{
				kind: kindOpen, seq: 1, flags: FlagHalf | FlagMessage, timeout: 1e9, window: 1000, data: data,
				method: []byte(grpc_testing.TestService_StreamingOutputCall_FullMethodName), events: []byte("mr.main.e.me.ev.s.t." + name),
			}
			if err := conn.publish("mr.main.rpc.test._.StreamingOutputCall", "mr.main.e.me.c"+name, open.appendTo(nil)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		for token, want := range map[string]string{
			"c1": "ACCEPT1", "ev.s.t.1": "END2+first",
			"c2": "ACCEPT1", "ev.s.t.2": "DATA3+first DATA5 END6",
		} {
			if frames := strings.Join(got[token], " "); frames != want {
				t.Errorf("%s got %q, want %q", token, frames, want)
			}
		}
	})
}

func accepted(call *clientCall) bool {
	yes, _ := call.isOut()
	return yes
}
