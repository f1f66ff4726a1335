package bus

import (
	"context"
	"crypto/sha256"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/millrace/millrace/proto/bus/bustest"
)

// A server tells its clients of a lower max_payload only when they connect. What
// a frame takes is far below the usual limit, so most reloads go unnoticed.
func TestMaxPayloadIsLoweredByAReload(t *testing.T) {
	t.Parallel()
	cluster := bustest.StartCluster(t, 1)
	up, down := randomBytes(500_000), randomBytes(700_000)
	startServer(t, connectNode(t, cluster, 0), ServerConfig{}, sumService{result: down})
	c := startClient(t, connectNode(t, cluster, 0), ClientConfig{})
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	check := func(client grpc_testing.TestServiceClient) {
		t.Helper()
		resp := must[*grpc_testing.SimpleResponse](t)(client.UnaryCall(within(t), &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: up}}))
		sum := sha256.Sum256(up)
		if resp.GetUsername() != string(hexOf(sum[:])) || sha256.Sum256(resp.GetPayload().GetBody()) != sha256.Sum256(down) {
			t.Error("something arrived changed")
		}
	}
	check(client)
	cluster.SetMaxPayload(0, 256<<10)
	check(client)
	cluster.SetMaxPayload(0, 4<<10)
	// Who connects now cuts smaller.
	startServer(t, connectNode(t, cluster, 0), ServerConfig{Pool: "new"}, sumService{result: down})
	n := startClient(t, connectNode(t, cluster, 0), ClientConfig{})
	check(grpc_testing.NewTestServiceClient(n.Pool("new")))
	// And raised again, it harms nobody either.
	cluster.SetMaxPayload(0, 2<<20)
	check(client)
	check(grpc_testing.NewTestServiceClient(n.Pool("new")))
}

// A connection that finds out by being cut off is lost for good, unless it was
// cut off before it could read why. Nobody waits for it in vain.
func TestMaxPayloadIsLoweredTooFar(t *testing.T) {
	t.Parallel()
	cluster := bustest.StartCluster(t, 1)
	service := newWaitService()
	s := NewServer(connectNode(t, cluster, 0), ServerConfig{Pool: "test", Grace: shortGrace})
	grpc_testing.RegisterTestServiceServer(s, service)
	caller := connectNode(t, cluster, 0)
	c := NewClient(caller, ClientConfig{})
	w := NewWatcher(caller, WatcherConfig{})
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	var callers, workers errgroup.Group
	workers.Go(func() error { return s.Run(ctx) })
	<-s.Ready()
	callers.Go(func() error { return c.Run(ctx) })
	callers.Go(func() error { return w.Run(ctx) })
	<-c.Ready()
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	cluster.SetMaxPayload(0, 4<<10)
	waiting := make(chan error, 1)
	go func() {
		_, err := client.EmptyCall(within(t), &grpc_testing.Empty{})
		waiting <- err
	}()
	<-service.Started
	_, err := client.UnaryCall(within(t), &grpc_testing.SimpleRequest{Payload: bustest.Body(100_000)})
	wantCode(t, err, codes.Unavailable)
	wantCode(t, <-waiting, codes.Unavailable)

	eventually(t, func() bool {
		select {
		case <-caller.dead:
			return true
		default:
			return caller.Connected()
		}
	})
	if caller.Connected() {
		must[*grpc_testing.SimpleResponse](t)(client.UnaryCall(within(t), &grpc_testing.SimpleRequest{Payload: bustest.Body(100_000)}))
		cancel()
		if err := callers.Wait(); err != nil {
			t.Error(err)
		}
	} else if err := callers.Wait(); err == nil || !strings.Contains(err.Error(), "for good") {
		t.Errorf("Run: %v", err)
	}
	cancel()
	if err := workers.Wait(); err != nil {
		t.Error(err)
	}
}

// The same of a worker, which has calls to give up.
func TestAWorkerWhoseConnectionIsClosedForGood(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	worker := connect(t, ns)
	service := newWaitService()
	s := NewServer(worker, ServerConfig{Pool: "test", Grace: shortGrace})
	grpc_testing.RegisterTestServiceServer(s, service)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(within(t)) }()
	<-s.Ready()
	c := startClient(t, connect(t, ns), ClientConfig{})
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := grpc_testing.NewTestServiceClient(c.Pool("test")).EmptyCall(ctx, &grpc_testing.Empty{})
		done <- err
	}()
	<-service.Started
	worker.nc.Close() // as the client library does after an error of the server
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "for good") {
		t.Errorf("Run: %v", err)
	}
	if err := <-service.Ended; err != context.Canceled {
		t.Errorf("the handler ended with %v", err)
	}
	if n := s.used.Load(); n != 0 {
		t.Errorf("%d slots are taken", n)
	}
	cancel() // nobody tells the caller but its watcher, and it has none
	<-done
}

// Messages that were dropped because they were not read in time end what they
// may belong to.
func TestASlowCallerGivesItsCallsUp(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	w := newRawWorker(t, connect(t, ns), "test")
	log := newLog(t)
	conn, err := Connect(within(t), ConnConfig{InProcess: ns, Logger: log.logger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	conn.pending = 20_000
	c := startClient(t, conn, ClientConfig{})
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	streams := make([]grpc_testing.TestService_StreamingOutputCallClient, 2)
	var opens []*nats.Msg
	for i := range streams {
		var err error
		if streams[i], err = client.StreamingOutputCall(within(t), &grpc_testing.StreamingOutputCallRequest{}); err != nil {
			t.Fatal(err)
		}
		opens = append(opens, <-w.opens)
		w.send(opens[i], w.accept(uint64(i)), response(t, 2, 10))
		must[*grpc_testing.StreamingOutputCallResponse](t)(streams[i].Recv())
	}
	c.mu.Lock() // stands for whatever keeps the reader
	for seq := range uint64(10) {
		w.send(opens[0], response(t, seq+3, 5000))
	}
	eventually(t, func() bool { return conn.nc.LastError() == nats.ErrSlowConsumer })
	c.mu.Unlock()
	for _, stream := range streams {
		var err error
		for n := 0; err == nil; n++ {
			_, err = stream.Recv()
			if n > 5 {
				t.Fatal("something was delivered past what was dropped")
			}
		}
		wantReason(t, err, codes.Unavailable, ReasonFrameLost)
	}
	eventually(t, func() bool { return len(c.snapshot()) == 0 })
	if !strings.Contains(log.String(), "slow consumer") {
		t.Errorf("the log says nothing: %s", log)
	}
}

func TestASlowWorkerGivesItsCallsUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		worker := connect(t, ns)
		worker.pending = 20_000
		s, _ := startServer(t, worker, ServerConfig{Window: 1 << 20}, testService{})
		epoch := s.epoch.Load()
		c := startClient(t, connect(t, ns), ClientConfig{})
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		quiet, err := client.FullDuplexCall(within(t))
		if err != nil {
			t.Fatal(err)
		}
		stream, err := client.StreamingInputCall(within(t))
		if err != nil {
			t.Fatal(err)
		}
		send := func() error {
			return stream.Send(&grpc_testing.StreamingInputCallRequest{Payload: bustest.Body(5000)})
		}
		if err := send(); err != nil { // and with it the calls are accepted
			t.Fatal(err)
		}
		eventually(t, func() bool { return len(s.snapshot()) == 2 })
		s.mu.Lock() // stands for whatever keeps the reader
		for range 10 {
			if err := send(); err != nil {
				t.Fatal(err)
			}
		}
		for worker.nc.LastError() != nats.ErrSlowConsumer {
			runtime.Gosched() // the time of the test stands still while somebody waits for a mutex
		}
		s.mu.Unlock()
		_, err = stream.CloseAndRecv()
		wantReason(t, err, codes.Unavailable, ReasonFrameLost)
		_, err = quiet.Recv()
		wantReason(t, err, codes.Unavailable, ReasonFrameLost)
		// What was dropped may be told in several pieces, each of which ends calls.
		synctest.Wait()
		if s.epoch.Load() == epoch || s.used.Load() != 0 {
			t.Errorf("still in epoch %d, or %d calls run", epoch, s.used.Load())
		}
		must[*grpc_testing.Empty](t)(client.EmptyCall(within(t), &grpc_testing.Empty{}))
	})
}
