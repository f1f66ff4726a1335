package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// moment is a time in the middle of the tests' stories.
func moment(second float64) time.Time {
	return time.Unix(1000, 0).Add(time.Duration(second * float64(time.Second)))
}

func answered(outcome string) attempt {
	return attempt{Outcome: outcome, Start: moment(0), End: moment(1), Worker: "w-1", Run: 1}
}

// TestJudge tells the oracle stories, good and bad, and wants each fault found
// under its name and nothing else.
func TestJudge(t *testing.T) {
	t.Parallel()
	ran := func(worker string, run int64, number int) execution {
		return execution{Worker: worker, Run: run, Attempt: number, Begin: moment(0), End: moment(1)}
	}
	tests := []struct {
		name string
		call call
		ran  []execution
		want verdict
	}{
		{name: "a result", call: call{Attempts: []attempt{answered(outcomeResult)}}, ran: []execution{ran("w-1", 1, 1)}},
		{name: "refused, then a result", call: call{Attempts: []attempt{answered(outcomeOverloaded), answered(outcomeResult)}}, ran: []execution{ran("w-1", 1, 2)}},
		{name: "lost before or after it began", call: call{Attempts: []attempt{answered(outcomeWorkerLost)}}},
		{name: "lost while it ran", call: call{Attempts: []attempt{answered(outcomeWorkerLost)}}, ran: []execution{ran("w-2", 1, 1)}},
		{
			name: "repeated by the edge, which it may",
			call: call{Idempotent: true, Attempts: []attempt{answered(outcomeResult)}}, ran: []execution{ran("w-2", 1, 1), ran("w-1", 1, 1)},
		},
		{
			name: "repeated by the edge, which it may not",
			call: call{Attempts: []attempt{answered(outcomeResult)}}, ran: []execution{ran("w-2", 1, 1), ran("w-1", 1, 1)},
			want: verdict{Duplicates: 1},
		},
		{
			name: "repeated more than once",
			call: call{Idempotent: true, Attempts: []attempt{answered(outcomeWorkerLost)}},
			ran:  []execution{ran("w-2", 1, 1), ran("w-1", 1, 1), ran("w-3", 1, 1)}, want: verdict{Duplicates: 1},
		},
		{
			name: "refused although it ran, and so made twice",
			call: call{Attempts: []attempt{answered(outcomeUnavailable), answered(outcomeResult)}},
			ran:  []execution{ran("w-2", 1, 1), ran("w-1", 1, 2)}, want: verdict{Lies: 1, Duplicates: 1},
		},
		{name: "a result from nowhere", call: call{Attempts: []attempt{answered(outcomeResult)}}, want: verdict{Wrong: 1}},
		{
			name: "the result of another attempt",
			call: call{Idempotent: true, Attempts: []attempt{answered(outcomeWorkerLost), answered(outcomeResult)}},
			ran:  []execution{ran("w-1", 1, 1)}, want: verdict{Wrong: 1},
		},
		{name: "no answer", call: call{Attempts: []attempt{answered(outcomeUnanswered)}}, want: verdict{Unanswered: 1}},
		{name: "an answer without a name", call: call{Attempts: []attempt{answered(outcomeOther)}}, want: verdict{Unknown: 1}},
		{
			name: "an answer that the client found wrong",
			call: call{Attempts: []attempt{{Outcome: outcomeCancelled, Wrong: "a second answer"}}}, want: verdict{Wrong: 1},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.call.Token = 7
			got := judge([]*call{&tt.call}, map[int][]execution{7: tt.ran})
			if faults := got.Duplicates + got.Lies + got.Wrong + got.Unanswered + got.Unknown; len(got.Faults) != faults {
				t.Errorf("%d faults are shown, %d are counted", len(got.Faults), faults)
			}
			got.Faults = nil
			if asJSON(t, got) != asJSON(t, tt.want) {
				t.Errorf("the oracle says %+v, want %+v", got, tt.want)
			}
		})
	}
	if got := judge(nil, map[int][]execution{1: {ran("w-1", 1, 1)}}); got.Wrong != 1 {
		t.Errorf("the execution of a call that nobody made was not found: %+v", got)
	}
}

func asJSON(t *testing.T, value any) string {
	t.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestTold tells of a worker that was killed, and wants to know when the
// clients of its calls knew.
func TestTold(t *testing.T) {
	t.Parallel()
	in := &Injection{Fault: "worker-kill", At: moment(10), Healed: moment(12), Whole: moment(13), life: "w-1"}
	one := func(outcome string, start, end float64) attempt {
		return attempt{Outcome: outcome, Start: moment(start), End: moment(end)}
	}
	calls := []*call{
		{Token: 1, MS: 5000, Attempts: []attempt{one(outcomeWorkerLost, 8, 10.5)}},                         // told after 0.5 s
		{Token: 2, MS: 5000, Idempotent: true, Attempts: []attempt{one(outcomeResult, 8, 16)}},             // begun again after 1 s
		{Token: 3, MS: 5000, Attempts: []attempt{one(outcomeResult, 8, 13)}},                               // elsewhere, not affected
		{Token: 4, MS: 1, Attempts: []attempt{one(outcomeResult, 11, 13.001)}},                             // 2 s late
		{Token: 5, MS: 1, Attempts: []attempt{one(outcomeUnavailable, 9, 9.5)}},                            // before
		{Token: 6, MS: 1, Attempts: []attempt{one(outcomeUnavailable, 20, 21)}},                            // after
		{Token: 7, MS: 5000, Attempts: []attempt{one(outcomeCancelled, 9, 11)}},                            // by itself
		{Token: 8, MS: 1, Attempts: []attempt{one(outcomeOverloaded, 11, 14), one(outcomeResult, 14, 14)}}, // 3 s
	}
	calls = append(calls, &call{Token: 9, MS: 5000, Attempts: []attempt{one(outcomeUnanswered, 8, 38)}}) // never
	ledger := map[int][]execution{
		1: {{Worker: "w-1", Attempt: 1, Begin: moment(8)}},
		2: {{Worker: "w-1", Attempt: 1, Begin: moment(8)}, {Worker: "w-2", Attempt: 1, Begin: moment(11), End: moment(16)}},
		3: {{Worker: "w-2", Attempt: 1, Begin: moment(8), End: moment(13)}},
	}
	var got []string
	for _, d := range told(in, calls, ledger) {
		got = append(got, d.String())
	}
	if want := "500ms 1s 2s 3s"; strings.Join(got, " ") != want {
		t.Errorf("told after %v, want %s", got, want)
	}
}

// TestLedger reads what was written, of two processes and of one that was
// killed in the middle of a call.
func TestLedger(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := openLedger(dir, "w")
	if err != nil {
		t.Fatal(err)
	}
	defer l.file.Close()
	for _, note := range []struct {
		event string
		run   int64
		in    arguments
	}{
		{noteBegin, 1, arguments{Token: 5, Attempt: 1}},
		{noteBegin, 2, arguments{Token: 6, Attempt: 2}},
		{noteEnd, 1, arguments{Token: 5, Attempt: 1}},
	} {
		if err := l.note(note.event, note.run, note.in); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "v"), []byte("begin 1 1 6 1\ncut 2 1 6 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := readLedgers(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || len(all[5]) != 1 || len(all[6]) != 2 {
		t.Fatalf("the ledgers say %+v", all)
	}
	if all[5][0].End.IsZero() {
		t.Error("a call that ended has no end")
	}
	for _, e := range all[6] {
		if e.End.IsZero() != (e.Worker == l.name) {
			t.Errorf("wrong end of %+v", e)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "broken"), []byte("end 1 9 9 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err = readLedgers(dir); err == nil {
		t.Errorf("a ledger that ends what has not begun was read: %v", all)
	}
}

// TestLink sends bytes through a link there and back, late while it is slow,
// and sees a reset at both ends.
func TestLink(t *testing.T) {
	t.Parallel()
	listen := func() net.Listener {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return ln
	}
	target, front := listen(), listen()
	defer target.Close()
	l := newLink(front, target.Addr().String())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	near, err := net.Dial("tcp", front.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := target.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	pass := func(from, to net.Conn, text string) {
		t.Helper()
		if _, err := io.WriteString(from, text); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, len(text))
		if _, err := io.ReadFull(to, buf); err != nil || string(buf) != text {
			t.Fatalf("%q arrived as %q: %v", text, buf, err)
		}
	}
	pass(near, far, "there")
	pass(far, near, "and back")
	const delay = 50 * time.Millisecond
	l.delay.Store(int64(delay))
	began := time.Now()
	pass(near, far, "later")
	if took := time.Since(began); took < delay {
		t.Errorf("a slow link took %v, less than %v", took, delay)
	}
	l.reset()
	for _, conn := range []net.Conn{near, far} {
		if _, err := conn.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("a reset was read as %v", err)
		}
	}
}

// TestAnswers reads answers of edges and wants the outcome that a client takes
// them for, and what is wrong with them.
func TestAnswers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, raw      string
		outcome, wrong string
	}{
		{"a result", `{"id":57,"result":{"content":[{"text":"7 1 worker-1-9 3"}]}}`, outcomeResult, ""},
		{"nothing in it", `{"id":57,"result":{"content":[]}}`, outcomeResult, "an empty"},
		{"of another call", `{"id":57,"result":{"content":[{"text":"8 1 worker-1-9 3"}]}}`, outcomeResult, "the result of call 8"},
		{"to another request", `{"id":58,"result":{"content":[{"text":"7 1 worker-1-9 3"}]}}`, outcomeResult, "the answer to another"},
		{"an error of the tool", `{"id":57,"result":{"isError":true,"content":[]}}`, outcomeToolError, ""},
		{"a reason", `{"id":57,"error":{"code":-32603,"message":"m","data":{"reason":"worker_lost"}}}`, outcomeWorkerLost, ""},
		{"no reason", `{"id":57,"error":{"code":-32603,"message":"internal error"}}`, outcomeOther, ""},
		{"progress", `{"method":"notifications/progress","params":{"progressToken":57,"progress":1,"message":"7"}}`, "", ""},
		{"progress of another", `{"method":"notifications/progress","params":{"progressToken":57,"progress":1,"message":"8"}}`, "", "progress of another"},
		{"not JSON", `[DONE]`, outcomeOther, "no message"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := &conversation{call: &call{Token: 7}, number: 1, id: 57, a: &attempt{}}
			v.take([]byte(tt.raw))
			if v.a.Outcome != tt.outcome || !strings.HasPrefix(v.a.Wrong, tt.wrong) || (tt.wrong == "") != (v.a.Wrong == "") {
				t.Errorf("outcome %q, wrong %q", v.a.Outcome, v.a.Wrong)
			}
			if tt.outcome == outcomeResult && tt.wrong == "" {
				if v.take([]byte(tt.raw)); v.a.Wrong == "" {
					t.Error("a second answer was taken")
				}
			}
		})
	}
}
