package bus

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

// rawWorker is a worker whose frames the test writes.
type rawWorker struct {
	t    *testing.T
	conn *Conn
	id   string
	// opens and frames carry what arrives. The callbacks send; larger than any
	// test fills them.
	opens  chan *nats.Msg
	frames chan *busv1.Frame
}

func newRawWorker(t *testing.T, conn *Conn, pool string) *rawWorker {
	t.Helper()
	w := &rawWorker{t: t, conn: conn, id: newID(), opens: make(chan *nats.Msg, 100), frames: make(chan *busv1.Frame, 100)}
	own, err := conn.nc.Subscribe(conn.prefix+"i."+w.id+".*", func(m *nats.Msg) {
		f := &busv1.Frame{}
		if err := proto.Unmarshal(m.Data, f); err != nil {
			t.Error(err)
		}
		w.frames <- f
	})
	if err != nil {
		t.Fatal(err)
	}
	open, err := conn.nc.QueueSubscribe(conn.prefix+"rpc."+pool+".*.*", "w", func(m *nats.Msg) { w.opens <- m })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unsubscribe(own); unsubscribe(open) })
	if err := flush(within(t), conn.nc); err != nil {
		t.Fatal(err)
	}
	return w
}

// accept is the ACCEPT of a call with number n.
func (w *rawWorker) accept(n uint64) *busv1.Frame {
	return &busv1.Frame{
		Kind: busv1.Frame_KIND_ACCEPT, Seq: 1, Window: defaultWindow, Instance: w.id, Epoch: 1,
		Ctl: callSubject(w.conn.prefix+"i."+w.id+".", n),
	}
}

func (w *rawWorker) send(to *nats.Msg, frames ...*busv1.Frame) {
	w.t.Helper()
	for _, f := range frames {
		b, err := proto.Marshal(f)
		if err != nil {
			w.t.Fatal(err)
		}
		if err := w.conn.nc.Publish(to.Reply, b); err != nil {
			w.t.Fatal(err)
		}
	}
}

// response is the DATA frame of a response with n bytes.
func response(t *testing.T, seq uint64, n int) *busv1.Frame {
	t.Helper()
	b, err := proto.Marshal(&grpc_testing.StreamingOutputCallResponse{Payload: &grpc_testing.Payload{Body: make([]byte, n)}})
	if err != nil {
		t.Fatal(err)
	}
	return &busv1.Frame{Kind: busv1.Frame_KIND_DATA, Seq: seq, Data: b}
}

func rawPair(t *testing.T, cfg ClientConfig) (*rawWorker, *Client, grpc_testing.TestServiceClient) {
	t.Helper()
	ns := startNATS(t)
	w := newRawWorker(t, connect(t, ns), "test")
	c := startClient(t, connect(t, ns), cfg)
	return w, c, grpc_testing.NewTestServiceClient(c.Pool("test"))
}

func (w *rawWorker) wantFrame(kind busv1.Frame_Kind) *busv1.Frame {
	w.t.Helper()
	select {
	case f := <-w.frames:
		if f.GetKind() != kind {
			w.t.Fatalf("got %v, want %v", f.GetKind(), kind)
		}
		return f
	case <-within(w.t).Done():
		w.t.Fatalf("no frame came, want %v", kind)
		return nil
	}
}

func TestOpenSaysEverything(t *testing.T) {
	t.Parallel()
	w, c, client := rawPair(t, ClientConfig{Window: 1000, AcceptBudget: 2 * time.Second})
	ctx, cancel := context.WithTimeout(within(t), 10*time.Second)
	defer cancel()
	go func() { _, _ = client.EmptyCall(ctx, &grpc_testing.Empty{}) }()
	m := <-w.opens
	f := &busv1.Frame{}
	if err := proto.Unmarshal(m.Data, f); err != nil {
		t.Fatal(err)
	}
	if m.Subject != "mr.main.rpc.test._.EmptyCall" || m.Reply != callSubject("mr.main.e."+c.ID()+".", c.ids.Load()) {
		t.Errorf("subject %s, reply %s", m.Subject, m.Reply)
	}
	left := time.Duration(f.GetTimeoutUs()) * time.Microsecond
	if f.GetKind() != busv1.Frame_KIND_OPEN || f.GetSeq() != 1 || f.GetMethod() != "/grpc.testing.TestService/EmptyCall" ||
		f.GetFlags() != FlagHalf|FlagMessage || f.GetWindow() != 1000 || f.GetOpenByUs() != 2_000_000 ||
		left <= 0 || left > 10*time.Second {
		t.Errorf("%v", f)
	}
	cancel()
}

func TestCancelBeforeAccept(t *testing.T) {
	t.Parallel()
	w, c, client := rawPair(t, ClientConfig{})
	ctx, cancel := context.WithCancel(within(t))
	done := make(chan error, 1)
	go func() {
		_, err := client.EmptyCall(ctx, &grpc_testing.Empty{})
		done <- err
	}()
	m := <-w.opens
	cancel()
	wantCode(t, <-done, codes.Canceled)
	if n := len(c.snapshot()); n != 0 {
		t.Errorf("%d calls are left", n)
	}
	w.send(m, w.accept(5))
	w.wantFrame(busv1.Frame_KIND_CANCEL)
}

// A call that ends here in the moment in which its ACCEPT is on the way to it,
// found but not told yet, must not leave its handler alone.
func TestCancelMeetsTheAccept(t *testing.T) {
	t.Parallel()
	w, c, client := rawPair(t, ClientConfig{AcceptBudget: time.Minute})
	ctx, cancel := context.WithCancel(within(t))
	done := make(chan error, 1) // one result
	go func() {
		_, err := client.EmptyCall(ctx, &grpc_testing.Empty{})
		done <- err
	}()
	m := <-w.opens
	ended := func(yes bool) {
		for _, call := range c.snapshot() {
			call.mu.Lock()
			call.ended = yes
			call.mu.Unlock()
		}
	}
	ended(true) // as fail leaves it before the call is released
	w.send(m, w.accept(5))
	w.wantFrame(busv1.Frame_KIND_CANCEL)
	ended(false)
	cancel()
	wantCode(t, <-done, codes.Canceled)
}

func TestCancelReachesTheHandlerBeforeItsAccept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newWaitService()
		client, _, s := pair(t, service)
		ctx, cancel := context.WithCancel(within(t))
		done := make(chan error, 1)
		go func() {
			_, err := client.EmptyCall(ctx, &grpc_testing.Empty{})
			done <- err
		}()
		<-service.Started
		cancel() // at the same instant: the ACCEPT comes some milliseconds later
		wantCode(t, <-done, codes.Canceled)
		<-service.Ended
		synctest.Wait()
		if n := len(s.snapshot()); n != 0 {
			t.Errorf("%d calls are left", n)
		}
	})
}

func TestNothingIsDeliveredPastAGap(t *testing.T) {
	t.Parallel()
	w, _, client := rawPair(t, ClientConfig{})
	stream, err := client.StreamingOutputCall(within(t), &grpc_testing.StreamingOutputCallRequest{})
	if err != nil {
		t.Fatal(err)
	}
	m := <-w.opens
	w.send(m, w.accept(1), response(t, 2, 10), response(t, 4, 20), response(t, 5, 30))
	resp, err := stream.Recv()
	if err != nil || len(resp.GetPayload().GetBody()) != 10 {
		t.Errorf("before the gap: %v, %v", resp, err)
	}
	_, err = stream.Recv()
	wantReason(t, err, codes.Unavailable, ReasonFrameLost)
	w.wantFrame(busv1.Frame_KIND_CANCEL)
}

func TestAGapBeforeTheEnd(t *testing.T) {
	t.Parallel()
	w, _, client := rawPair(t, ClientConfig{})
	stream, err := client.StreamingOutputCall(within(t), &grpc_testing.StreamingOutputCallRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.send(<-w.opens, w.accept(1), &busv1.Frame{Kind: busv1.Frame_KIND_END, Seq: 3})
	_, err = stream.Recv()
	wantReason(t, err, codes.Unavailable, ReasonFrameLost)
}

func TestHostileWorkerFrames(t *testing.T) {
	t.Parallel()
	w, c, client := rawPair(t, ClientConfig{})
	for name, tc := range map[string]struct {
		frames func() []*busv1.Frame
		want   codes.Code
	}{
		"data before accept": {func() []*busv1.Frame { return []*busv1.Frame{response(t, 1, 1)} }, codes.Unavailable},
		"control subject elsewhere": {func() []*busv1.Frame {
			f := w.accept(1)
			f.Ctl = "mr.main.rpc.test._.EmptyCall"
			return []*busv1.Frame{f}
		}, codes.Internal},
		"malformed status": {func() []*busv1.Frame {
			return []*busv1.Frame{w.accept(1), {Kind: busv1.Frame_KIND_END, Seq: 2, Status: []byte{0xff}}}
		}, codes.Internal},
		"malformed message": {func() []*busv1.Frame {
			return []*busv1.Frame{w.accept(1), {Kind: busv1.Frame_KIND_END, Seq: 2, Flags: FlagMessage, Data: []byte{0xff}}}
		}, codes.Internal},
		"two messages": {func() []*busv1.Frame {
			return []*busv1.Frame{w.accept(1), response(t, 2, 1), response(t, 3, 1)}
		}, codes.Internal},
		"no message": {func() []*busv1.Frame {
			return []*busv1.Frame{w.accept(1), {Kind: busv1.Frame_KIND_END, Seq: 2}}
		}, codes.Internal},
		"end within a message": {func() []*busv1.Frame {
			f := response(t, 2, 1)
			f.Flags = FlagMore
			return []*busv1.Frame{w.accept(1), f, {Kind: busv1.Frame_KIND_END, Seq: 3}}
		}, codes.Internal},
	} {
		done := make(chan error, 1)
		go func() {
			_, err := client.UnaryCall(within(t), &grpc_testing.SimpleRequest{})
			done <- err
		}()
		w.send(<-w.opens, tc.frames()...)
		err := <-done
		t.Log(name)
		wantCode(t, err, tc.want)
	}
	if n := len(c.snapshot()); n != 0 {
		t.Errorf("%d calls are left", n)
	}
}

func TestAWorkerThatIgnoresTheWindow(t *testing.T) {
	t.Parallel()
	w, _, client := rawPair(t, ClientConfig{Window: 10_000})
	stream, err := client.StreamingOutputCall(within(t), &grpc_testing.StreamingOutputCallRequest{})
	if err != nil {
		t.Fatal(err)
	}
	m := <-w.opens
	w.send(m, w.accept(1))
	for seq := range uint64(20) {
		w.send(m, response(t, seq+2, 1000))
	}
	w.wantFrame(busv1.Frame_KIND_CANCEL)
	for err = nil; err == nil; {
		_, err = stream.Recv()
	}
	wantCode(t, err, codes.Internal)
}

func TestNoAnswerAtAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, c, client := rawPair(t, ClientConfig{})
		began := time.Now()
		_, err := client.EmptyCall(within(t), &grpc_testing.Empty{})
		wantReason(t, err, codes.Unavailable, ReasonNotAccepted)
		if took := time.Since(began); took < time.Second || took > 2*time.Second {
			t.Errorf("took %v", took)
		}
		w.send(<-w.opens, w.accept(1))
		synctest.Wait()
		w.wantFrame(busv1.Frame_KIND_CANCEL)
		if n := len(c.snapshot()); n != 0 {
			t.Errorf("%d calls are left", n)
		}
	})
}

func TestAVanishedWorkerEndsItsCalls(t *testing.T) {
	t.Parallel()
	w, c, client := rawPair(t, ClientConfig{})
	streams := make([]grpc_testing.TestService_StreamingOutputCallClient, 3)
	var opens []*nats.Msg
	for i := range streams {
		var err error
		if streams[i], err = client.StreamingOutputCall(within(t), &grpc_testing.StreamingOutputCallRequest{}); err != nil {
			t.Fatal(err)
		}
		opens = append(opens, <-w.opens)
		accept := w.accept(uint64(i))
		if i == 2 {
			accept.Epoch = 2
		}
		w.send(opens[i], accept)
	}
	// What was sent before the loss still counts, also when it is announced
	// first.
	w.send(opens[0], response(t, 2, 7), &busv1.Frame{Kind: busv1.Frame_KIND_END, Seq: 3})
	if err := flush(within(t), w.conn.nc); err != nil {
		t.Fatal(err)
	}
	c.Lost("another", 0)
	c.Lost(w.id, 1)
	if resp, err := streams[0].Recv(); err != nil || len(resp.GetPayload().GetBody()) != 7 {
		t.Errorf("%v, %v", resp, err)
	}
	if _, err := streams[0].Recv(); err != io.EOF {
		t.Errorf("%v", err)
	}
	_, err := streams[1].Recv()
	wantReason(t, err, codes.Unavailable, ReasonWorkerLost)
	// The newer epoch lives.
	w.send(opens[2], &busv1.Frame{Kind: busv1.Frame_KIND_END, Seq: 2})
	if _, err := streams[2].Recv(); err != io.EOF {
		t.Errorf("%v", err)
	}
}

func TestSendingToAVanishedWorker(t *testing.T) {
	t.Parallel()
	w, _, client := rawPair(t, ClientConfig{})
	stream, err := client.FullDuplexCall(within(t))
	if err != nil {
		t.Fatal(err)
	}
	accept := w.accept(1)
	accept.Ctl = callSubject(w.conn.prefix+"i.nobody.", 1)
	w.send(<-w.opens, accept)
	if err := stream.Send(&grpc_testing.StreamingOutputCallRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	wantReason(t, err, codes.Unavailable, ReasonWorkerLost)
}

// rawOpen opens a call at a real worker.
func rawOpen(t *testing.T, conn *Conn, subject, reply string, change func(*busv1.Frame)) {
	t.Helper()
	f := &busv1.Frame{
		Kind: busv1.Frame_KIND_OPEN, Seq: 1, Flags: FlagHalf | FlagMessage, TimeoutUs: 10_000_000,
		Window: defaultWindow, OpenByUs: 1_000_000, Method: "/grpc.testing.TestService/EmptyCall",
	}
	if change != nil {
		change(f)
	}
	b, err := proto.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.nc.PublishRequest(subject, reply, b); err != nil {
		t.Fatal(err)
	}
}

func TestStaleOpensAreRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		s, _ := startServer(t, connect(t, ns), ServerConfig{}, testService{})
		conn := connect(t, ns)
		w := tap(t, conn, "e")
		open := func(subject string, change func(*busv1.Frame), want string) {
			t.Helper()
			rawOpen(t, conn, conn.prefix+subject, conn.prefix+"e.me.c1", change)
			synctest.Wait()
			if got := w.kinds(); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		pool := "rpc.test._.EmptyCall"
		direct := "i." + s.Instance() + ".open"
		open(pool, nil, "END+ACCEPT")
		open(direct, nil, "END+ACCEPT")
		open(pool, func(f *busv1.Frame) { f.TimeoutUs = 0 }, "END+ACCEPT") // with DeadlineExceeded

		// The process stood still for a while: nobody knows how old this is.
		s.stalled.Store(int64(1500 * time.Millisecond))
		open(pool, nil, "BUSY")
		open(direct, nil, "BUSY")
		open(pool, func(f *busv1.Frame) { f.OpenByUs = 2_000_000 }, "END+ACCEPT")
		// A round trip later everything old has been read.
		time.Sleep(2 * tickEvery)
		open(pool, nil, "END+ACCEPT")
		// Standing still before the tick has noticed.
		s.lastTick.Store(int64(time.Since(s.start) - 5*time.Second))
		open(pool, nil, "BUSY")
	})
}

func TestStaleness(t *testing.T) {
	t.Parallel()
	var s staleness
	now := time.Unix(1000, 0)
	clock := func() time.Time { return now }
	s.init(now)
	step := func(wait time.Duration, pending int) time.Duration {
		now = now.Add(wait)
		age := s.begin(now)
		s.end(clock, pending)
		return age
	}
	if got := step(time.Hour, 0); got != 0 {
		t.Errorf("after a quiet hour: %v", got)
	}
	if got := step(time.Hour, 3); got != 0 {
		t.Errorf("first of a burst: %v", got)
	}
	// Three more wait while each takes a second. None of them can be older
	// than the burst.
	for i, want := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second} {
		if got := step(time.Second, 5); got < want || got > want+time.Second {
			t.Errorf("message %d of the burst: %v", i, got)
		}
	}
	// What is read after the mark came after it, so a busy queue does not look
	// older and older.
	for range 100 {
		if got := step(time.Second, 5); got > 15*time.Second {
			t.Fatalf("a queue of five seconds looks %v old", got)
		}
	}
	step(time.Second, 0)
	if got := step(time.Hour, 0); got != 0 {
		t.Errorf("after the burst: %v", got)
	}
}

func TestHostileCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		s, _ := startServer(t, connect(t, ns), ServerConfig{}, testService{})
		conn := connect(t, ns)
		w := tap(t, conn, "e", "elsewhere")
		pool := conn.prefix + "rpc.test._.EmptyCall"
		for _, reply := range []string{"", conn.prefix + "elsewhere.c1", conn.prefix + "e.me", conn.prefix + "e.me.x", conn.prefix + "e.me.c1.x", "mr.other.e.me.c1"} {
			if reply == "" {
				if err := conn.nc.Publish(pool, nil); err != nil {
					t.Fatal(err)
				}
				continue
			}
			rawOpen(t, conn, pool, reply, nil)
		}
		for _, change := range []func(*busv1.Frame){
			func(f *busv1.Frame) { f.Kind = busv1.Frame_KIND_DATA },
			func(f *busv1.Frame) { f.Seq = 2 },
		} {
			rawOpen(t, conn, pool, conn.prefix+"e.me.c1", change)
		}
		if err := conn.nc.PublishRequest(pool, conn.prefix+"e.me.c1", []byte{0xff}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := w.kinds(); got != "" {
			t.Errorf("answered %s", got)
		}
		if n := len(s.snapshot()); n != 0 {
			t.Errorf("%d calls run", n)
		}
	})
}

func TestACallOfADeadCallerIsCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		service := newWaitService()
		s, _ := startServer(t, connect(t, ns), ServerConfig{}, service)
		conn := connect(t, ns)
		ctx, cancel := context.WithCancel(t.Context())
		c := NewClient(conn, ClientConfig{})
		stopped := make(chan error, 1)
		go func() { stopped <- c.Run(ctx) }()
		done := make(chan error, 1)
		go func() {
			_, err := grpc_testing.NewTestServiceClient(c.Pool("test")).EmptyCall(within(t), &grpc_testing.Empty{})
			done <- err
		}()
		<-service.Started
		time.Sleep(10 * time.Second)
		if n := len(s.snapshot()); n != 1 {
			t.Fatalf("%d calls run", n)
		}
		conn.Close() // as if the process had been killed
		began := time.Now()
		<-service.Ended
		if took := time.Since(began); took > callerCheck {
			t.Errorf("noticed after %v", took)
		}
		cancel()
		wantCode(t, <-done, codes.Unavailable)
		<-stopped
	})
}
