package bus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/proto/bus/bustest"
	"github.com/millrace/millrace/proto/localnats"
)

// JetStream does not live in fake time: these tests run in real time.

// streamLog is an EventLog over a stream of JetStream.
type streamLog struct{ stream jetstream.Stream }

// newStreamLog makes the stream that the events of the tenant go to.
func newStreamLog(t testing.TB, conn *Conn, replicas int) *streamLog {
	t.Helper()
	js, err := jetstream.New(conn.nc)
	if err != nil {
		t.Fatal(err)
	}
	cfg := jetstream.StreamConfig{
		Name: "events", Subjects: []string{conn.prefix + "e.*.ev.>"}, Storage: jetstream.MemoryStorage, Replicas: replicas,
		NoAck: true, AllowDirect: true, MaxMsgsPerSubject: 512, MaxBytes: 64 << 20,
	}
	ctx := within(t)
	for {
		stream, err := js.CreateStream(ctx, cfg)
		if err == nil {
			return &streamLog{stream: stream}
		}
		select { // a cluster may not be ready yet
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (l *streamLog) Stored(ctx context.Context, subject string, yield func(string, []byte) error) error {
	for next := uint64(1); ; {
		m, err := l.stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := yield(m.Subject, m.Data); err != nil {
			return err
		}
		next = m.Sequence + 1
	}
}

// messages is how much is stored.
func (l *streamLog) messages(t testing.TB) uint64 {
	t.Helper()
	info, err := l.stream.Info(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Msgs
}

func startJetStream(t testing.TB) *localnats.Server {
	t.Helper()
	ns, err := localnats.Start(localnats.Config{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Shutdown)
	return ns
}

// nextWords reads n events.
func nextWords(t testing.TB, f *Follower, n int) string {
	t.Helper()
	var words []string
	for range n {
		e, err := f.Next(within(t))
		if err != nil {
			t.Errorf("after %v: %v", words, err)
			break
		}
		words = append(words, eventWord(e))
	}
	return strings.Join(words, " ")
}

// steps is a service that sends what a test tells it to, and ends at the end of
// what it tells.
func steps() (service outputService, say chan<- string) {
	c := make(chan string)
	return outputService{output: func(_ *outputRequest, s outputServer) error {
		for {
			select {
			case text, ok := <-c:
				if !ok {
					return status.Error(codes.OutOfRange, "that was all")
				}
				if err := s.Send(&outputResponse{Payload: &grpc_testing.Payload{Body: []byte(text)}}); err != nil {
					return err
				}
			case <-s.Context().Done():
				return s.Context().Err()
			}
		}
	}}, c
}

// An edge dies in the middle of a call, and another one hears the rest: each
// message once, and the end.
func TestAnotherClientHearsTheRest(t *testing.T) {
	t.Parallel()
	ns := startJetStream(t)
	log := newStreamLog(t, connect(t, ns), 1)
	service, tell := steps()
	startServer(t, connect(t, ns), ServerConfig{}, service)
	dialer := &faultDialer{ns: ns}
	dying := startClient(t, connectThrough(t, dialer), ClientConfig{})
	var number uint64
	stream := resumable(t, dying, within(t), 7, &number)
	for _, word := range []string{"a", "b", "c"} {
		tell <- word
		m := must[*outputResponse](t)(stream.Recv())
		if got := string(m.GetPayload().GetBody()); got != word {
			t.Errorf("heard %q", got)
		}
	}
	at := EventPoint{7, number}
	dialer.cut(true)
	_, err := stream.Recv()
	wantReason(t, err, codes.Unavailable, ReasonGoesOn)
	tell <- "d" // nobody hears it now

	readerConn := &faultDialer{ns: ns}
	reader := NewClient(connectThrough(t, readerConn), ClientConfig{})
	f := follow(t, reader, log, at)
	first := at.Number
	if got, want := nextWords(t, f, 1), fmt.Sprintf("7/%d:d", first+1); got != want {
		t.Errorf("events %s, want %s", got, want)
	}
	tell <- "e"
	if got, want := nextWords(t, f, 1), fmt.Sprintf("7/%d:e", first+2); got != want {
		t.Errorf("events %s, want %s", got, want)
	}
	// The reader is disconnected too, and comes back.
	readerConn.cut(false)
	tell <- "f"
	eventually(t, reader.conn.Connected)
	tell <- "g"
	close(tell)
	if got, want := nextWords(t, f, 3), fmt.Sprintf("7/%d:f 7/%d:g 7/%d!end:OutOfRange", first+3, first+4, first+5); got != want {
		t.Errorf("events %s, want %s", got, want)
	}
	all := follow(t, reader, log, EventPoint{})
	e, err := all.Next(within(t))
	if err != nil || e.Client != dying.ID() || !reader.validCtl(e.Ctl) || e.Round != 7 {
		t.Errorf("event %+v, %v", e, err)
	}
	if got, want := nextWords(t, all, 7), fmt.Sprintf("7/%d:b 7/%d:c 7/%d:d 7/%d:e 7/%d:f 7/%d:g 7/%d!end:OutOfRange",
		first-1, first, first+1, first+2, first+3, first+4, first+5); got != want {
		t.Errorf("events %s, want %s", got, want)
	}
}

// Two rounds at different clients are one sequence; short ones are not stored,
// and a round that its caller ends has an end.
func TestRoundsOfEvents(t *testing.T) {
	t.Parallel()
	ns := startJetStream(t)
	log := newStreamLog(t, connect(t, ns), 1)
	words := func(req *outputRequest, s outputServer) error {
		text := string(req.GetPayload().GetBody())
		for word := range strings.FieldsSeq(text) {
			if err := s.Send(&outputResponse{Payload: &grpc_testing.Payload{Body: []byte(word)}}); err != nil {
				return err
			}
		}
		if strings.HasSuffix(text, "wait") {
			<-s.Context().Done()
			return s.Context().Err()
		}
		return nil
	}
	startServer(t, connect(t, ns), ServerConfig{}, outputService{output: words})
	one, other := startClient(t, connect(t, ns), ClientConfig{}), startClient(t, connect(t, ns), ClientConfig{})
	call := func(ctx context.Context, c *Client, round uint32, text string) (grpc.ServerStreamingClient[outputResponse], error) {
		return grpc_testing.NewTestServiceClient(c.Pool("test")).StreamingOutputCall(ctx,
			&outputRequest{Payload: &grpc_testing.Payload{Body: []byte(text)}}, Resumable(EventsKey{"s", "t", round}, nil))
	}
	complete := func(c *Client, round uint32, text string) {
		t.Helper()
		stream, err := call(within(t), c, round, text)
		if err != nil {
			t.Fatal(err)
		}
		if said, err := hear(stream); err != nil || strings.Join(said, " ") != text {
			t.Errorf("heard %v, %v", said, err)
		}
	}
	live := follow(t, other, log, EventPoint{})
	complete(one, 1, "a b")
	stored := func(n uint64) {
		t.Helper()
		eventually(t, func() bool { return log.messages(t) >= n })
		if got := log.messages(t); got != n {
			t.Errorf("%d messages are stored, want %d", got, n)
		}
	}
	stored(3)
	complete(other, 2, "") // with a message it would be a race against the clock
	complete(one, 3, "")
	complete(other, 4, "c d e")
	stored(3 + 4)

	// The caller of the fifth round gives up; its instance is told, and says so.
	ctx, cancel := context.WithCancel(within(t))
	stream, err := call(ctx, one, 5, "f wait")
	if err != nil {
		t.Fatal(err)
	}
	must[*outputResponse](t)(stream.Recv())
	must[*outputResponse](t)(stream.Recv())
	if err := one.EndEvents(EventsKey{"s", "t", 5}, context.DeadlineExceeded); err != nil {
		t.Fatal(err)
	}
	stored(7 + 3)
	cancel()
	stored(7 + 4)
	// The sixth never came to an instance.
	if err := other.EndEvents(EventsKey{"s", "t", 6}, status.Error(codes.Unavailable, "lost")); err != nil {
		t.Fatal(err)
	}
	stored(7 + 5)
	complete(one, 7, "g h")

	const all = "1/1:a 1/2:b 1/3!end 4/1:c 4/2:d 4/3:e 4/4!end 5/1:f 5/2:wait 5/3!end:DeadlineExceeded 6/1!end:Unavailable 7/1:g 7/2:h 7/3!end"
	if got := nextWords(t, live, 14); got != all {
		t.Errorf("live events\n%s, want\n%s", got, all)
	}
	for _, at := range []struct {
		EventPoint
		skip int
	}{{EventPoint{}, 0}, {EventPoint{1, 1}, 1}, {EventPoint{1, 3}, 3}, {EventPoint{2, 0}, 3}, {EventPoint{5, 1}, 8}, {EventPoint{7, 2}, 13}} {
		want := strings.Fields(all)[at.skip:]
		if got := nextWords(t, follow(t, one, log, at.EventPoint), len(want)); got != strings.Join(want, " ") {
			t.Errorf("events from %v\n%s, want\n%s", at.EventPoint, got, want)
		}
	}
}

// What is too large for the events goes to the caller alone, and whoever follows
// learns that it is missing.
func TestEventsThatAreTooLarge(t *testing.T) {
	t.Parallel()
	ns := startJetStream(t)
	log := newStreamLog(t, connect(t, ns), 1)
	large := strings.Repeat("x", defaultEventBytes+1)
	texts := map[string][]string{"in the middle": {"a", large, "b"}, "at the end": {"a", "b", large}, "together": {"a", large[:3<<20], large[:3<<20], "b"}}
	startServer(t, connect(t, ns), ServerConfig{}, outputService{output: func(req *outputRequest, s outputServer) error {
		for _, text := range texts[string(req.GetPayload().GetBody())] {
			if err := s.Send(&outputResponse{Payload: &grpc_testing.Payload{Body: []byte(text)}}); err != nil {
				return err
			}
		}
		return nil
	}})
	c := startClient(t, connect(t, ns), ClientConfig{})
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	kinds := func(said []string) (words []string) {
		for _, s := range said {
			if len(s) > 10 {
				s = "large"
			}
			words = append(words, s)
		}
		return words
	}
	round := uint32(0)
	for name, want := range map[string]string{"in the middle": "a b end", "at the end": "a b gap end", "together": "a large b end"} {
		round++
		stream, err := client.StreamingOutputCall(within(t), &outputRequest{Payload: &grpc_testing.Payload{Body: []byte(name)}},
			Resumable(EventsKey{"s", "t", round}, nil))
		if err != nil {
			t.Fatal(err)
		}
		if said, err := hear(stream); err != nil || strings.Join(kinds(said), " ") != strings.Join(kinds(texts[name]), " ") {
			t.Errorf("%s: the caller heard %v, %v", name, kinds(said), err)
		}
		f := follow(t, c, log, EventPoint{Round: round})
		var words []string
		for {
			e, err := f.Next(within(t))
			if err != nil {
				t.Fatalf("%s: %v after %v", name, err, words)
			}
			if e.Message != nil {
				words = append(words, kinds([]string{strings.SplitN(eventWord(e), ":", 2)[1]})...)
			}
			if e.Gap {
				words = append(words, "gap")
			}
			if e.End {
				words = append(words, "end")
				break
			}
		}
		if got := strings.Join(words, " "); got != want {
			t.Errorf("%s: events %s, want %s", name, got, want)
		}
	}
}

// fitfulService sends as many messages as the request has parameters, each of
// the size that it says, with the call's name and their number, and now and then
// waits a moment.
func fitfulService(req *outputRequest, s outputServer) error {
	for i, p := range req.GetResponseParameters() {
		body := fmt.Appendf(nil, "%s %d ", req.GetPayload().GetBody(), i)
		body = append(body, make([]byte, p.GetSize())...)
		if err := s.Send(&outputResponse{Payload: &grpc_testing.Payload{Body: body}}); err != nil {
			return err
		}
		if i%4 == 0 {
			select {
			case <-time.After(time.Duration(p.GetSize()) * time.Microsecond):
			case <-s.Context().Done():
				return s.Context().Err()
			}
		}
	}
	return nil
}

// fitfulCall is a call of fitfulService and what was heard of it.
type fitfulCall struct {
	t     *testing.T
	name  string
	sizes []*grpc_testing.ResponseParameters
	heard int
	at    EventPoint
}

func newFitfulCall(t *testing.T, name string, rnd *rand.Rand) *fitfulCall {
	t.Helper()
	c := &fitfulCall{t: t, name: name, at: EventPoint{Round: 1}}
	for range 2 + rnd.IntN(24) {
		size := rnd.Int32N(3000)
		if rnd.IntN(30) == 0 {
			size = 150_000 + rnd.Int32N(200_000)
		}
		c.sizes = append(c.sizes, &grpc_testing.ResponseParameters{Size: size})
	}
	return c
}

// hear demands that a message is the next one.
func (c *fitfulCall) hear(m *outputResponse) {
	c.t.Helper()
	want := fmt.Sprintf("%s %d ", c.name, c.heard)
	if body := m.GetPayload().GetBody(); !strings.HasPrefix(string(body), want) || len(body) != len(want)+int(c.sizes[c.heard].GetSize()) {
		c.t.Errorf("heard %.20q, want %q", body, want)
	}
	c.heard++
}

// cutCalls makes calls at a client whose connection is cut each time when all of
// them have begun, and hears the rest of each from another.
func cutCalls(t *testing.T, dialer *faultDialer, caller, reader *Client, log EventLog, rounds, parallel int, rnd *rand.Rand) (moved int64) {
	t.Helper()
	client := grpc_testing.NewTestServiceClient(caller.Pool("test"))
	var count atomic.Int64
	for round := range rounds {
		var begun, ended sync.WaitGroup
		for i := range parallel {
			c := newFitfulCall(t, fmt.Sprintf("%s-%d-%d", caller.ID(), round, i), rnd)
			begun.Add(1)
			ended.Go(func() {
				if c.run(client, begun.Done) {
					count.Add(1)
					c.follow(reader, log)
				}
				if c.heard != len(c.sizes) {
					t.Errorf("%s: heard %d of %d messages", c.name, c.heard, len(c.sizes))
				}
			})
		}
		begun.Wait()
		pause := time.NewTimer(time.Duration(rnd.IntN(5000)) * time.Microsecond)
		<-pause.C
		dialer.cut(false)
		ended.Wait()
		eventually(t, caller.conn.Connected)
	}
	return count.Load()
}

// run reads the call from its instance, and reports whether it goes on without
// its caller.
func (c *fitfulCall) run(client grpc_testing.TestServiceClient, begun func()) (moved bool) {
	var once sync.Once
	defer once.Do(begun)
	for {
		stream, err := client.StreamingOutputCall(within(c.t), &outputRequest{Payload: &grpc_testing.Payload{Body: []byte(c.name)}, ResponseParameters: c.sizes},
			Resumable(EventsKey{Session: "s", Stream: c.name, Round: c.at.Round}, &c.at.Number))
		for err == nil {
			var m *outputResponse
			if m, err = stream.Recv(); err == nil {
				c.hear(m)
				once.Do(begun)
			}
		}
		switch {
		case c.heard == len(c.sizes) && status.Code(err) == codes.Unknown && err.Error() == "EOF":
			return false
		case Reason(err) == ReasonGoesOn:
			return true
		case (Reason(err) == ReasonDisconnected || Reason(err) == ReasonNotAccepted) && c.heard == 0: // not back yet, or it was cut on the way there
			c.at.Round++
			select {
			case <-time.After(10 * time.Millisecond):
				continue
			case <-c.t.Context().Done():
			}
		}
		c.t.Errorf("%s ended with %v", c.name, err)
		return false
	}
}

// follow hears the rest of the call.
func (c *fitfulCall) follow(reader *Client, log EventLog) {
	f, err := reader.Follow(log, "s", c.name, c.at)
	if err != nil {
		c.t.Error(err)
		return
	}
	defer f.Close()
	for {
		e, err := f.Next(within(c.t))
		switch {
		case err != nil, e.Gap, e.Round != c.at.Round, e.Err != nil:
			c.t.Errorf("%s: %s, %v after message %d", c.name, eventWord(e)[:min(len(eventWord(e)), 20)], err, c.heard)
			return
		}
		if e.Message != nil {
			m := &outputResponse{}
			if err := unmarshal(message{first: e.Message}, m); err != nil {
				c.t.Error(err)
			}
			c.hear(m)
		}
		if e.End {
			return
		}
	}
}

// Whenever the connection of a caller is cut, nothing is lost and nothing comes
// twice.
func TestCutsLoseNothing(t *testing.T) {
	t.Parallel()
	ns := startJetStream(t)
	log := newStreamLog(t, connect(t, ns), 1)
	startServer(t, connect(t, ns), ServerConfig{Slots: 200}, outputService{output: fitfulService})
	reader := NewClient(connect(t, ns), ClientConfig{})
	var clients sync.WaitGroup
	var moved atomic.Int64
	for i := range 10 {
		dialer := &faultDialer{ns: ns}
		caller := startClient(t, connectThrough(t, dialer), ClientConfig{})
		clients.Go(func() {
			moved.Add(cutCalls(t, dialer, caller, reader, log, 4, 5, rand.New(rand.NewPCG(1, uint64(i)))))
		})
	}
	clients.Wait()
	if moved.Load() < 20 {
		t.Errorf("%d of 200 calls were cut: that was no test", moved.Load())
	}
	t.Logf("%d of 200 calls were cut", moved.Load())
}

// The same where caller, worker, reader and the stream are at different servers
// of a cluster.
func TestFollowOverACluster(t *testing.T) {
	t.Parallel()
	cluster := bustest.StartCluster(t, 3, bustest.JetStream())
	log := newStreamLog(t, connectNode(t, cluster, 1), 3)
	startServer(t, connectNode(t, cluster, 2), ServerConfig{}, outputService{output: fitfulService})
	caller := startClient(t, connectNode(t, cluster, 0), ClientConfig{Known: known})
	reader := NewClient(connectNode(t, cluster, 1), ClientConfig{})
	waitFor(t, caller.Pool("test"))
	client := grpc_testing.NewTestServiceClient(caller.Pool("test"))
	var calls sync.WaitGroup
	for i := range 20 {
		calls.Go(func() {
			rnd := rand.New(rand.NewPCG(2, uint64(i)))
			c := newFitfulCall(t, fmt.Sprintf("call-%d", i), rnd)
			if c.run(client, func() {}) {
				t.Errorf("%s was lost", c.name)
			}
			// Whoever follows from the beginning hears the same, while the stream
			// may be behind.
			c.heard, c.at.Number = 0, 0
			c.follow(reader, log)
			if c.heard != len(c.sizes) {
				t.Errorf("%s: heard %d of %d messages", c.name, c.heard, len(c.sizes))
			}
		})
	}
	calls.Wait()
}
