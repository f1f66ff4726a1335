package bus

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	spb "google.golang.org/genproto/googleapis/rpc/status"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

var update = flag.Bool("update", false, "write the golden files")

const goldenDir = "testdata/golden"

// golden is one NATS message as a file: docs/wire.md says how to read it.
type golden struct {
	About   string          `json:"about"`
	Subject string          `json:"subject"`
	Reply   string          `json:"reply,omitempty"`
	Type    string          `json:"type,omitempty"`    // protobuf type of the payload; none: text or nothing
	Message json.RawMessage `json:"message,omitempty"` // the payload in the JSON form of protobuf
	Status  json.RawMessage `json:"status,omitempty"`  // the google.rpc.Status within it, the same way
	Text    string          `json:"text,omitempty"`
	Hex     string          `json:"hex"`
}

// sample is what a golden file is made of.
type sample struct {
	name, about, subject, reply string
	message                     proto.Message
	text                        string
}

const (
	goldenCaller   = "mr.main.e.7k2m9qw4xz.c1a"
	goldenCall     = "mr.main.i.3fj8n5t0rd.c2n9c"
	goldenEvents   = "mr.main.e.7k2m9qw4xz.ev.s4kq0v.q7x.1"
	goldenInstance = "3fj8n5t0rd"
	goldenEpoch    = 0x1122334455667788
)

func samples(t *testing.T) []sample {
	t.Helper()
	failed, err := status.New(codes.NotFound, "no term of this name").WithDetails(&errdetails.ErrorInfo{Reason: "TERM", Domain: "example"})
	if err != nil {
		t.Fatal(err)
	}
	digest := HashOf([]byte("manifest"))
	const (
		pool  = "mr.main.rpc.glossary._."
		beats = "mr.main.hb." + goldenInstance
		uri   = "term://session"
	)
	beat := &busv1.Heartbeat{
		Instance: goldenInstance, Pool: "glossary", Version: "1.4.0", Epoch: goldenEpoch, Seq: 17,
		State: busv1.Heartbeat_STATE_READY, Slots: 64, Used: 3, Stalled: 1, Manifests: [][]byte{digest[:]},
	}
	draining, gone := proto.CloneOf(beat), proto.CloneOf(beat)
	draining.Seq, draining.State, draining.Used = 18, busv1.Heartbeat_STATE_DRAINING, 1
	gone.Seq, gone.State, gone.Used = 19, busv1.Heartbeat_STATE_GONE, 0
	return []sample{
		{name: "open", about: "A call with a complete request: FLAG_HALF and FLAG_MESSAGE.", subject: pool + "GetTerm", reply: goldenCaller, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_OPEN, Flags: FlagHalf | FlagMessage, Seq: 1, TimeoutUs: 59_999_000, OpenByUs: 1_000_000, Window: 262144,
			Method: "/example.v1.Glossary/GetTerm", Data: []byte("\x0a\x07session"),
			Header: []*busv1.Meta{{Key: "traceparent", Value: []byte("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")}, {Key: "key-bin", Value: []byte{0, 255}}},
		}},
		{name: "open_again", about: "The same call, offered for the third time after BUSY. It has less time left.", subject: pool + "GetTerm", reply: goldenCaller, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_OPEN, Flags: FlagHalf | FlagMessage, Seq: 1, TimeoutUs: 59_990_000, OpenByUs: 1_000_000, Window: 262144, Attempt: 2,
			Method: "/example.v1.Glossary/GetTerm", Data: []byte("\x0a\x07session"),
		}},
		{name: "open_part", about: "A call whose request goes on in DATA: FLAG_MORE and FLAG_MESSAGE.", subject: pool + "PutTerm", reply: goldenCaller, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_OPEN, Flags: FlagMore | FlagMessage, Seq: 1, TimeoutUs: 60_000_000, OpenByUs: 1_000_000, Window: 262144,
			Method: "/example.v1.Glossary/PutTerm", Data: []byte("\x0a\x18the fir"), Total: 26,
		}},
		{name: "open_stream", about: "A call that streams its requests: no message yet.", subject: pool + "Import", reply: goldenCaller, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_OPEN, Seq: 1, TimeoutUs: 60_000_000, OpenByUs: 1_000_000, Window: 262144, Method: "/example.v1.Glossary/Import",
		}},
		{name: "open_events", about: "A resumable call: its events go to a subject of the caller.", subject: pool + "GetTerm", reply: goldenCaller, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_OPEN, Flags: FlagHalf | FlagMessage, Seq: 1, TimeoutUs: 59_999_000, OpenByUs: 1_000_000, Window: 262144,
			Method: "/example.v1.Glossary/GetTerm", Events: goldenEvents, Data: []byte("\x0a\x07session"),
		}},
		{name: "accept", about: "The instance has taken the call.", subject: goldenCaller, reply: goldenCall, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_ACCEPT, Seq: 1, Window: 262144, Ctl: goldenCall, Instance: goldenInstance, Epoch: goldenEpoch, Load: 4,
		}},
		{name: "busy", about: "The instance did not take the call and never will.", subject: goldenCaller, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_BUSY, Instance: goldenInstance, Load: 64,
		}},
		{name: "busy_limit", about: "The instance did not take the call because of a limit for its sort of calls.", subject: goldenCaller, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_BUSY, Instance: goldenInstance, Load: 9, Limit: "render",
		}},
		{name: "offer", about: "The instance has a free slot, for whichever caller waits.", subject: "mr.main.cap.glossary._", message: &busv1.Frame{
			Kind: busv1.Frame_KIND_OFFER, Instance: goldenInstance, Load: 63,
		}},
		{name: "want", about: "Somebody waits for a free slot of the pool.", subject: "mr.main.want.glossary._"},
		{name: "fence", about: "The caller does not know what became of its OPEN, and asks an instance about the call.", subject: "mr.main.i." + goldenInstance + ".fence", reply: goldenCaller, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_FENCE,
		}},
		{name: "fenced_never", about: "The instance has not run the call, and will not from now on.", subject: goldenCaller, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_FENCED, Fence: busv1.Frame_FENCE_NEVER, Instance: goldenInstance, Epoch: goldenEpoch, Load: 4,
		}},
		{name: "fenced_running", about: "The instance runs the call. It has the address of the call.", subject: goldenCaller, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_FENCED, Fence: busv1.Frame_FENCE_RUNNING, Ctl: goldenCall, Instance: goldenInstance, Epoch: goldenEpoch, Load: 4,
		}},
		{name: "headers", about: "Response headers before the first message; the call was accepted before.", subject: goldenCaller, reply: goldenCall, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_HEADERS, Seq: 2, Load: 4, Header: []*busv1.Meta{{Key: "lang", Value: []byte("pl")}},
		}},
		{name: "data_accept", about: "The first message of a stream and the ACCEPT in one: FLAG_ACCEPTED.", subject: goldenCaller, reply: goldenCall, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_DATA, Flags: FlagAccepted, Seq: 1, Window: 262144, Ctl: goldenCall, Instance: goldenInstance, Epoch: goldenEpoch, Load: 4,
			Data: []byte("\x0a\x05first"),
		}},
		{name: "data", about: "A message, or the last part of one.", subject: goldenCaller, reply: goldenCall, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_DATA, Seq: 3, Load: 4, Data: []byte("\x0a\x06second"),
		}},
		{name: "data_events", about: "The first message among the events of a call that was accepted before: FLAG_FIRST. It has the address of the call.", subject: goldenEvents, reply: goldenCall, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_DATA, Flags: FlagFirst, Seq: 2, Ctl: goldenCall, Load: 4, Data: []byte("\x0a\x05first"),
		}},
		{name: "data_events_rest", about: "The last part of a message among the events: FLAG_REST.", subject: goldenEvents, reply: goldenCall, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_DATA, Flags: FlagRest, Seq: 4, Ctl: goldenCall, Load: 4, Data: []byte("nd of it"),
		}},
		{name: "data_begin", about: "The first part of a message that is not the first one, with the size of the whole. To the caller.", subject: goldenCaller, reply: goldenCall, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_DATA, Flags: FlagMore, Seq: 4, Load: 4, Total: 12, Data: []byte("\x0a\x0athi"),
		}},
		{name: "data_part", about: "A part of a message that goes on: FLAG_MORE. To the instance.", subject: goldenCall, reply: goldenCaller, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_DATA, Flags: FlagMore, Seq: 2, Data: []byte("st half, th"),
		}},
		{name: "data_last", about: "The last part of the only request: FLAG_HALF.", subject: goldenCall, reply: goldenCaller, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_DATA, Flags: FlagHalf, Seq: 3, Data: []byte("e rest"),
		}},
		{name: "half_close", about: "The caller sends no further messages.", subject: goldenCall, reply: goldenCaller, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_HALF_CLOSE, Seq: 4,
		}},
		{name: "end_accept", about: "A short unary call in one message: ACCEPT, response and success. It has no address, as nothing may follow.", subject: goldenCaller, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_END, Flags: FlagAccepted | FlagMessage, Seq: 1, Window: 262144, Instance: goldenInstance, Epoch: goldenEpoch, Load: 4,
			Header: []*busv1.Meta{{Key: "lang", Value: []byte("en")}}, Data: []byte("\x0a\x06answer"),
		}},
		{name: "end", about: "Success after messages, with trailers.", subject: goldenCaller, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_END, Seq: 4, Load: 4, Trailer: []*busv1.Meta{{Key: "cost", Value: []byte("12")}},
		}},
		{name: "end_error", about: "An error with details.", subject: goldenCaller, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_END, Flags: FlagAccepted, Seq: 1, Window: 262144, Instance: goldenInstance, Epoch: goldenEpoch, Load: 4,
			Status: encodeStatus(failed),
		}},
		{name: "end_events", about: "The caller says to whoever follows the events that it has ended the call. It has no number.", subject: goldenEvents, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_END, Status: encodeStatus(failed),
		}},
		{name: "cancel", about: "The caller has left.", subject: goldenCall, message: &busv1.Frame{Kind: busv1.Frame_KIND_CANCEL}},
		{name: "cancel_detach", about: "The caller cannot read the rest, and a resumable call goes on: FLAG_DETACH.", subject: goldenCall, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_CANCEL, Flags: FlagDetach,
		}},
		{name: "window_to_instance", about: "The caller has read 131200 bytes.", subject: goldenCall, reply: goldenCaller, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_WINDOW, Window: 131200,
		}},
		{name: "window_to_caller", about: "The instance has read 131200 bytes.", subject: goldenCaller, reply: goldenCall, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_WINDOW, Window: 131200, Load: 4,
		}},
		{name: "window_nothing", about: "Nothing was read: the instance asks whether the caller is still there.", subject: goldenCaller, reply: goldenCall, message: &busv1.Frame{
			Kind: busv1.Frame_KIND_WINDOW, Load: 4,
		}},
		{name: "heartbeat_ready", about: "Takes calls.", subject: beats, message: beat},
		{name: "heartbeat_draining", about: "Finishes its calls.", subject: beats, message: draining},
		{name: "heartbeat_gone", about: "Has left.", subject: beats, message: gone},
		{name: "hello", about: "Asks everybody for a heartbeat.", subject: "mr.main.hello"},
		{name: "ping", about: "Asks one instance whether it is there.", subject: "mr.main.i." + goldenInstance + ".ping", reply: "mr.main.e.h2v6c8p1ye.rq.x1"},
		{name: "pong", about: "It is.", subject: "mr.main.e.h2v6c8p1ye.rq.x1", message: &busv1.ProbeResponse{Epoch: goldenEpoch, State: busv1.Heartbeat_STATE_READY}},
		{name: "fetch_request", about: "Asks for a manifest from an offset on.", subject: "mr.main.man." + digest.String(), reply: "mr.main.e.h2v6c8p1ye.rq.x2", message: &busv1.FetchRequest{Hash: digest[:], Offset: 5}},
		{name: "fetch_response", about: "The rest of a manifest of 8 bytes.", subject: "mr.main.e.h2v6c8p1ye.rq.x2", message: &busv1.FetchResponse{Total: 8, Data: []byte("est")}},
		{name: "events_request", about: "Asks for what is missing before the first frame of the third round: the second one from its fifth frame on.", subject: "mr.main.i." + goldenInstance + ".events", reply: "mr.main.e.h2v6c8p1ye.rq.x4", message: &busv1.EventsRequest{
			Session: "s1", Stream: "t1", Round: 2, Number: 5, UntilRound: 3, Until: 1,
		}},
		{name: "events_response", about: "Two frames were published again, and the round has ended.", subject: "mr.main.e.h2v6c8p1ye.rq.x4", message: &busv1.EventsResponse{
			Instance: goldenInstance, Rounds: []*busv1.RoundEvents{{Round: 2, Ended: true, Repeated: 2}},
		}},
		{name: "announcement", about: "Something that everybody is told who hears the topic.", subject: "mr.main.x.example", text: "it is Monday"},
		{name: "resource_updated", about: "The contents of a resource have changed; the payload is its URI.", subject: "mr.main.res." + HashOf([]byte(uri)).String(), text: uri},
	}
}

// encode returns the payload of a sample as this package writes it.
func (s sample) encode(t *testing.T) []byte {
	t.Helper()
	switch m := s.message.(type) {
	case nil:
		return []byte(s.text)
	case *busv1.Frame:
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var f frame
		if err := f.decode(b); err != nil {
			t.Fatal(err)
		}
		return f.appendTo(nil)
	default:
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

func protoJSON(t *testing.T, m proto.Message) json.RawMessage {
	t.Helper()
	b, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (s sample) golden(t *testing.T) golden {
	t.Helper()
	g := golden{About: s.about, Subject: s.subject, Reply: s.reply, Text: s.text, Hex: hex.EncodeToString(s.encode(t))}
	if s.message == nil {
		return g
	}
	g.Type = string(s.message.ProtoReflect().Descriptor().FullName())
	g.Message = protoJSON(t, s.message)
	if f, ok := s.message.(*busv1.Frame); ok && len(f.GetStatus()) > 0 {
		var st spb.Status
		if err := proto.Unmarshal(f.GetStatus(), &st); err != nil {
			t.Fatal(err)
		}
		g.Status = protoJSON(t, &st)
	}
	return g
}

// TestGolden holds the wire format: what was written once is read the same way
// for ever, and what we write today is what the files say.
func TestGolden(t *testing.T) {
	t.Parallel()
	var names []string
	for _, s := range samples(t) {
		names = append(names, s.name+".json")
		path := filepath.Join(goldenDir, s.name+".json")
		if *update {
			// The encoder of protobuf's JSON puts in spaces at random.
			var b bytes.Buffer
			raw, err := json.Marshal(s.golden(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Indent(&b, raw, "", "  "); err != nil {
				t.Fatal(err)
			}
			b.WriteByte('\n')
			if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			checkGolden(t, s, path)
		})
	}
	entries, err := os.ReadDir(goldenDir)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(names, e.Name()) {
			t.Errorf("%s belongs to nothing", e.Name())
		}
		if name := "`" + strings.TrimSuffix(e.Name(), ".json") + "`"; !bytes.Contains(doc, []byte(name)) {
			t.Errorf("docs/wire.md does not mention %s", name)
		}
	}
}

func checkGolden(t *testing.T, s sample, path string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(raw, &g); err != nil {
		t.Fatal(err)
	}
	data, err := hex.DecodeString(g.Hex)
	if err != nil {
		t.Fatal(err)
	}
	if g.About != s.about || g.Subject != s.subject || g.Reply != s.reply || g.Text != s.text {
		t.Errorf("the file says %+v", g)
	}
	if got := s.encode(t); !bytes.Equal(got, data) {
		t.Errorf("written\n%x, the file has\n%x", got, data)
	}
	if s.message == nil {
		return
	}
	if got := string(s.message.ProtoReflect().Descriptor().FullName()); got != g.Type {
		t.Errorf("type %s, the file says %s", got, g.Type)
	}
	fromHex, fromJSON := s.message.ProtoReflect().New().Interface(), s.message.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(data, fromHex); err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal(g.Message, fromJSON); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(fromHex, s.message) || !proto.Equal(fromJSON, s.message) {
		t.Errorf("bytes are read as %v, JSON as %v, want %v", fromHex, fromJSON, s.message)
	}
	want, ok := s.message.(*busv1.Frame)
	if !ok {
		return
	}
	var f frame
	if err := f.decode(data); err != nil || !proto.Equal(f.toProto(), want) {
		t.Errorf("read as %v, %v", f.toProto(), err)
	}
	if len(want.GetStatus()) > 0 {
		var st, wantStatus spb.Status
		if err := protojson.Unmarshal(g.Status, &st); err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(want.GetStatus(), &wantStatus); err != nil || !proto.Equal(&st, &wantStatus) {
			t.Errorf("status %v, want %v, %v", &st, &wantStatus, err)
		}
	}
	// In the order of the fields as the generated code writes them, it is the
	// same message.
	other, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var again frame
	if err := again.decode(other); err != nil || !proto.Equal(again.toProto(), want) {
		t.Errorf("the generated encoding is read as %v, %v", again.toProto(), err)
	}
}
