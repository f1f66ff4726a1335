package bus

import (
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

// wantTooLarge demands an error that names the limit, its value and its place.
func wantTooLarge(t *testing.T, err error, limit, size, most string) {
	t.Helper()
	wantReason(t, err, codes.ResourceExhausted, ReasonTooLarge)
	for _, d := range status.Convert(err).Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if !ok {
			continue
		}
		if m := info.GetMetadata(); m["limit"] != limit || m["max"] != most || m["size"] != size {
			t.Errorf("metadata %v", m)
		}
	}
	for _, part := range []string{limit, size, most} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not say %s", err, part)
		}
	}
}

// What is too large is refused with its first frame, of which nothing follows.
func TestALargeResponseIsRefusedWithItsFirstFrame(t *testing.T) {
	t.Parallel()
	w, c, client := rawPair(t, ClientConfig{MaxRecvMsgSize: 1000})
	stream, err := client.StreamingOutputCall(within(t), &grpc_testing.StreamingOutputCallRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.send(<-w.opens, w.accept(1),
		&busv1.Frame{Kind: busv1.Frame_KIND_DATA, Seq: 2, Flags: FlagMore, Total: 5 << 30, Data: []byte{1}})
	_, err = stream.Recv()
	wantTooLarge(t, err, "ClientConfig.MaxRecvMsgSize", "5368709120", "1000")
	w.wantFrame(busv1.Frame_KIND_CANCEL)
	if n := len(c.snapshot()); n != 0 {
		t.Errorf("%d calls are left", n)
	}
}

func TestALargeRequestIsRefusedWithItsFirstFrame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		s, _ := startServer(t, connect(t, ns), ServerConfig{MaxRecvMsgSize: 1000}, testService{})
		conn := connect(t, ns)
		w := tap(t, conn, "e")
		large := func(f *busv1.Frame) { f.Flags, f.Total, f.Data = FlagMessage|FlagMore, 5<<30, []byte{1} }
		rawOpen(t, conn, conn.prefix+"rpc.test._.UnaryCall", conn.prefix+"e.me.c1", large)
		synctest.Wait()
		if got := w.kinds(); got != "END+ACCEPT" {
			t.Errorf("got %s", got)
		}
		if n := len(s.snapshot()); n != 0 {
			t.Errorf("%d calls run", n)
		}
	})
}

// The real sender says so both ways, for the first message and for a later one.
func TestSendersSayTheSize(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	startServer(t, connect(t, ns), ServerConfig{MaxRecvMsgSize: 1 << 20, Window: 1 << 30, Chunk: 1000}, sumService{result: make([]byte, 2<<20)})
	c := startClient(t, connect(t, ns), ClientConfig{MaxRecvMsgSize: 1 << 20, Window: 1 << 30, Chunk: 1000})
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	large := &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: make([]byte, 2<<20)}}
	_, err := client.UnaryCall(within(t), large)
	wantTooLarge(t, err, "ServerConfig.MaxRecvMsgSize", strconv.Itoa(proto.Size(large)), "1048576")
	_, err = client.UnaryCall(within(t), &grpc_testing.SimpleRequest{})
	wantReason(t, err, codes.ResourceExhausted, ReasonTooLarge)
	if !strings.Contains(err.Error(), "2097") { // the size, not what had come by then
		t.Error(err)
	}
	stream, err := client.StreamingInputCall(within(t))
	for i := 0; err == nil; i++ {
		size := 1
		if i > 0 {
			size = 2 << 20
		}
		err = stream.Send(&grpc_testing.StreamingInputCallRequest{Payload: &grpc_testing.Payload{Body: make([]byte, size)}})
	}
	_, err = stream.CloseAndRecv()
	wantReason(t, err, codes.ResourceExhausted, ReasonTooLarge)
	if !strings.Contains(err.Error(), "2097") {
		t.Error(err)
	}
}

func TestPartsThatDoNotAddUp(t *testing.T) {
	t.Parallel()
	for name, parts := range map[string][]int{
		"too much": {10, 11}, "too little": {10, 9}, "all in the first part": {20, 0}, "more without an end": {10, 10, 1},
	} {
		in := inbox{window: 1 << 20, maxMsg: 1000}
		var err error
		for i, n := range parts {
			total := uint64(0)
			if i == 0 {
				total = 20
			}
			if err = in.push(make([]byte, n), i < len(parts)-1, total); err != nil {
				break
			}
		}
		if status.Code(err) != codes.Internal {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A message in one frame needs no size.
	in := inbox{window: 1 << 20, maxMsg: 1000}
	for range 3 {
		if err := in.push(make([]byte, 5), false, 0); err != nil {
			t.Error(err)
		}
	}
}
