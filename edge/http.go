package edge

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/sse"
)

// Handler serves the MCP endpoint at /mcp, clients of the older transport
// HTTP+SSE at /sse and /messages, and the health of the edge at /healthz and
// /readyz. The health paths answer to any Host, since probes come by address.
func (e *Edge) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", e.serveMCP)
	mux.HandleFunc("/sse", e.serveSSE)
	mux.HandleFunc("/messages", e.serveMessages)
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n") // a probe that left needs no answer
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		text := "ok"
		ok, reason := e.Ready()
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
			text = reason
		}
		_, _ = io.WriteString(w, text+"\n") // as above
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		e.reject(w, r, http.StatusNotFound, fmt.Sprintf("nothing is served at %s: the MCP endpoint is /mcp", r.URL.Path))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TransferEncoding) > 0 {
			// A body in chunks may have claimed a length too, by which others on
			// the way may have framed it; net/http takes the chunks and hides
			// the length. Such a connection must not go on (RFC 9112, section
			// 6.1), so none with chunks does.
			w.Header().Set("Connection", "close")
		}
		mux.ServeHTTP(w, r)
	})
}

// serveMCP serves the MCP endpoint. It is on the stack of every stream that waits,
// of which there may be many thousands, so what needs a large frame is done in
// functions that have returned by then, or are not called for a stream.
func (e *Edge) serveMCP(w http.ResponseWriter, r *http.Request) {
	principal, ok := e.admit(w, r, allowed)
	if !ok {
		return
	}
	switch r.Method {
	case http.MethodPost:
		e.servePost(w, r, principal)
	case http.MethodGet:
		e.serveStream(w, r, principal)
	case http.MethodDelete:
		e.serveDelete(w, r, principal)
	default:
		e.rejectMethod(w, r)
	}
}

// servePost serves one POST: one JSON-RPC message, answered as JSON or as a
// stream (transports, "Sending Messages to the Server").
func (e *Edge) servePost(w http.ResponseWriter, r *http.Request, principal *exchange.Principal) {
	if !e.acceptContent(w, r) {
		return
	}
	accept := parseAccept(r.Header)
	if !accept.json && !accept.stream {
		e.reject(w, r, http.StatusNotAcceptable, "Accept excludes both application/json and text/event-stream: the answer is one of them")
		return
	}
	body, ok := e.readBody(w, r)
	if !ok {
		return
	}
	left := false // and the answer is not kept until here: it may be large
	defer func() {
		if !left {
			e.bodies.put(body)
		}
	}()
	req := &exchange.Request{Header: r.Header, Principal: principal}
	if jsonrpc.IsBatch(body.Bytes()) {
		out := newHTTPStream(e, w, accept, &jsonrpc.Message{})
		defer out.close()
		ctx := out.lease.with(r.Context())
		elements, err := e.startBatch(ctx, "", body.Bytes()) // each is made known when its session is
		out.finish(e.serveBatch(ctx, *req, elements, err, out))
		return
	}
	var decodeErr *jsonrpc.Error
	if req.Message, decodeErr = jsonrpc.Decode(body.Bytes(), e.cfg.Limits); decodeErr != nil {
		if isNotification(&req.Message, decodeErr) {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		e.rejectMessage(w, r, decodeErr)
		return
	}
	out := newHTTPStream(e, w, accept, &req.Message)
	defer out.close()
	answer := e.serve(out.lease.with(r.Context()), req, out)
	left = answer.Left
	out.finish(answer)
}

// admit decides whether a request may be made at all, or answers it and reports
// false; methods are those of its path. The principal is nil only where nothing
// authenticates callers.
func (e *Edge) admit(w http.ResponseWriter, r *http.Request, methods string) (*exchange.Principal, bool) {
	if e.unready.Err() != nil {
		// Else it would be closed under the client's next request.
		w.Header().Set("Connection", "close")
	}
	if reason := e.guard.check(r); reason != "" {
		e.reject(w, r, http.StatusForbidden, reason)
		return nil, false
	}
	if preflight := cors(w.Header(), r, methods); preflight {
		w.WriteHeader(http.StatusNoContent)
		return nil, false
	}
	return e.caller(w, r)
}

// acceptContent decides whether the body can be a message, or answers and
// reports false.
func (e *Edge) acceptContent(w http.ResponseWriter, r *http.Request) bool {
	if mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mediaType != "application/json" {
		e.reject(w, r, http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Type %q is not served here: send application/json", r.Header.Get("Content-Type")))
		return false
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		w.Header().Set("Accept-Encoding", "identity")
		e.reject(w, r, http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Encoding %q is not served here: send the body as it is", encoding))
		return false
	}
	return true
}

// serveStream serves a GET: the stream of a session for messages that belong to
// no request.
func (e *Edge) serveStream(w http.ResponseWriter, r *http.Request, principal *exchange.Principal) {
	if rev, ok := mcp.Lookup(r.Header.Get(mcp.HeaderProtocolVersion)); ok && rev.Modern {
		e.rejectMethod(w, r)
		return
	}
	for _, era := range e.eras {
		if listener, ok := era.(exchange.Listener); ok {
			out := e.getStream(w, r)
			defer out.close()
			e.listen(listener, r, principal, out)
			return
		}
	}
	e.rejectMethod(w, r)
}

// getStream is the stream of a GET.
func (e *Edge) getStream(w http.ResponseWriter, r *http.Request) *httpStream {
	accept := parseAccept(r.Header)
	accept.json = false
	return newHTTPStream(e, w, accept, &jsonrpc.Message{})
}

// listen serves a stream of an era to its end.
func (e *Edge) listen(listener exchange.Listener, r *http.Request, principal *exchange.Principal, out *httpStream) {
	req := &exchange.Request{Header: r.Header, Principal: principal}
	var answer exchange.Answer
	resumed := false
	if resumer, ok := listener.(exchange.Resumer); ok && r.Header.Get(mcp.HeaderLastEventID) != "" {
		answer, resumed = resumer.Resume(r.Context(), req, r.Header.Get(mcp.HeaderLastEventID), out)
		if resumed && e.cfg.Observer != nil {
			e.cfg.Observer.Resumed(int(out.sent.Load()))
		}
	}
	if !resumed {
		answer = listener.Listen(r.Context(), req, out)
	}
	if answer.Status == http.StatusMethodNotAllowed {
		out.w.Header().Set("Allow", allowed)
	}
	out.finish(answer)
}

// serveDelete serves a DELETE: the end of a session.
func (e *Edge) serveDelete(w http.ResponseWriter, r *http.Request, principal *exchange.Principal) {
	if rev, ok := mcp.Lookup(r.Header.Get(mcp.HeaderProtocolVersion)); ok && rev.Modern {
		e.rejectMethod(w, r)
		return
	}
	for _, era := range e.eras {
		if ender, ok := era.(exchange.Ender); ok {
			out := newHTTPStream(e, w, accepted{json: true}, &jsonrpc.Message{})
			defer out.close()
			out.finish(ender.End(r.Context(), &exchange.Request{Header: r.Header, Principal: principal}))
			return
		}
	}
	e.rejectMethod(w, r)
}

// allowed are the methods of the MCP endpoint.
const allowed = "GET, POST, DELETE"

func (e *Edge) rejectMethod(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Allow", allowed)
	e.reject(w, r, http.StatusMethodNotAllowed, "method "+r.Method+" is not served here: send a JSON-RPC message by POST")
}

// readBody reads the body within the limit, or answers and reports false.
func (e *Edge) readBody(w http.ResponseWriter, r *http.Request) (*bytes.Buffer, bool) {
	limit := int64(e.cfg.Limits.MaxBytes)
	control := http.NewResponseController(w)
	tooLarge := func() (*bytes.Buffer, bool) {
		// The answer does not wait for the rest of the body. But many clients
		// read it only when they have sent everything, and lose it when the
		// connection is reset before: what they send is thrown away for a while.
		w.Header().Set("Connection", "close")
		_ = control.EnableFullDuplex()
		e.reject(w, r, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than the limit of %d bytes for one message (limit max-body: an operator raises it with --max-body)", limit))
		if r.ProtoMajor == 1 && control.Flush() == nil {
			_ = control.SetReadDeadline(time.Now().Add(lingerTimeout))
			_, _ = io.Copy(io.Discard, r.Body) // however it ends, the connection is closed
		}
		return nil, false
	}
	if r.ContentLength > limit {
		return tooLarge()
	}
	// Servers without deadlines (tests over recorders) are not an error here:
	// the deadline only protects against clients that stop sending.
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	body := e.bodies.get()
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, limit))
	_ = control.SetReadDeadline(time.Time{})
	var tooLong *http.MaxBytesError
	switch {
	case err == nil:
		return body, true
	case errors.As(err, &tooLong):
		e.bodies.put(body)
		return tooLarge()
	default:
		e.bodies.put(body)
		e.reject(w, r, http.StatusBadRequest, "the body could not be read to its end")
		return nil, false
	}
}

const (
	// bodyTimeout is how long a client may take to send one body.
	bodyTimeout = time.Minute
	// lingerTimeout is how long a client may go on to send a body that has been
	// refused.
	lingerTimeout = 5 * time.Second
)

// reject answers a request that never became a message.
func (e *Edge) reject(w http.ResponseWriter, r *http.Request, status int, message string) {
	e.rejectStatus(w, r, status, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: message})
}

// rejectMessage answers a body that is no message.
func (e *Edge) rejectMessage(w http.ResponseWriter, r *http.Request, err *jsonrpc.Error) {
	e.rejectStatus(w, r, http.StatusBadRequest, err)
}

func (e *Edge) rejectStatus(w http.ResponseWriter, r *http.Request, status int, err *jsonrpc.Error) {
	if e.cfg.Observer != nil {
		e.cfg.Observer.Rejected(status)
	}
	rev, known := mcp.Lookup(r.Header.Get(mcp.HeaderProtocolVersion))
	if !known {
		rev = mcp.Assumed()
	}
	writeJSON(w, status, exchange.Refused(rev, status, err.ID, err).Body.Join())
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that left needs no answer
}

// writeJSON writes the answer to a client that may read slowly: one that takes
// nothing for a while is given up.
func (s *httpStream) writeJSON(status int, body jsonrpc.Pieces) {
	h := s.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(body.Len()))
	s.w.WriteHeader(status)
	if err := sse.WriteSlowly(s.w, s.cfg.WriteTimeout, body...); err != nil && s.cfg.OnError != nil {
		s.cfg.OnError(err)
	}
}

// httpStream answers one POST. It decides between JSON and a stream as late as
// it can: a call that ends without notifications is answered as plain JSON.
// Send and finish are called by the goroutine that serves the request; the
// keepalive timer runs beside it, so the decision is under the lock.
type httpStream struct {
	w      http.ResponseWriter
	cfg    sse.Config
	accept accepted
	open   bool
	timer  *time.Timer
	// opened counts the streams that are open.
	opened *atomic.Int64
	// observed is told of what is sent; nil: nobody is.
	observed Observation
	sent     atomic.Int64 // events, but for the answer
	lease    lease

	mu     sync.Mutex
	done   bool
	writer *sse.Writer
}

// observe has what is sent told to o. It is called before anything is sent.
func (s *httpStream) observe(o Observation) { s.observed = o }

func newHTTPStream(e *Edge, w http.ResponseWriter, accept accepted, m *jsonrpc.Message) *httpStream {
	s := &httpStream{w: w, cfg: e.sseConfig(), accept: accept, open: accept.stream, opened: &e.open}
	if accept.named && m.Kind() == jsonrpc.Request {
		// A proxy may take a long silence for death: begin the stream, which
		// then keeps itself alive, when there is no answer soon.
		s.timer = time.AfterFunc(e.cfg.Keepalive, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if !s.done && s.writer == nil {
				s.begin()
				_ = s.writer.Comment() // the writer keeps its error
			}
		})
	}
	return s
}

// begin starts the stream. The caller holds the lock.
func (s *httpStream) begin() {
	s.opened.Add(1)
	s.writer = sse.NewWriter(s.w, s.cfg)
	_ = s.writer.Start(http.StatusOK) // the writer keeps its error
}

// Open reports whether the client takes a stream.
func (s *httpStream) Open() bool { return s.open }

// Begin starts the stream.
func (s *httpStream) Begin() error {
	if !s.open {
		return nil
	}
	w := s.stream()
	if w == nil {
		return sse.ErrClosed
	}
	return w.Err()
}

// Send sends a notification as one event.
func (s *httpStream) Send(msg []byte) error {
	return s.SendEvents(exchange.Event{Data: msg})
}

// SendEvents sends events in one write.
func (s *httpStream) SendEvents(events ...exchange.Event) error {
	if !s.open {
		return nil
	}
	written := make([]sse.Event, len(events))
	for i, ev := range events {
		written[i] = sse.Event{ID: ev.ID, Retry: ev.Retry, Data: oneLine(ev.Data)}
	}
	w := s.stream()
	if w == nil {
		return sse.ErrClosed
	}
	err := w.Event(written...)
	s.sent.Add(int64(len(events)))
	if s.observed != nil {
		s.observed.Event()
	}
	return err
}

// stream returns the writer of the stream, started; nil when the request was
// answered otherwise: a call may go on and speak when its connection is over.
func (s *httpStream) stream() *sse.Writer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writer == nil && !s.done {
		s.begin()
	}
	return s.writer
}

// finish writes the answer, as JSON where no stream has begun and the client
// takes it.
func (s *httpStream) finish(a exchange.Answer) {
	failed := a.Status >= http.StatusBadRequest
	asJSON := failed || s.accept.json && !(a.Withheld && s.accept.named)
	s.mu.Lock()
	begun := s.writer != nil
	s.done = true // nobody else begins the stream any more
	s.mu.Unlock()
	if a.SessionID != "" && !begun {
		s.w.Header().Set(mcp.HeaderSessionID, a.SessionID)
	}
	if a.RetryAfter > 0 && !begun {
		s.w.Header().Set("Retry-After", strconv.Itoa(int((a.RetryAfter+time.Second-1)/time.Second)))
	}
	switch {
	case a.Body == nil && !begun:
		status := a.Status
		if status == 0 {
			status = http.StatusAccepted
		}
		s.w.WriteHeader(status)
	case !begun && asJSON:
		status := a.Status
		if status == 0 {
			status = http.StatusOK
		}
		s.writeJSON(status, a.Body)
	default:
		// The client of a withheld answer sees its stream end without one.
		if !begun {
			s.mu.Lock()
			s.begin()
			s.mu.Unlock()
		}
		if a.Body != nil && !a.Withheld {
			_ = writeEvent(s.writer, sse.Event{ID: a.EventID}, a.Body) // a client that left needs no answer
		}
	}
}

// writeEvent writes a message as an event.
func writeEvent(w *sse.Writer, e sse.Event, msg jsonrpc.Pieces) error {
	lines := oneLineEach(msg)
	if len(lines) > 1 {
		return w.EventOf(e, lines...)
	}
	e.Data = lines.Join()
	return w.Event(e)
}

// close ends what runs beside the request. The response must not be touched
// after the handler has returned, whatever ended it.
func (s *httpStream) close() {
	if s.timer != nil {
		s.timer.Stop()
	}
	s.lease.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = true
	if s.writer != nil {
		_ = s.writer.Close() // as above
		s.opened.Add(-1)
	}
}

// bufferPool keeps the buffers of small e.bodies. A buffer belongs to the
// request that got it until it is put back.
type bufferPool struct{ pool sync.Pool }

// maxPooled keeps the rare huge body from being held for ever.
const maxPooled = 256 << 10

func (p *bufferPool) get() *bytes.Buffer {
	if b, ok := p.pool.Get().(*bytes.Buffer); ok {
		return b
	}
	return &bytes.Buffer{}
}

func (p *bufferPool) put(b *bytes.Buffer) {
	if b.Cap() > maxPooled {
		return
	}
	b.Reset()
	p.pool.Put(b)
}
