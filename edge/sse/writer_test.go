package sse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestBytes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		event Event
		want  string
	}{
		{Event{Data: []byte(`{"a":1}`)}, "data: {\"a\":1}\n\n"},
		{Event{}, "data: \n\n"},
		{Event{ID: "s.1.0"}, "id: s.1.0\ndata: \n\n"},
		{Event{ID: "7", Name: "message", Retry: 1500 * time.Millisecond, Data: []byte("x")}, "event: message\nid: 7\nretry: 1500\ndata: x\n\n"},
		{Event{Retry: time.Second}, "retry: 1000\n\n"},
		{Event{Data: []byte(" a\r\nb\rc\nd\n")}, "data:  a\ndata: b\ndata: c\ndata: d\ndata: \n\n"},
		{Event{Data: []byte("a\r\r\n\n\rb\r")}, "data: a\ndata: \ndata: \ndata: \ndata: b\ndata: \n\n"},
		{Event{Data: []byte("x\n\nid: evil\ndata: y")}, "data: x\ndata: \ndata: id: evil\ndata: data: y\n\n"},
		{Event{Data: []byte("\x00\u2028\u0085\xff")}, "data: \x00\u2028\u0085\xff\n\n"},
	} {
		rec := httptest.NewRecorder()
		w := NewWriter(rec, Config{})
		if err := w.Event(c.event); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got := rec.Body.String(); got != c.want {
			t.Errorf("%+v:\ngot  %q\nwant %q", c.event, got, c.want)
		}
	}
}

// TestEventOf: an event in pieces is written like the same event in one.
func TestEventOf(t *testing.T) {
	t.Parallel()
	for _, e := range []Event{
		{},
		{ID: "s.1.0"},
		{Retry: time.Second},
		{ID: "7", Name: "message", Retry: 1500 * time.Millisecond},
	} {
		for _, pieces := range [][][]byte{nil, {[]byte(`{"a":1}`)}, {[]byte(`{"a":`), []byte("-"), bytes.Repeat([]byte("1"), 2*piece), []byte("}")}} {
			whole, inPieces := httptest.NewRecorder(), httptest.NewRecorder()
			w := NewWriter(inPieces, Config{})
			if err := w.EventOf(e, pieces...); err != nil {
				t.Fatal(err)
			}
			e.Data = bytes.Join(pieces, nil)
			v := NewWriter(whole, Config{})
			if err := v.Event(e); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(w.Close(), v.Close()); err != nil {
				t.Fatal(err)
			}
			want := whole.Body.String()
			if len(e.Data) == 0 && e.Retry > 0 && e.ID == "" {
				want = "retry: 1000\ndata: \n\n" // this one is never without data
			}
			if got := inPieces.Body.String(); got != want {
				t.Errorf("%+v with %d pieces: %.100q, want %.100q", e, len(pieces), got, want)
			}
			e.Data = nil
		}
	}
	w := NewWriter(httptest.NewRecorder(), Config{})
	if err := w.EventOf(Event{ID: "a\nb"}, []byte("x")); !errors.Is(err, ErrField) {
		t.Errorf("a line end in an id: %v", err)
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	rec := httptest.NewRecorder()
	rec.Header().Set("Content-Length", "0")
	w := NewWriter(rec, Config{})
	defer w.Close()
	if w.Started() {
		t.Error("started too early")
	}
	if err := w.Start(http.StatusAccepted); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(http.StatusOK); err != nil {
		t.Fatal(err)
	}
	h := rec.Result().Header
	if !rec.Flushed || !w.Started() || rec.Code != http.StatusAccepted || h.Get("Content-Type") != "text/event-stream" ||
		h.Get("Cache-Control") != "no-cache, no-transform" || h.Get("X-Accel-Buffering") != "no" || h.Get("Content-Length") != "" {
		t.Error(rec.Flushed, rec.Code, h)
	}
}

// recorder counts what reaches the connection.
type recorder struct {
	*httptest.ResponseRecorder
	writes, flushes int
	deadlines       []time.Time
}

func (r *recorder) Write(b []byte) (int, error) { r.writes++; return r.ResponseRecorder.Write(b) }
func (r *recorder) FlushError() error           { r.flushes++; return nil }
func (r *recorder) SetWriteDeadline(at time.Time) error {
	r.deadlines = append(r.deadlines, at)
	return nil
}

// middleware hides all but what every ResponseWriter has.
type middleware struct{ inner http.ResponseWriter }

func (m middleware) Header() http.Header         { return m.inner.Header() }
func (m middleware) Write(b []byte) (int, error) { return m.inner.Write(b) }
func (m middleware) WriteHeader(status int)      { m.inner.WriteHeader(status) }
func (m middleware) Unwrap() http.ResponseWriter { return m.inner }

func TestOneWriteOneFlushThroughMiddleware(t *testing.T) {
	t.Parallel()
	rec := &recorder{ResponseRecorder: httptest.NewRecorder()}
	w := NewWriter(middleware{middleware{rec}}, Config{})
	events := []Event{{Data: []byte("1\n2")}, {ID: "x", Data: []byte(strings.Repeat("3", 10_000))}, {Name: "n"}}
	if err := w.Event(events...); err != nil {
		t.Fatal(err)
	}
	if rec.writes != 1 || rec.flushes != 1 || len(rec.deadlines) != 2 || rec.deadlines[0].IsZero() || !rec.deadlines[1].IsZero() {
		t.Errorf("%d writes, %d flushes, deadlines %v", rec.writes, rec.flushes, rec.deadlines)
	}
	if err := w.Event(); err != nil || rec.writes != 1 {
		t.Error("no events are not nothing", err)
	}
	if err := w.Close(); err != nil || len(rec.deadlines) != 3 || rec.deadlines[2].IsZero() {
		t.Error("the end of the response has no deadline", err, rec.deadlines)
	}
}

func TestFieldsRefused(t *testing.T) {
	t.Parallel()
	rec := httptest.NewRecorder()
	w := NewWriter(rec, Config{})
	for _, bad := range []string{"a\rb", "a\n", "\x00"} {
		for _, e := range []Event{{ID: bad}, {Name: bad}, {Retry: -1}} {
			if err := w.Event(Event{Data: []byte("first")}, e); !errors.Is(err, ErrField) {
				t.Errorf("%+v: %v", e, err)
			}
		}
	}
	if rec.Body.Len() > 0 || w.Started() || w.Err() != nil {
		t.Errorf("%q was written, %v", rec.Body, w.Err())
	}
	if err := w.Event(Event{Data: []byte("ok")}); err != nil {
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	for _, err := range []error{w.Event(Event{}), w.Comment(), w.Start(200)} {
		if !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
	if rec.Body.String() != "data: ok\n\n" {
		t.Errorf("%q", rec.Body)
	}
}

// deaf cannot flush.
type deaf struct{ http.ResponseWriter }

func TestNoFlush(t *testing.T) {
	t.Parallel()
	var told []error
	w := NewWriter(deaf{httptest.NewRecorder()}, Config{OnError: func(err error) { told = append(told, err) }})
	err := w.Start(200)
	if !errors.Is(err, http.ErrNotSupported) {
		t.Fatal(err)
	}
	if again := w.Event(Event{}); again != err || w.Err() != err || w.Comment() != err || w.Close() != err || len(told) != 1 || told[0] != err {
		t.Error(again, w.Err(), told)
	}
}

func TestKeepalive(t *testing.T) {
	t.Parallel()
	serve(t, func(t *testing.T, p *site) {
		events := make(chan Event) // closed by the test to end the stream
		p.handler = func(rw http.ResponseWriter, _ *http.Request) {
			w := NewWriter(rw, Config{})
			defer w.Close()
			if err := w.Start(200); err != nil {
				t.Error(err)
			}
			for e := range events {
				if err := w.Event(e); err != nil {
					t.Error(err)
				}
			}
		}

		begin := time.Now()
		c, r := get(t, p, "1.1")
		defer c.Close()
		if at := time.Since(begin); at != 0 {
			t.Errorf("headers after %v", at)
		}
		expect := func(want string, at time.Duration) {
			t.Helper()
			got := make([]byte, len(want))
			if _, err := io.ReadFull(r.Body, got); err != nil || string(got) != want {
				t.Fatalf("%q %v", got, err)
			}
			if d := time.Since(begin); d != at {
				t.Errorf("%q after %v, not %v", want, d, at)
			}
		}
		expect(keepalive, 15*time.Second)
		expect(keepalive, 30*time.Second)
		time.Sleep(10 * time.Second) // fake: an event at 40 s moves the next comment
		events <- Event{Data: []byte("x")}
		expect("data: x\n\n", 40*time.Second)
		expect(keepalive, 55*time.Second)
		close(events)
		if rest, err := io.ReadAll(r.Body); err != nil || len(rest) > 0 {
			t.Errorf("%q %v", rest, err)
		}
	})
}

// A client that stops reading is cut by the deadline of the write, whether an
// event or a keepalive meets it, and whoever waits elsewhere is told.
func TestStalledClient(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"event", "keepalive"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			type outcome struct {
				err, cause error
				after      time.Duration
				later      []error
			}
			serve(t, func(t *testing.T, p *site) {
				done := make(chan outcome, 1)
				p.handler = func(rw http.ResponseWriter, r *http.Request) {
					begin := time.Now()
					ctx, cancel := context.WithCancelCause(context.Background())
					w := NewWriter(middleware{rw}, Config{OnError: cancel})
					defer w.Close()
					if err := w.Start(200); err != nil {
						t.Error(err)
					}
					if who == "event" {
						_ = w.Event(Event{Data: make([]byte, 100_000)})
					}
					<-ctx.Done()
					done <- outcome{w.Err(), context.Cause(ctx), time.Since(begin), []error{w.Event(Event{}), w.Comment(), w.Start(200), w.Close(), w.Event(Event{})}}
				}

				c, _ := get(t, p, "1.1")
				defer c.Close()
				o := <-done
				want := 30 * time.Second
				if who == "keepalive" {
					want += 15 * time.Second
				}
				if !errors.Is(o.err, os.ErrDeadlineExceeded) || o.cause != o.err || o.after != want {
					t.Errorf("%v, cause %v, after %v", o.err, o.cause, o.after)
				}
				for i, err := range o.later {
					if err != o.err {
						t.Errorf("call %d: %v", i, err)
					}
				}
			})
		})
	}
}

// Close waits for a keepalive that is being written, so that the handler does
// not return under it.
func TestCloseWaits(t *testing.T) {
	t.Parallel()
	serve(t, func(t *testing.T, p *site) {
		after := make(chan time.Duration, 1)
		p.handler = func(rw http.ResponseWriter, _ *http.Request) {
			begin := time.Now()
			w := NewWriter(rw, Config{})
			if err := w.Start(200); err != nil {
				t.Error(err)
			}
			time.Sleep(20 * time.Second) // fake: the keepalive hangs since 15 s
			if err := w.Close(); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(err)
			}
			after <- time.Since(begin)
		}

		c, _ := get(t, p, "1.1")
		defer c.Close()
		if d := <-after; d != 45*time.Second {
			t.Errorf("closed after %v", d)
		}
	})
}

// A silent stream outlives both the write deadline and the server's own
// WriteTimeout, on every version of HTTP, and ends in good order.
func TestLongSilence(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"1.0", "1.1", "2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			serve(t, func(t *testing.T, p *site) {
				p.handler = func(rw http.ResponseWriter, _ *http.Request) {
					w := NewWriter(rw, Config{Keepalive: -1})
					defer w.Close()
					for i := range 3 {
						if err := w.Event(Event{ID: fmt.Sprint(i), Data: []byte("a\nb")}); err != nil {
							t.Error(err)
						}
						time.Sleep(time.Hour) // fake
					}
				}

				p.server.WriteTimeout = 10 * time.Second
				var body io.Reader
				if version == "2" {
					var protocols http.Protocols
					protocols.SetUnencryptedHTTP2(true)
					transport := &http.Transport{Protocols: &protocols, DialContext: p.dial}
					defer transport.CloseIdleConnections()
					r, err := (&http.Client{Transport: transport}).Get("http://x/")
					if err != nil {
						t.Fatal(err)
					}
					defer r.Body.Close()
					if r.ProtoMajor != 2 {
						t.Fatal(r.Proto)
					}
					body = r.Body
				} else {
					c, r := get(t, p, version)
					defer c.Close()
					body = r.Body
				}
				begin := time.Now()
				reader := NewReader(body, 0)
				for i := range 3 {
					e, err := reader.Next()
					if err != nil || e.ID != fmt.Sprint(i) || string(e.Data) != "a\nb" {
						t.Fatalf("%d: %+v %v", i, e, err)
					}
				}
				if _, err := reader.Next(); err != io.EOF || time.Since(begin) != 3*time.Hour {
					t.Errorf("%v after %v", err, time.Since(begin))
				}
			})
		})
	}
}

// A client that goes away ends the stream with an error, not with a hang.
func TestClientGone(t *testing.T) {
	t.Parallel()
	serve(t, func(t *testing.T, p *site) {
		failed := make(chan error, 1)
		p.handler = func(rw http.ResponseWriter, r *http.Request) {
			w := NewWriter(rw, Config{})
			defer w.Close()
			if err := w.Start(200); err != nil {
				t.Error(err)
			}
			<-r.Context().Done()
			failed <- w.Event(Event{})
		}

		c, _ := get(t, p, "1.1")
		synctest.Wait() // Start has returned
		c.Close()
		if err := <-failed; err == nil {
			t.Error("written to nobody")
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	const writers, each = 8, 50
	serve(t, func(t *testing.T, p *site) {
		p.handler = func(rw http.ResponseWriter, _ *http.Request) {
			w := NewWriter(rw, Config{Keepalive: time.Millisecond})
			defer w.Close()
			var wg sync.WaitGroup
			for n := range writers {
				wg.Go(func() {
					for i := range each {
						if err := w.Event(Event{Data: fmt.Appendf(nil, "%d\n%d", n, i)}); err != nil {
							t.Error(err)
						}
						time.Sleep(time.Duration(n+i%3) * time.Millisecond) // fake
					}
				})
			}
			wg.Wait()
		}

		c, r := get(t, p, "1.1")
		defer c.Close()
		reader := NewReader(r.Body, 0)
		var next [writers]int
		for range writers * each {
			e, err := reader.Next()
			if err != nil {
				t.Fatal(err)
			}
			var n, i int
			if _, err := fmt.Sscanf(string(e.Data), "%d\n%d", &n, &i); err != nil || next[n] != i {
				t.Fatalf("%q when %d was due: %v", e.Data, next[n], err)
			}
			next[n]++
		}
		if _, err := reader.Next(); err != io.EOF {
			t.Error(err)
		}
		synctest.Wait()
	})
}

func BenchmarkEvent(b *testing.B) {
	for _, size := range []int{100, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			rec := &sink{header: http.Header{}}
			w := NewWriter(rec, Config{})
			defer w.Close()
			data := []byte(strings.Repeat("x", size))
			b.ReportAllocs()
			for b.Loop() {
				if err := w.Event(Event{Data: data}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type sink struct{ header http.Header }

func (s *sink) Header() http.Header              { return s.header }
func (s *sink) Write(b []byte) (int, error)      { return len(b), nil }
func (s *sink) WriteHeader(int)                  {}
func (s *sink) FlushError() error                { return nil }
func (s *sink) SetWriteDeadline(time.Time) error { return nil }
