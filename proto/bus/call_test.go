package bus

import (
	"context"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

func wantReason(t *testing.T, err error, code codes.Code, reason string) {
	t.Helper()
	wantCode(t, err, code)
	if got := Reason(err); got != reason {
		t.Errorf("reason %q (%v), want %q", got, err, reason)
	}
}

// wiretap counts the frames on the bus.
type wiretap struct {
	mu     sync.Mutex
	frames []tapped
}

type tapped struct {
	subject string
	frame   *busv1.Frame
}

// tap listens to frames of the kinds of subjects named: "rpc", "e" or "i". One
// subscription for all keeps them in order.
func tap(t *testing.T, conn *Conn, kinds ...string) *wiretap {
	t.Helper()
	w := &wiretap{}
	sub, err := conn.nc.Subscribe(conn.prefix+">", func(m *nats.Msg) {
		kind, _, _ := strings.Cut(strings.TrimPrefix(m.Subject, conn.prefix), ".")
		if !slices.Contains(kinds, kind) {
			return
		}
		f := &busv1.Frame{}
		if err := proto.Unmarshal(m.Data, f); err != nil {
			t.Errorf("frame on %s: %v", m.Subject, err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.frames = append(w.frames, tapped{m.Subject, f})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unsubscribe(sub) })
	if err := flush(within(t), conn.nc); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *wiretap) take() []tapped {
	w.mu.Lock()
	defer w.mu.Unlock()
	frames := w.frames
	w.frames = nil
	return frames
}

func (w *wiretap) kinds() string {
	var b strings.Builder
	for _, f := range w.take() {
		b.WriteString(strings.TrimPrefix(f.frame.GetKind().String(), "KIND_"))
		if f.frame.GetFlags()&FlagAccepted != 0 {
			b.WriteString("+ACCEPT")
		}
		b.WriteByte(' ')
	}
	return strings.TrimSpace(b.String())
}

func TestAShortCallIsOneMessageEachWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		startServer(t, connect(t, ns), ServerConfig{}, testService{})
		c := startClient(t, connect(t, ns), ClientConfig{})
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		w := tap(t, connect(t, ns), "rpc", "e", "i")

		must[*grpc_testing.Empty](t)(client.EmptyCall(within(t), &grpc_testing.Empty{}))
		synctest.Wait()
		if got := w.kinds(); got != "OPEN END+ACCEPT" {
			t.Errorf("unary: %s", got)
		}
		recv := func(n int32, want string) {
			t.Helper()
			stream, err := client.StreamingOutputCall(within(t), &grpc_testing.StreamingOutputCallRequest{
				ResponseParameters: sizes(make([]int32, n)...),
			})
			for err == nil {
				_, err = stream.Recv()
			}
			if err != io.EOF {
				t.Error(err)
			}
			time.Sleep(time.Second)
			if got := w.kinds(); got != want {
				t.Errorf("stream of %d: %s, want %s", n, got, want)
			}
		}
		recv(0, "OPEN END+ACCEPT")
		recv(1, "OPEN END+ACCEPT")
		recv(3, "OPEN DATA+ACCEPT DATA DATA END")
	})
}

// A message that is not the outcome does not wait for it.
func TestSendNow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		var sent time.Time // read when the call is over
		startServer(t, connect(t, ns), ServerConfig{}, outputService{output: func(_ *outputRequest, s outputServer) error {
			SendNow(s.Context())
			say(t, s, "a")
			sent = time.Now()
			time.Sleep(holdDelay / 2)
			return nil
		}})
		c := startClient(t, connect(t, ns), ClientConfig{})
		w := tap(t, connect(t, ns), "rpc", "e", "i")
		stream := must[grpc.ServerStreamingClient[outputResponse]](t)(
			grpc_testing.NewTestServiceClient(c.Pool("test")).StreamingOutputCall(within(t), &outputRequest{}))
		must[*outputResponse](t)(stream.Recv())
		heard := time.Now()
		if _, err := stream.Recv(); err != io.EOF {
			t.Error(err)
		}
		if !heard.Equal(sent) {
			t.Errorf("it was heard %v after it was sent", heard.Sub(sent))
		}
		synctest.Wait()
		if got := w.kinds(); got != "OPEN DATA+ACCEPT END" {
			t.Errorf("frames %s", got)
		}
	})
	SendNow(t.Context()) // outside of a call
}

func TestASlowCallIsAcceptedBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		startServer(t, connect(t, ns), ServerConfig{}, funcService{Unary: func(context.Context, *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			time.Sleep(time.Minute + 100*time.Millisecond) // not at a tick of the server
			return &grpc_testing.SimpleResponse{}, nil
		}})
		c := startClient(t, connect(t, ns), ClientConfig{})
		w := tap(t, connect(t, ns), "rpc", "e", "i")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		must[*grpc_testing.SimpleResponse](t)(grpc_testing.NewTestServiceClient(c.Pool("test")).UnaryCall(ctx, &grpc_testing.SimpleRequest{}))
		synctest.Wait()
		kinds := w.kinds()
		if !strings.HasPrefix(kinds, "OPEN ACCEPT ") || !strings.HasSuffix(kinds, " END") {
			t.Errorf("frames %s", kinds)
		}
	})
}

func TestACallWithoutADeadlineGetsOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		service := newWaitService()
		startServer(t, connect(t, ns), ServerConfig{}, service)
		c := startClient(t, connect(t, ns), ClientConfig{})
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		began := time.Now()
		_, err := client.EmptyCall(context.Background(), &grpc_testing.Empty{})
		wantCode(t, err, codes.DeadlineExceeded)
		if took := time.Since(began).Round(time.Second); took != defaultTimeout {
			t.Errorf("took %v", took)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Hour)
		defer cancel()
		began = time.Now()
		stream, err := client.StreamingOutputCall(ctx, &grpc_testing.StreamingOutputCallRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		wantCode(t, err, codes.DeadlineExceeded)
		if took := time.Since(began).Round(time.Second); took != maxTimeout {
			t.Errorf("took %v", took)
		}
	})
}

func TestNoResponders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		c := startClient(t, connect(t, ns), ClientConfig{Known: func(pool string) bool { return pool == "known" }})
		call := func(cc grpc.ClientConnInterface, opts ...grpc.CallOption) (time.Duration, error) {
			began := time.Now()
			_, err := grpc_testing.NewTestServiceClient(cc).EmptyCall(within(t), &grpc_testing.Empty{}, opts...)
			return time.Since(began), err
		}
		took, err := call(c.Pool("nobody"))
		wantReason(t, err, codes.Unavailable, ReasonNoResponders)
		if took != 0 {
			t.Errorf("took %v", took)
		}
		took, err = call(c.Instance("nobody", "nobody"))
		wantReason(t, err, codes.Unavailable, ReasonNoResponders)
		if took != 0 {
			t.Errorf("took %v", took)
		}
		// A pool that should be there gets a moment, and no more.
		took, err = call(c.Pool("known"))
		wantReason(t, err, codes.Unavailable, ReasonNoResponders)
		if took != noResponderRetry {
			t.Errorf("took %v", took)
		}
		go func() {
			time.Sleep(20 * time.Millisecond)
			s := NewServer(connect(t, ns), ServerConfig{Pool: "known"})
			grpc_testing.RegisterTestServiceServer(s, testService{})
			actor(t, s.Ready(), s.Run)
		}()
		if _, err := call(c.Pool("known")); err != nil {
			t.Errorf("the pool came within the moment: %v", err)
		}
		// Whoever says so waits.
		go func() {
			time.Sleep(3 * time.Second)
			s := NewServer(connect(t, ns), ServerConfig{Pool: "late"})
			grpc_testing.RegisterTestServiceServer(s, testService{})
			actor(t, s.Ready(), s.Run)
		}()
		if took, err := call(c.Pool("late"), grpc.WaitForReady(true)); err != nil || took < 3*time.Second {
			t.Errorf("took %v, %v", took, err)
		}
	})
}

func TestBusyInstancesAreLeftAlone(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	service := newWaitService()
	full, _ := startServer(t, connect(t, ns), ServerConfig{Slots: 1}, service)
	c := startClient(t, connect(t, ns), ClientConfig{WaitBudget: 20 * time.Second})
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	direct := grpc_testing.NewTestServiceClient(c.Instance("test", full.Instance()))
	blocked := make(chan error, 1)
	go func() {
		_, err := direct.EmptyCall(ctx, &grpc_testing.Empty{})
		blocked <- err
	}()
	<-service.Started

	startServer(t, connect(t, ns), ServerConfig{}, testService{})
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	for range 50 {
		must[*grpc_testing.Empty](t)(client.EmptyCall(within(t), &grpc_testing.Empty{}))
	}
	cancel()
	wantCode(t, <-blocked, codes.Canceled)
}

func TestOverload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		service := newWaitService()
		startServer(t, connect(t, ns), ServerConfig{Slots: 1}, service)
		c := startClient(t, connect(t, ns), ClientConfig{})
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		ctx, cancel := context.WithCancel(within(t))
		blocked := make(chan error, 1)
		go func() {
			_, err := client.EmptyCall(ctx, &grpc_testing.Empty{})
			blocked <- err
		}()
		<-service.Started
		w := tap(t, connect(t, ns), "rpc")
		began := time.Now()
		_, err := client.EmptyCall(within(t), &grpc_testing.Empty{})
		wantReason(t, err, codes.ResourceExhausted, ReasonOverloaded)
		if took := time.Since(began); took != 500*time.Millisecond {
			t.Errorf("took %v", took)
		}
		synctest.Wait()
		pushes := w.take()
		for i, p := range pushes {
			if p.frame.GetAttempt() != uint32(i) {
				t.Errorf("push %d says attempt %d", i, p.frame.GetAttempt())
			}
			if i > 0 && p.frame.GetTimeoutUs() > pushes[i-1].frame.GetTimeoutUs() {
				t.Errorf("push %d has more time left than the one before", i)
			}
		}
		if n := len(pushes); n < 8 || n > 30 {
			t.Errorf("%d pushes", n)
		}
		// The budget is a quarter of a short deadline.
		short, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer stop()
		began = time.Now()
		_, err = client.EmptyCall(short, &grpc_testing.Empty{})
		wantReason(t, err, codes.ResourceExhausted, ReasonOverloaded)
		if took := time.Since(began); took != 25*time.Millisecond {
			t.Errorf("took %v", took)
		}
		// A slot that becomes free in time is found.
		go func() {
			time.Sleep(200 * time.Millisecond)
			cancel()
		}()
		second, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		_, err = client.EmptyCall(second, &grpc_testing.Empty{})
		wantCode(t, err, codes.DeadlineExceeded) // it ran: the service waits for the end
		wantCode(t, <-blocked, codes.Canceled)
	})
}

func TestTwoInstancesShare(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	var counts [2]atomic.Int32
	for i := range counts {
		startServer(t, connect(t, ns), ServerConfig{}, funcService{Unary: func(context.Context, *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			counts[i].Add(1)
			return &grpc_testing.SimpleResponse{}, nil
		}})
	}
	c := startClient(t, connect(t, ns), ClientConfig{})
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	const calls = 200
	for range calls {
		must[*grpc_testing.SimpleResponse](t)(client.UnaryCall(within(t), &grpc_testing.SimpleRequest{}))
	}
	a, b := counts[0].Load(), counts[1].Load()
	// The choice is random: fewer than 20 of 200 is no accident.
	if a+b != calls || min(a, b) < 20 {
		t.Errorf("calls went %d to %d", a, b)
	}
}

func TestPanicBecomesInternal(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	log := newLog(t)
	startServer(t, connect(t, ns), ServerConfig{Logger: log.logger()}, funcService{Unary: func(_ context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
		if req.GetFillUsername() {
			panic("the secret")
		}
		if req.GetFillOauthScope() {
			runtime.Goexit()
		}
		return &grpc_testing.SimpleResponse{}, nil
	}})
	c := startClient(t, connect(t, ns), ClientConfig{})
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	_, err := client.UnaryCall(within(t), &grpc_testing.SimpleRequest{FillUsername: true})
	wantCode(t, err, codes.Internal)
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error tells what is inside: %v", err)
	}
	if text := log.String(); !strings.Contains(text, "the secret") || !strings.Contains(text, "call_test.go") {
		t.Errorf("the log has no stack: %s", text)
	}
	// A handler that ends its goroutine is no better.
	_, err = client.UnaryCall(within(t), &grpc_testing.SimpleRequest{FillOauthScope: true})
	wantCode(t, err, codes.Internal)
	must[*grpc_testing.SimpleResponse](t)(client.UnaryCall(within(t), &grpc_testing.SimpleRequest{}))
}

func TestPeers(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	var from string
	s, _ := startServer(t, connect(t, ns), ServerConfig{}, funcService{Unary: func(ctx context.Context, _ *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
		if p, ok := peer.FromContext(ctx); ok {
			from = p.Addr.String()
		}
		return &grpc_testing.SimpleResponse{}, nil
	}})
	c := startClient(t, connect(t, ns), ClientConfig{})
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	var p peer.Peer
	must[*grpc_testing.SimpleResponse](t)(client.UnaryCall(within(t), &grpc_testing.SimpleRequest{}, grpc.Peer(&p)))
	if p.Addr == nil || p.Addr.String() != s.Instance() || from != c.ID() {
		t.Errorf("peers %v and %q", p.Addr, from)
	}
}

// What cannot be marshalled becomes an error of its own, and the call ends.
func TestBrokenText(t *testing.T) {
	t.Parallel()
	client, _, _ := pair(t, funcService{Unary: func(_ context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
		if req.GetFillUsername() {
			return &grpc_testing.SimpleResponse{Username: "\xff"}, nil
		}
		return nil, status.Error(codes.NotFound, "\xff")
	}})
	_, err := client.UnaryCall(within(t), &grpc_testing.SimpleRequest{FillUsername: true})
	wantCode(t, err, codes.Internal)
	_, err = client.UnaryCall(within(t), &grpc_testing.SimpleRequest{})
	wantCode(t, err, codes.NotFound)
}

func TestRefusedCallOptions(t *testing.T) {
	t.Parallel()
	client, c, _ := pair(t, testService{})
	_, err := client.EmptyCall(within(t), &grpc_testing.Empty{}, grpc.UseCompressor("gzip"))
	wantCode(t, err, codes.Unimplemented)
	_, err = client.StreamingInputCall(within(t), grpc.CallAuthority("somebody"))
	wantCode(t, err, codes.Unimplemented)
	// What speaks to an interceptor is none of our business.
	must[*grpc_testing.Empty](t)(client.EmptyCall(within(t), &grpc_testing.Empty{}, struct{ grpc.EmptyCallOption }{}))

	for _, cc := range []grpc.ClientConnInterface{c.Pool("a.>"), c.Pool(""), c.Instance("test", "*")} {
		_, err = grpc_testing.NewTestServiceClient(cc).EmptyCall(within(t), &grpc_testing.Empty{})
		wantCode(t, err, codes.InvalidArgument)
	}
	for _, method := range []string{"", "/", "a/b", "/a/", "/a.B/c.d", "/a.B/*"} {
		err := c.Pool("test").Invoke(within(t), method, &grpc_testing.Empty{}, &grpc_testing.Empty{})
		wantCode(t, err, codes.Unimplemented)
	}
	err = c.Pool("test").Invoke(within(t), "/no.Such/Thing", &grpc_testing.Empty{}, &grpc_testing.Empty{})
	wantCode(t, err, codes.Unimplemented)
	if len(c.snapshot()) != 0 {
		t.Errorf("%d calls are left", len(c.snapshot()))
	}
}

func TestDrainLetsCallsFinish(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		w := startWatcher(t, connect(t, ns), WatcherConfig{})
		s, stop := startServer(t, connect(t, ns), ServerConfig{Grace: 10 * time.Second}, funcService{Unary: func(context.Context, *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			time.Sleep(5 * time.Second)
			return &grpc_testing.SimpleResponse{Username: "done"}, nil
		}})
		c := startClient(t, connect(t, ns), ClientConfig{})
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		result := make(chan error, 1)
		go func() {
			_, err := client.UnaryCall(within(t), &grpc_testing.SimpleRequest{})
			result <- err
		}()
		time.Sleep(time.Second)
		stopped := make(chan struct{})
		go func() { defer close(stopped); stop() }()
		synctest.Wait()
		if m := w.Members(); len(m) != 1 || !m[0].Draining {
			t.Errorf("members %+v", m)
		}
		// A call that arrives now finds another instance as soon as there is one.
		go func() {
			_, err := client.EmptyCall(within(t), &grpc_testing.Empty{})
			result <- err
		}()
		time.Sleep(100 * time.Millisecond)
		other, _ := startServer(t, connect(t, ns), ServerConfig{}, testService{})
		if err := <-result; err != nil {
			t.Errorf("during the drain: %v", err)
		}
		_, err := grpc_testing.NewTestServiceClient(c.Instance("test", s.Instance())).EmptyCall(within(t), &grpc_testing.Empty{})
		wantReason(t, err, codes.ResourceExhausted, ReasonOverloaded)
		if err := <-result; err != nil {
			t.Errorf("the call that ran: %v", err)
		}
		<-stopped
		synctest.Wait()
		if m := w.Members(); len(m) != 1 || m[0].Instance != other.Instance() {
			t.Errorf("members %+v", m)
		}
	})
}

func TestDrainEndsWhatTakesTooLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		service := newWaitService()
		_, stop := startServer(t, connect(t, ns), ServerConfig{Grace: 2 * time.Second}, service)
		c := startClient(t, connect(t, ns), ClientConfig{})
		stream, err := grpc_testing.NewTestServiceClient(c.Pool("test")).StreamingOutputCall(within(t), &grpc_testing.StreamingOutputCallRequest{})
		if err != nil {
			t.Fatal(err)
		}
		<-service.Started
		began := time.Now()
		stop()
		_, err = stream.Recv()
		wantReason(t, err, codes.Unavailable, ReasonDraining)
		if err := <-service.Ended; err != context.Canceled {
			t.Errorf("the handler ended with %v", err)
		}
		if took := time.Since(began); took < 2*time.Second || took > 3*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestRunReportsAHandlerThatIgnoresItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		release := make(chan struct{})
		s := NewServer(connect(t, ns), ServerConfig{Pool: "test", Grace: time.Second})
		grpc_testing.RegisterTestServiceServer(s, funcService{Unary: func(context.Context, *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			<-release
			return nil, nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		<-s.Ready()
		c := startClient(t, connect(t, ns), ClientConfig{})
		go func() {
			time.Sleep(time.Second)
			cancel()
		}()
		_, err := grpc_testing.NewTestServiceClient(c.Pool("test")).UnaryCall(within(t), &grpc_testing.SimpleRequest{})
		wantReason(t, err, codes.Unavailable, ReasonDraining)
		if err := <-done; err == nil || !strings.Contains(err.Error(), "1 handlers") {
			t.Errorf("Run: %v", err)
		}
		close(release)
	})
}

func TestRunRefusesBadConfiguration(t *testing.T) {
	t.Parallel()
	conn := connect(t, startNATS(t))
	for name, s := range map[string]*Server{
		"no pool":  NewServer(conn, ServerConfig{}),
		"bad pool": NewServer(conn, ServerConfig{Pool: "a.b"}),
		"bad id":   NewServer(conn, ServerConfig{Pool: "a", ID: ">"}),
		"twice": func() *Server {
			s := NewServer(conn, ServerConfig{Pool: "a"})
			grpc_testing.RegisterTestServiceServer(s, testService{})
			grpc_testing.RegisterTestServiceServer(s, testService{})
			return s
		}(),
		"wrong type": func() *Server {
			s := NewServer(conn, ServerConfig{Pool: "a"})
			s.RegisterService(&grpc_testing.TestService_ServiceDesc, 1)
			return s
		}(),
	} {
		if err := s.Run(within(t)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := NewClient(conn, ClientConfig{ID: "a b"}).Run(within(t)); err == nil {
		t.Error("client id: accepted")
	}
	if _, err := Connect(within(t), ConnConfig{}); err == nil {
		t.Error("no server: accepted")
	}
	if _, err := Connect(within(t), ConnConfig{URL: "nats://127.0.0.1:1", Tenant: "a.b"}); err == nil {
		t.Error("tenant: accepted")
	}
}
