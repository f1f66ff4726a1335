package bus

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/millrace/millrace/proto/localnats"
)

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // never fails
	return b
}

// sumService answers with the hash of the request and sends a large result.
type sumService struct {
	testService
	result []byte
}

func (s sumService) UnaryCall(_ context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	sum := sha256.Sum256(req.GetPayload().GetBody())
	return &grpc_testing.SimpleResponse{Payload: &grpc_testing.Payload{Body: s.result}, Username: string(hexOf(sum[:]))}, nil
}

func (s sumService) StreamingOutputCall(req *grpc_testing.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[grpc_testing.StreamingOutputCallResponse]) error {
	if req.GetPayload() != nil {
		return stream.Send(&grpc_testing.StreamingOutputCallResponse{Payload: &grpc_testing.Payload{Body: s.result}})
	}
	return s.testService.StreamingOutputCall(req, stream)
}

func hexOf(b []byte) []byte {
	const digits = "0123456789abcdef"
	var out []byte
	for _, v := range b {
		out = append(out, digits[v>>4], digits[v&15])
	}
	return out
}

func TestLargeMessages(t *testing.T) {
	t.Parallel()
	up, down := randomBytes(16<<20), randomBytes(64<<20)
	client, _, _ := pair(t, sumService{result: down})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	resp, err := client.UnaryCall(ctx, &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: up}})
	if err != nil {
		t.Fatal(err)
	}
	wantUp := sha256.Sum256(up)
	if resp.GetUsername() != string(hexOf(wantUp[:])) {
		t.Error("the request arrived changed")
	}
	if sha256.Sum256(resp.GetPayload().GetBody()) != sha256.Sum256(down) {
		t.Error("the result arrived changed")
	}
}

func TestMessageLimits(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	s, _ := startServer(t, connect(t, ns), ServerConfig{MaxRecvMsgSize: 1 << 20}, sumService{result: make([]byte, 2<<20)})
	c := startClient(t, connect(t, ns), ClientConfig{MaxRecvMsgSize: 1 << 20})
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	_, err := client.UnaryCall(within(t), &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: make([]byte, 2<<20)}})
	wantCode(t, err, codes.ResourceExhausted)
	stream, err := client.StreamingInputCall(within(t))
	for err == nil {
		err = stream.Send(&grpc_testing.StreamingInputCallRequest{Payload: &grpc_testing.Payload{Body: make([]byte, 2<<20)}})
	}
	if err != io.EOF {
		t.Error(err)
	}
	_, err = stream.CloseAndRecv()
	wantCode(t, err, codes.ResourceExhausted)
	_, err = client.UnaryCall(within(t), &grpc_testing.SimpleRequest{})
	wantCode(t, err, codes.ResourceExhausted)
	output, err := client.StreamingOutputCall(within(t), &grpc_testing.StreamingOutputCallRequest{Payload: &grpc_testing.Payload{}})
	if err == nil {
		_, err = output.Recv()
	}
	wantCode(t, err, codes.ResourceExhausted)
	if n := len(c.snapshot()); n != 0 {
		t.Errorf("%d calls are left", n)
	}
	eventually(t, func() bool { return len(s.snapshot()) == 0 })
}

func TestSmallWindowsAndChunks(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	down := randomBytes(300_000)
	startServer(t, connect(t, ns), ServerConfig{Window: 1, Chunk: 5000}, sumService{result: down})
	c := startClient(t, connect(t, ns), ClientConfig{Window: 100, Chunk: 7000})
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	up := randomBytes(200_000)
	resp := must[*grpc_testing.SimpleResponse](t)(client.UnaryCall(within(t), &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: up}}))
	sum := sha256.Sum256(up)
	if resp.GetUsername() != string(hexOf(sum[:])) || sha256.Sum256(resp.GetPayload().GetBody()) != sha256.Sum256(down) {
		t.Error("something arrived changed")
	}
	stream, err := client.StreamingInputCall(within(t))
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := stream.Send(&grpc_testing.StreamingInputCallRequest{Payload: &grpc_testing.Payload{Body: up[:10]}}); err != nil {
			t.Fatal(err)
		}
	}
	sent := must[*grpc_testing.StreamingInputCallResponse](t)(stream.CloseAndRecv())
	if sent.GetAggregatedPayloadSize() != 1000 {
		t.Errorf("got %d", sent.GetAggregatedPayloadSize())
	}
}

func TestALowPayloadLimit(t *testing.T) {
	t.Parallel()
	ns, err := localnats.Start(localnats.Config{MaxPayload: 4096})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Shutdown)
	startServer(t, connect(t, ns), ServerConfig{}, funcService{Unary: func(ctx context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
		if req.GetFillUsername() {
			if err := grpc.SetTrailer(ctx, metadata.Pairs("large", string(make([]byte, 5000)))); err != nil {
				return nil, err
			}
		}
		return &grpc_testing.SimpleResponse{Payload: req.GetPayload()}, nil
	}})
	c := startClient(t, connect(t, ns), ClientConfig{})
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	resp := must[*grpc_testing.SimpleResponse](t)(client.UnaryCall(within(t), &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: make([]byte, 100_000)}}))
	if len(resp.GetPayload().GetBody()) != 100_000 {
		t.Errorf("got %d bytes", len(resp.GetPayload().GetBody()))
	}
	// Metadata is not cut into pieces.
	ctx := metadata.AppendToOutgoingContext(within(t), "large", string(make([]byte, 5000)))
	_, err = client.UnaryCall(ctx, &grpc_testing.SimpleRequest{})
	wantCode(t, err, codes.ResourceExhausted)
	_, err = client.UnaryCall(within(t), &grpc_testing.SimpleRequest{FillUsername: true})
	wantCode(t, err, codes.ResourceExhausted)
}

// countingService streams for ever and counts.
type countingService struct {
	testService
	mu   sync.Mutex
	sent int
}

func (s *countingService) StreamingOutputCall(req *grpc_testing.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[grpc_testing.StreamingOutputCallResponse]) error {
	for {
		if err := stream.Send(&grpc_testing.StreamingOutputCallResponse{Payload: &grpc_testing.Payload{Body: make([]byte, 10_000)}}); err != nil {
			return err
		}
		s.mu.Lock()
		s.sent++
		s.mu.Unlock()
	}
}

func (s *countingService) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

func TestAStalledReaderHarmsNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := &countingService{}
		client, c, _ := pair(t, service)
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := client.StreamingOutputCall(ctx, &grpc_testing.StreamingOutputCallRequest{})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		stalled := service.count()
		if stalled == 0 || stalled > defaultWindow/10_000+2 {
			t.Errorf("%d messages went to a reader that reads none", stalled)
		}
		for range 100 {
			must[*grpc_testing.SimpleResponse](t)(client.UnaryCall(t.Context(), &grpc_testing.SimpleRequest{ResponseSize: 1000}))
		}
		if got := service.count(); got != stalled {
			t.Errorf("%d messages more", got-stalled)
		}
		for _, call := range c.snapshot() {
			call.mu.Lock()
			if held := call.in.used; held > defaultWindow+defaultChunk {
				t.Errorf("%d bytes are held", held)
			}
			call.mu.Unlock()
		}
		// It goes on where it stood.
		for range 1000 {
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		synctest.Wait()
		_, err = stream.Recv()
		wantCode(t, err, codes.Canceled)
	})
}

// A reader that stalls in the middle of a large message holds a window of it
// and no more.
func TestAStalledReaderOfALargeMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, c, _ := pair(t, sumService{result: make([]byte, 8<<20)})
		stream, err := client.StreamingOutputCall(t.Context(), &grpc_testing.StreamingOutputCallRequest{Payload: &grpc_testing.Payload{}})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, call := range c.snapshot() {
			call.mu.Lock()
			if held := call.in.part.size; held > defaultWindow+defaultChunk {
				t.Errorf("%d bytes are held", held)
			}
			call.mu.Unlock()
		}
		if resp, err := stream.Recv(); err != nil || len(resp.GetPayload().GetBody()) != 8<<20 {
			t.Error(err)
		}
	})
}

// faultDialer connects through memory and can cut what it connected.
type faultDialer struct {
	ns *localnats.Server

	mu     sync.Mutex
	conns  []net.Conn
	refuse bool
}

func (d *faultDialer) Dial(string, string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse {
		return nil, errors.New("refused by the test")
	}
	conn, err := d.ns.InProcessConn()
	if err == nil {
		d.conns = append(d.conns, conn)
	}
	return conn, err
}

// cut ends all connections; no new ones are made while refuse holds.
func (d *faultDialer) cut(refuse bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = refuse
	for _, conn := range d.conns {
		_ = conn.Close()
	}
	d.conns = nil
}

func connectThrough(t *testing.T, d *faultDialer) *Conn {
	t.Helper()
	conn, err := Connect(within(t), ConnConfig{URL: "nats://127.0.0.1:4222", Dialer: d, Logger: newLog(t).logger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// The client library reconnects with timers that it shares between
// connections, which fake time does not survive: what happens up to the loss is
// tested with fake time, what happens afterwards with real time.

func TestTheCallerLosesItsConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		service := newWaitService()
		startServer(t, connect(t, ns), ServerConfig{}, service)
		dialer := &faultDialer{ns: ns}
		c := startClient(t, connectThrough(t, dialer), ClientConfig{})
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		stream, err := client.StreamingOutputCall(within(t), &grpc_testing.StreamingOutputCallRequest{})
		if err != nil {
			t.Fatal(err)
		}
		<-service.Started
		time.Sleep(time.Second)
		dialer.cut(true)
		began := time.Now()
		_, err = stream.Recv()
		wantReason(t, err, codes.Unavailable, ReasonFrameLost)
		_, err = client.UnaryCall(within(t), &grpc_testing.SimpleRequest{})
		wantReason(t, err, codes.Unavailable, ReasonDisconnected)
		_, err = client.FullDuplexCall(within(t))
		wantReason(t, err, codes.Unavailable, ReasonDisconnected)
		if took := time.Since(began); took != 0 {
			t.Errorf("noticed after %v", took)
		}
		if n := len(c.snapshot()); n != 0 {
			t.Errorf("%d calls are left", n)
		}
		<-service.Ended // nobody listens for the caller
	})
}

func TestTheCallerComesBack(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	service := newWaitService()
	s, _ := startServer(t, connect(t, ns), ServerConfig{}, service)
	dialer := &faultDialer{ns: ns}
	c := startClient(t, connectThrough(t, dialer), ClientConfig{})
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	stream, err := client.StreamingOutputCall(within(t), &grpc_testing.StreamingOutputCallRequest{ResponseParameters: sizes(1)})
	if err != nil {
		t.Fatal(err)
	}
	must[*grpc_testing.StreamingOutputCallResponse](t)(stream.Recv())
	dialer.cut(false)
	_, err = stream.Recv()
	wantReason(t, err, codes.Unavailable, ReasonFrameLost)
	for err = io.EOF; err != nil; {
		_, err = client.UnaryCall(within(t), &grpc_testing.SimpleRequest{})
		if err != nil && Reason(err) == "" {
			t.Fatal(err)
		}
	}
	// It is there again, and does not know the call any more.
	(&serverRun{s: s}).checkCallers(time.Now().Add(time.Hour))
	if err := <-service.Ended; err != context.Canceled {
		t.Errorf("the handler ended with %v", err)
	}
}

func TestTheWorkerLosesItsConnection(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	service := newWaitService()
	dialer := &faultDialer{ns: ns}
	s, _ := startServer(t, connectThrough(t, dialer), ServerConfig{}, service)
	c := startClient(t, connect(t, ns), ClientConfig{})
	var lost lostLog
	w := startWatcher(t, connect(t, ns), WatcherConfig{OnLost: lost.add})
	epoch := w.Members()[0].Epoch
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	stream, err := client.StreamingOutputCall(within(t), &grpc_testing.StreamingOutputCallRequest{ResponseParameters: sizes(1)})
	if err != nil {
		t.Fatal(err)
	}
	must[*grpc_testing.StreamingOutputCallResponse](t)(stream.Recv())
	dialer.cut(false)
	<-service.Ended
	_, err = stream.Recv()
	wantReason(t, err, codes.Unavailable, ReasonFrameLost)
	// A watcher may have missed it for a while, if coming back took long.
	eventually(t, func() bool {
		got := w.Members()
		return len(got) == 1 && got[0].Epoch != epoch && got[0].Instance == s.Instance()
	})
	if got := lost.take(); len(got) != 1 || got[0].Epoch != epoch {
		t.Errorf("lost %+v", got)
	}
	must[*grpc_testing.SimpleResponse](t)(client.UnaryCall(within(t), &grpc_testing.SimpleRequest{}))
}

func TestTheWatcherLosesItsConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		startServer(t, connect(t, ns), ServerConfig{}, testService{})
		dialer := &faultDialer{ns: ns}
		var lost lostLog
		w := startWatcher(t, connectThrough(t, dialer), WatcherConfig{OnLost: lost.add})
		if len(w.Members()) != 1 {
			t.Fatal("no members")
		}
		dialer.cut(true)
		time.Sleep(20 * time.Second)
		// Its own silence says nothing about others.
		if got := lost.take(); len(got) != 0 || len(w.Members()) != 1 {
			t.Errorf("lost %+v", got)
		}
	})
}

func TestConnectGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dialer := &faultDialer{refuse: true}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err := Connect(ctx, ConnConfig{URL: "nats://127.0.0.1:4222", Dialer: dialer}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

// lateDialer lets the second attempt through.
type lateDialer struct {
	faultDialer
	tries int
}

func (d *lateDialer) Dial(network, addr string) (net.Conn, error) {
	d.tries++ // attempts come one after another
	if d.tries < 2 {
		return nil, errors.New("refused by the test")
	}
	return d.faultDialer.Dial(network, addr)
}

func TestConnectWaitsForAServer(t *testing.T) {
	t.Parallel()
	dialer := &lateDialer{faultDialer: faultDialer{ns: startNATS(t)}}
	conn, err := Connect(within(t), ConnConfig{URL: "nats://127.0.0.1:4222", Dialer: dialer})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if !conn.Connected() {
		t.Error("not connected")
	}
}

// Who reads DISCONNECTED may call again, so it must not be said of a call that
// has started.
func TestALostConnectionOfARunningCallIsNotDisconnected(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	handler := make(chan error, 1)
	startServer(t, connect(t, ns), ServerConfig{}, sendService{send: handler})
	conn := connect(t, ns)
	c := startClient(t, conn, ClientConfig{})
	stream, err := grpc_testing.NewTestServiceClient(c.Pool("test")).FullDuplexCall(within(t))
	if err != nil {
		t.Fatal(err)
	}
	must[*grpc_testing.StreamingOutputCallResponse](t)(stream.Recv())
	conn.Close()
	for err == nil {
		err = stream.Send(&grpc_testing.StreamingOutputCallRequest{})
	}
	_, err = stream.Recv()
	wantReason(t, err, codes.Unavailable, ReasonFrameLost)

	worker := connect(t, ns)
	startServer(t, worker, ServerConfig{Pool: "second"}, sendService{send: handler, before: worker.Close})
	second := startClient(t, connect(t, ns), ClientConfig{})
	if _, err := grpc_testing.NewTestServiceClient(second.Pool("second")).FullDuplexCall(within(t)); err != nil {
		t.Fatal(err)
	}
	wantReason(t, <-handler, codes.Unavailable, ReasonFrameLost)
}

// sendService sends until that fails, and tells with what.
type sendService struct {
	testService

	before func() // called after the first message; may be nil
	send   chan error
}

func (s sendService) FullDuplexCall(stream grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error {
	err := stream.Send(&grpc_testing.StreamingOutputCallResponse{})
	if s.before == nil {
		<-stream.Context().Done()
		return err
	}
	s.before()
	for err == nil {
		err = stream.Send(&grpc_testing.StreamingOutputCallResponse{})
	}
	s.send <- err
	return err
}
