package bus

import (
	"bytes"
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

// toProto is what the generated code would have decoded.
func (f *frame) toProto() *busv1.Frame {
	p := &busv1.Frame{
		Kind: busv1.Frame_Kind(int32(f.kind)), Flags: f.flags, Seq: f.seq, TimeoutUs: f.timeout, Window: f.window,
		Method: string(f.method), Ctl: string(f.ctl), Status: f.status, Attempt: f.attempt, Load: f.load,
		OpenByUs: f.openBy, Instance: string(f.instance), Data: f.data, Epoch: f.epoch,
		Events: string(f.events), Total: f.total, Fence: busv1.Frame_Fence(int32(f.fence)), Limit: string(f.limit),
	}
	for _, m := range f.header {
		p.Header = append(p.Header, &busv1.Meta{Key: string(m.key), Value: m.value})
	}
	for _, m := range f.trailer {
		p.Trailer = append(p.Trailer, &busv1.Meta{Key: string(m.key), Value: m.value})
	}
	return p
}

func fullFrame() *busv1.Frame {
	return &busv1.Frame{
		Kind: busv1.Frame_KIND_END, Flags: FlagAccepted | FlagMessage, Seq: 1 << 40, TimeoutUs: 1 << 50, Window: 1 << 31,
		Method: "/a.B/C", Ctl: "mr.main.i.x.c1", Status: []byte{8, 1}, Attempt: 7, Load: 3, OpenByUs: 9, Instance: "x",
		Header:  []*busv1.Meta{{Key: "a", Value: []byte("1")}, {Key: "a"}, {}},
		Trailer: []*busv1.Meta{{Key: "b-bin", Value: []byte{0, 255}}, {Value: []byte("no key")}},
		Data:    []byte("payload"), Epoch: 1 << 63, Events: "mr.main.e.x.ev.s.t.1",
		Total: 1 << 45, Fence: busv1.Frame_FENCE_DONE, Limit: "a tool",
	}
}

func TestFrameCodecAgreesWithTheGeneratedOne(t *testing.T) {
	t.Parallel()
	for _, want := range []*busv1.Frame{{}, {Kind: busv1.Frame_KIND_ACCEPT}, fullFrame()} {
		b, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var f frame
		if err := f.decode(b); err != nil {
			t.Fatal(err)
		}
		if got := f.toProto(); !proto.Equal(got, want) {
			t.Errorf("decoded %v, want %v", got, want)
		}
		got := &busv1.Frame{}
		if err := proto.Unmarshal(f.appendTo(nil), got); err != nil || !proto.Equal(got, want) {
			t.Errorf("encoded %v, want %v, %v", got, want, err)
		}
	}
}

// checkCodec demands that our codec accepts and understands what the generated
// one does.
func checkCodec(t *testing.T, data []byte) {
	t.Helper()
	want := &busv1.Frame{}
	wantErr := proto.Unmarshal(data, want)
	var f frame
	err := f.decode(data)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("got %v, the generated code says %v", err, wantErr)
	}
	if err != nil {
		return
	}
	proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, want) //nolint:errcheck // it went well before
	for _, m := range append(want.GetHeader(), want.GetTrailer()...) {
		m.ProtoReflect().SetUnknown(nil)
	}
	if got := f.toProto(); !proto.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	var again frame
	if err := again.decode(f.appendTo(nil)); err != nil || !proto.Equal(again.toProto(), want) {
		t.Fatalf("the second time %v, %v", again.toProto(), err)
	}
}

// idleService holds its streams open until they are cancelled, and is quick
// otherwise.
type idleService struct{ testService }

func (idleService) FullDuplexCall(stream grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			<-stream.Context().Done()
			return err
		}
	}
}

// FuzzFrame throws frames at a client and a server with a call each: neither
// panics, and no call is left when its caller has gone.
func FuzzFrame(f *testing.F) {
	add := func(frame *busv1.Frame) {
		b, err := proto.Marshal(frame)
		if err != nil {
			f.Fatal(err)
		}
		for target := range byte(4) {
			f.Add(target, b, []byte(nil))
			f.Add(target, b, b)
		}
	}
	add(fullFrame())
	for kind := range busv1.Frame_Kind_name {
		add(&busv1.Frame{Kind: busv1.Frame_Kind(kind), Seq: 1, Window: 1000, Ctl: "mr.main.i.x.c1", Flags: FlagAccepted | FlagMessage, Data: []byte{10, 1, 1}})
		add(&busv1.Frame{
			Kind: busv1.Frame_Kind(kind), Seq: 2, Flags: FlagMore, Window: 1, TimeoutUs: 1000,
			Method: "/grpc.testing.TestService/FullDuplexCall", Data: make([]byte, 100),
		})
	}
	add(&busv1.Frame{
		Kind: busv1.Frame_KIND_OPEN, Seq: 1, TimeoutUs: 1000, Window: 1000, Flags: FlagHalf | FlagMessage,
		Method: "/grpc.testing.TestService/UnaryCall",
	})

	ns := startNATS(f)
	s, _ := startServer(f, connect(f, ns), ServerConfig{Slots: 8}, idleService{})
	conn := connect(f, ns)
	c := startClient(f, conn, ClientConfig{MaxRecvMsgSize: 4096, Window: 1024})
	// Somebody has to be there, or the calls end by themselves.
	for _, subject := range []string{"rpc.void.*.*", "e.fuzz.*", "i.x.*"} {
		sub, err := conn.nc.Subscribe(conn.prefix+subject, func(*nats.Msg) {})
		if err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() { unsubscribe(sub) })
	}
	if err := flush(f.Context(), conn.nc); err != nil {
		f.Fatal(err)
	}
	cc := c.Pool("void").(*clientConn)
	open := &frame{
		kind: kindOpen, seq: 1, timeout: uint64(time.Minute.Microseconds()), window: 1000,
		method: []byte("/grpc.testing.TestService/FullDuplexCall"),
	}

	f.Fuzz(func(t *testing.T, target byte, first, second []byte) {
		checkCodec(t, first)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		switch target % 4 {
		case 0, 1: // a call at its caller
			stream, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/a.B/C")
			if err != nil {
				t.Fatal(err)
			}
			call := stream.(*clientStream).call
			for _, data := range [][]byte{first, second} {
				c.onMsg(&nats.Msg{Subject: call.reply, Reply: conn.prefix + "i.x.c1", Data: data})
				if target%4 == 1 { // and of a call that is over
					cancel()
					call.fail(contextError(ctx))
				}
			}
			cancel()
			for err = nil; err == nil; {
				err = stream.RecvMsg(&grpc_testing.Empty{})
			}
			if got := len(c.snapshot()); got != 0 {
				t.Fatalf("%d calls are left at the client", got)
			}
		case 2: // a running call
			s.onOpen(&nats.Msg{Reply: conn.prefix + "e.fuzz.c1", Data: open.appendTo(nil)}, time.Now(), 0, &s.demand, false)
			calls := s.snapshot()
			if len(calls) != 1 {
				t.Fatalf("%d calls run", len(calls))
			}
			for _, data := range [][]byte{first, second} {
				s.onMsg(&nats.Msg{Subject: calls[0].ctl, Data: data})
			}
		case 3: // an instance
			for _, data := range [][]byte{first, second} {
				for _, token := range []string{tokenOpen, tokenOpenFor + "x", tokenPing, "c1", ""} {
					s.onMsg(&nats.Msg{Subject: s.prefix + token, Reply: conn.prefix + "e.fuzz.c1", Data: data})
				}
				s.onPool(&nats.Msg{Reply: conn.prefix + "e.fuzz.c2", Data: data}, &s.demand, &staleness{idle: true})
			}
		}
		for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
			calls := s.snapshot()
			if len(calls) == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d calls are left at the server", len(calls))
			}
			for _, call := range calls {
				call.leave()
			}
		}
	})
}

func TestMetadataKeepsBytes(t *testing.T) {
	t.Parallel()
	md := map[string][]string{"a": {"1", "", "1"}, "b-bin": {"\x00\xff"}}
	var f frame
	if err := f.decode(appendMD(nil, fieldHeader, md)); err != nil {
		t.Fatal(err)
	}
	got := toMD(f.header)
	if len(got) != 2 || len(got["a"]) != 3 || got["a"][1] != "" || !bytes.Equal([]byte(got["b-bin"][0]), []byte{0, 255}) {
		t.Errorf("got %q", got)
	}
}
