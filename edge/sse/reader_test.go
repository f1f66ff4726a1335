package sse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// cut hands out at most n bytes a read, as a hostile network does.
type cut struct {
	r io.Reader
	n int
}

func (c cut) Read(b []byte) (int, error) { return c.r.Read(b[:min(c.n, len(b))]) }

// all reads a stream to its end.
func all(src io.Reader, limit int) ([]Event, *Reader, error) {
	r := NewReader(src, limit)
	var events []Event
	for {
		e, err := r.Next()
		if err != nil {
			return events, r, err
		}
		events = append(events, e)
	}
}

func data(s string) Event { return Event{Data: []byte(s)} }

func TestReader(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		stream string
		want   []Event
		lastID string
		retry  time.Duration
		err    error // nil = io.EOF
	}{
		{stream: ""},
		{stream: "\n\n\r\r\n"},
		{stream: "data: a\n\n", want: []Event{data("a")}},
		{stream: "data: a\r\rdata: b\r\n\r\ndata: c\n\n", want: []Event{data("a"), data("b"), data("c")}},
		{stream: "data: a\rdata: b\r\ndata: c\n\r", want: []Event{data("a\nb\nc")}},
		{stream: "\xef\xbb\xbfdata: a\n\n", want: []Event{data("a")}},
		{stream: "\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n"},
		{stream: "\n\xef\xbb\xbfdata: a\n\n"},
		{stream: "\xef\xbb\xbf:c\ndata: a\n\n", want: []Event{data("a")}},
		{stream: ": c\n:\n:data: x\ndata: a\n: c\n\n", want: []Event{data("a")}},
		{stream: "data\n\ndata\ndata\n\ndata:\n\n", want: []Event{{}, data("\n"), {}}},
		{stream: "data:a\n\ndata:  a \n\n", want: []Event{data("a"), data(" a ")}},
		{stream: "data: a: b\nfoo: x\nDATA: y\n data: z\n\n", want: []Event{data("a: b")}},
		{stream: "event: e\ndata: a\n\ndata: b\n\n", want: []Event{{Name: "e", Data: []byte("a")}, data("b")}},
		{stream: "event: e\nevent: f\n\ndata: b\n\n", want: []Event{data("b")}},
		{stream: "id: 1\ndata: a\n\ndata: b\n\n", want: []Event{{ID: "1", Data: []byte("a")}, data("b")}, lastID: "1"},
		{stream: "id: 1\n\ndata: b\n\n", want: []Event{data("b")}, lastID: "1"},
		{stream: "id: 1\nid: 2\x00\ndata: a\n\n", want: []Event{{ID: "1", Data: []byte("a")}}, lastID: "1"},
		{stream: "id: 1\n\nid\n\n"},
		{stream: "id: 1\n\nid: 2\ndata: a\n", lastID: "1", err: io.ErrUnexpectedEOF},
		{stream: "retry: 1500\n\ndata: a\n\n", want: []Event{data("a")}, retry: 1500 * ms},
		{stream: "retry: 7\ndata: a\n\n", want: []Event{{Retry: 7 * ms, Data: []byte("a")}}, retry: 7 * ms},
		{stream: "retry: 5\nretry: -1\nretry: 1.5\nretry: x\nretry:\nretry: 99999999999999999999\nretry: 9223372036854775807\n\n", retry: 5 * ms},
		{stream: "data: a", err: io.ErrUnexpectedEOF},
		{stream: "data: a\n", err: io.ErrUnexpectedEOF},
		{stream: "data: a\n\n: c\n", want: []Event{data("a")}},
		{stream: "data: a\n\n: c", want: []Event{data("a")}, err: io.ErrUnexpectedEOF},
		{stream: "data: \u2028\u2029\u0085\v\f\x1c\x00\xff\n\n", want: []Event{data("\u2028\u2029\u0085\v\f\x1c\x00\xff")}},
		{stream: "data: " + strings.Repeat("x", 10_000) + "\ndata: " + strings.Repeat("y", 5000) + "\n\n",
			want: []Event{data(strings.Repeat("x", 10_000) + "\n" + strings.Repeat("y", 5000))}},
	} {
		for _, n := range []int{1, 2, 7, 4096} {
			got, r, err := all(cut{strings.NewReader(c.stream), n}, 0)
			want := c.err
			if want == nil {
				want = io.EOF
			}
			if !reflect.DeepEqual(normal(got), normal(c.want)) || r.LastID() != c.lastID || r.Retry() != c.retry || err != want {
				t.Errorf("%.200q by %d: %q, id %q, retry %v, %v", c.stream, n, got, r.LastID(), r.Retry(), err)
			}
			if _, again := r.Next(); again != err {
				t.Errorf("%.200q: then %v", c.stream, again)
			}
		}
	}
}

// normal makes no data and empty data the same.
func normal(events []Event) []Event {
	var out []Event
	for _, e := range events {
		e.Data = append([]byte{}, e.Data...)
		out = append(out, e)
	}
	return out
}

// An event is complete with its last line end: a CR must not wait to see
// whether an LF follows, which may be a long time.
func TestReaderDoesNotWait(t *testing.T) {
	t.Parallel()
	in, out := io.Pipe()
	defer in.Close()
	r := NewReader(in, 0)
	for _, s := range []string{"data: a\r\r", "\ndata: b\r\n\r", "\ndata: c\n\n"} {
		go func() { _, _ = io.WriteString(out, s) }()
		if e, err := r.Next(); err != nil || len(e.Data) != 1 {
			t.Fatal(e, err)
		}
	}
	// The Reader goes on where it was: nothing was lost.
	go out.CloseWithError(iotest.ErrTimeout)
	if _, err := r.Next(); err != iotest.ErrTimeout {
		t.Error(err)
	}
}

func TestReaderLimit(t *testing.T) {
	t.Parallel()
	x := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct {
		stream string
		ok     bool
	}{
		{"data: " + x(100) + "\n\n", true},
		{"data: " + x(101) + "\n\n", false},
		{"data: " + x(50) + "\ndata: " + x(49) + "\n\ndata: " + x(100) + "\n\n", true},
		{"data: " + x(50) + "\ndata: " + x(50) + "\n\n", false},
		{strings.Repeat("data\n", 102) + "\n", false},
		{": " + x(5000), false},
		{"id: " + x(5000) + "\n\n", false},
		{x(100_000), false},
	} {
		for _, n := range []int{1, 7, 4096} {
			_, r, err := all(cut{strings.NewReader(c.stream), n}, 100)
			if (err == io.EOF) != c.ok || !c.ok && !errors.Is(err, ErrTooLarge) {
				t.Errorf("%.40q: %v", c.stream, err)
			}
			if _, again := r.Next(); again != err {
				t.Errorf("%.40q: then %v", c.stream, again)
			}
		}
	}
}

func TestReaderSource(t *testing.T) {
	t.Parallel()
	if _, _, err := all(iotest.ErrReader(io.ErrClosedPipe), 0); err != io.ErrClosedPipe {
		t.Error(err)
	}
	if _, _, err := all(nothing{}, 0); err != io.ErrNoProgress {
		t.Error(err)
	}
	got, _, err := all(iotest.DataErrReader(strings.NewReader("data: a\n\n")), 0)
	if err != io.EOF || len(got) != 1 {
		t.Error(got, err)
	}
}

type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, nil }

// Case B23, on the wire: no data line holds a raw break, and a client that
// reads line by line sees the same text as one that knows the format.
func TestHostileText(t *testing.T) {
	t.Parallel()
	// What our codec makes of the text: all breaks escaped but U+0085.
	text := `"a\r\nb\rc\nd\u2028\u2029` + "\u0085" + `\u000b\u001cdata: x\n\nid: evil\n` + strings.Repeat("😀", 75_000) + `"`
	rec := httptest.NewRecorder()
	w := NewWriter(rec, Config{})
	if err := w.Event(data("progress"), data(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	wire := rec.Body.Bytes()
	if lines := strings.Split(string(wire), "\n"); len(lines) != 5 || lines[2] != "data: "+text || bytes.ContainsRune(wire, '\r') {
		t.Errorf("%d lines", len(lines))
	}
	for _, n := range []int{1, 7} {
		got, _, err := all(cut{bytes.NewReader(wire), n}, 0)
		if err != io.EOF || len(got) != 2 || string(got[1].Data) != text {
			t.Errorf("by %d: %d events, %v", n, len(got), err)
		}
	}
}

func FuzzRoundTrip(f *testing.F) {
	for _, s := range []string{"", "a", "\r", "\n", "\r\n", "a\r\nb\rc\nd", " x", "\n\n", "\r\r\n", "data: x\n\nid: evil\n", "\x00\xff\u2028", "\xef\xbb\xbf", strings.Repeat("x\n", 3000)} {
		f.Add([]byte(s), "", "", int64(0), 1)
		f.Add([]byte(s), "1", " message", int64(15), 4096)
	}
	f.Fuzz(func(t *testing.T, payload []byte, id, name string, retry int64, n int) {
		retry %= 1 << 40
		want := Event{ID: id, Name: name, Retry: time.Duration(retry) * time.Millisecond}
		want.Data = bytes.ReplaceAll(bytes.ReplaceAll(payload, []byte("\r\n"), []byte("\n")), []byte("\r"), []byte("\n"))
		rec := httptest.NewRecorder()
		w := NewWriter(rec, Config{})
		err := w.Event(Event{ID: id, Name: name, Retry: want.Retry, Data: payload}, data("next"))
		if cerr := w.Close(); cerr != nil {
			t.Fatal(cerr)
		}
		if bad := strings.ContainsAny(id+name, "\r\n\x00") || retry < 0; bad != (err != nil) {
			t.Fatalf("%q %q %d: %v", id, name, retry, err)
		}
		if err != nil {
			return
		}
		if bytes.ContainsRune(rec.Body.Bytes(), '\r') {
			t.Fatal("a raw CR")
		}
		got, r, err := all(cut{rec.Body, 1 + int(uint(n)%5000)}, 1<<20)
		if id == "" && name == "" && retry > 0 && len(payload) == 0 {
			if len(got) != 1 || r.Retry() != want.Retry {
				t.Fatalf("%q", got)
			}
			return
		}
		if err != io.EOF || len(got) != 2 || string(got[1].Data) != "next" || !reflect.DeepEqual(normal(got[:1]), normal([]Event{want})) {
			t.Fatalf("%q %v, not %q", got, err, want)
		}
	})
}

// However a stream is cut, it reads the same; and what was read can be written
// and read again.
func FuzzReader(f *testing.F) {
	for _, s := range []string{"", "data: a\n\n", "\xef\xbb\xbfid: 1\r\ndata\r\r", "retry: 5\n: c\nevent:x\ndata:a\ndata: b\n\nid\n\n", "data: a", "id: \x00\n\n", "\r\n\r\n\n\n"} {
		f.Add([]byte(s), 3)
	}
	f.Fuzz(func(t *testing.T, stream []byte, n int) {
		const limit = 300
		whole, r1, err1 := all(bytes.NewReader(stream), limit)
		pieces, r2, err2 := all(cut{bytes.NewReader(stream), 1 + int(uint(n)%100)}, limit)
		if !reflect.DeepEqual(whole, pieces) || err1 != err2 || r1.LastID() != r2.LastID() || r1.Retry() != r2.Retry() {
			t.Fatalf("%q: %q %v, in pieces %q %v", stream, whole, err1, pieces, err2)
		}
		if err1 != io.EOF && err1 != io.ErrUnexpectedEOF && err1 != ErrTooLarge {
			t.Fatal(err1)
		}
		for i, e := range whole {
			if len(e.Data) > limit || bytes.ContainsAny(e.Data, "\r") {
				t.Fatalf("%q", e)
			}
			buf, err := appendEvent(nil, e)
			if err != nil && strings.ContainsRune(e.Name, 0) {
				continue // a name may come in with a NUL, but does not go out
			}
			again, _, rerr := all(bytes.NewReader(buf), limit)
			if e.Retry > 0 && e.ID == "" && e.Name == "" && len(e.Data) == 0 {
				continue
			}
			if err != nil || rerr != io.EOF || len(again) != 1 || !reflect.DeepEqual(normal(again), normal(whole[i:i+1])) {
				t.Fatalf("%q became %q, %v %v", e, again, err, rerr)
			}
		}
	})
}

func BenchmarkReader(b *testing.B) {
	stream := []byte(strings.Repeat(fmt.Sprintf("id: 1\ndata: %s\n\n", strings.Repeat("x", 1000)), 100))
	b.SetBytes(int64(len(stream)))
	b.ReportAllocs()
	for b.Loop() {
		if got, _, err := all(bytes.NewReader(stream), 0); err != io.EOF || len(got) != 100 {
			b.Fatal(err)
		}
	}
}
