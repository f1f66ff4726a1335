package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
)

// wire stands between the edge and every client of the tests and checks each
// message that leaves the edge against the schema of the revision it was sent
// under. Faults are reported at the end of the test.
type wire struct {
	schemas *schemas

	mu       sync.Mutex
	faults   []string
	checked  int
	sessions map[string]string // revisions by session id
	// posted is what was sent in each session, so what a stream that is resumed
	// may go on with.
	posted map[string][]*sent
	// streams are the connections of HTTP+SSE by where their messages go.
	streams map[string]*connectionExchange
}

func newWire(t testing.TB) *wire {
	t.Helper()
	w := &wire{schemas: loadSchemas(t), sessions: map[string]string{}, posted: map[string][]*sent{}, streams: map[string]*connectionExchange{}}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, f := range w.faults {
			t.Error(f)
		}
	})
	return w
}

// fault reports a message that the schema refuses.
func (w *wire) fault(rev string, message []byte, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.faults) < 20 {
		w.faults = append(w.faults, fmt.Sprintf("not valid in %s: %.2000s\n%v", rev, message, err))
	}
}

// sent is one message as a client sent it; what cannot be read is empty.
type sent struct {
	id     json.RawMessage // nil also for null
	method string
	meta   map[string]json.RawMessage
	// unread: it is no strict JSON, but the edge may have seen some id of it.
	unread bool
	// batch: it came in an array.
	batch bool
	// since is the handshake before it, on a connection.
	since *agreement
}

// modern reports whether a message says by itself that it is of the stateless
// era.
func (s *sent) modern() bool {
	_, ok := s.meta[mcp.MetaProtocolVersion]
	return s.method != mcp.MethodInitialize && ok || s.method == mcp.MethodDiscover
}

// initializes reports whether a message is a handshake that the edge serves.
func (s *sent) initializes() bool {
	return s.method == mcp.MethodInitialize && !s.batch && !s.unread && s.meta[mcp.MetaProtocolVersion] == nil
}

// readSent reads a message or a batch leniently: what the edge refuses as
// malformed may be anything.
func readSent(raw []byte) []*sent {
	var batch []json.RawMessage
	isBatch := json.Unmarshal(raw, &batch) == nil && len(bytes.TrimSpace(raw)) > 0 && bytes.TrimSpace(raw)[0] == '['
	if !isBatch {
		batch = []json.RawMessage{raw}
	}
	var all []*sent
	for _, one := range batch {
		s := &sent{batch: isBatch}
		// Maps, since encoding/json finds the fields of structs in any case.
		// What is wrong with a message is no matter of this test.
		var members, params map[string]json.RawMessage
		s.unread = json.Unmarshal(one, &members) != nil || !jsontext.Value(one).IsValid()
		_ = json.Unmarshal(members["method"], &s.method)
		_ = json.Unmarshal(members["params"], &params)
		_ = json.Unmarshal(params["_meta"], &s.meta)
		if id := members["id"]; string(id) != "null" {
			s.id = id
		}
		all = append(all, s)
	}
	return all
}

// --- HTTP ---

// transport is a client's side of HTTP.
type transport struct {
	*wire

	next http.RoundTripper
}

// transport returns next, observed.
func (w *wire) transport(next http.RoundTripper) http.RoundTripper { return &transport{w, next} }

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ex := &httpExchange{wire: t.wire, rev: mcp.Assumed().Date, refused: mcp.Assumed().Date}
	if req.Body != nil {
		raw, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		req.Body.Close()
		req = req.Clone(req.Context())
		req.Body = io.NopCloser(bytes.NewReader(raw))
		ex.sent = readSent(raw)
		if x := t.stream(req.URL); x != nil {
			x.took(raw)
		}
	}
	if rev, ok := mcp.Lookup(req.Header.Get(mcp.HeaderProtocolVersion)); ok {
		ex.rev, ex.refused = rev.Date, rev.Date
	}
	t.mu.Lock()
	if id := req.Header.Get(mcp.HeaderSessionID); req.Method == http.MethodGet && req.Header.Get(mcp.HeaderLastEventID) != "" {
		ex.sent = slices.Clone(t.posted[id])
	} else if id != "" {
		t.posted[id] = append(t.posted[id], ex.sent...)
	}
	if rev, ok := t.sessions[req.Header.Get(mcp.HeaderSessionID)]; ok && ex.rev != mcp.Modern().Date {
		ex.rev = rev
	}
	t.mu.Unlock()
	if len(ex.sent) == 1 && !ex.sent[0].batch && ex.sent[0].modern() {
		ex.rev = mcp.Modern().Date
	}
	resp, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	ex.session = resp.Header.Get(mcp.HeaderSessionID)
	switch mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); mediaType {
	case "application/json":
		resp.Body = &observed{ReadCloser: resp.Body, end: ex.message}
	case "text/event-stream":
		event := ex.message
		if strings.HasSuffix(req.URL.Path, "/sse") {
			event = t.newStream(req.URL)
		}
		resp.Body = &observed{ReadCloser: resp.Body, event: event}
	}
	return resp, nil
}

// httpExchange is one request and what comes back.
type httpExchange struct {
	*wire
	// rev is the revision under which the request is served; refused is the
	// one of answers that were made before anybody looked at the body or the
	// session.
	rev, refused string
	session      string
	sent         []*sent
	flow         flow
}

// message is called by whoever reads the response, one message at a time.
func (x *httpExchange) message(raw []byte) {
	rev := x.rev
	if err := x.flow.next(raw, x.sent); err != nil {
		x.fault(rev, raw, err)
	}
	var m received
	if json.Unmarshal(raw, &m) == nil {
		if m.Error != nil && string(m.ID) == "null" {
			rev = x.refused
		}
		if agreed := x.initialized(&m); agreed != "" {
			rev = agreed
		}
	}
	x.check(rev, raw, x.sent)
}

// initialized returns the revision that the response to initialize agrees on.
func (x *httpExchange) initialized(m *received) string {
	for _, s := range x.sent {
		if !s.initializes() || !bytes.Equal(s.id, m.ID) {
			continue
		}
		rev := agreedRevision(m)
		x.mu.Lock()
		if x.session != "" {
			x.sessions[x.session] = rev
		}
		x.mu.Unlock()
		return rev
	}
	return ""
}

// agreedRevision reads the answer to initialize; an error is one of the
// counter-offer.
func agreedRevision(m *received) string {
	var result struct{ ProtocolVersion string }
	if json.Unmarshal(m.Result, &result) == nil {
		if rev, ok := mcp.Lookup(result.ProtocolVersion); ok {
			return rev.Date
		}
	}
	return mcp.Legacy().Date
}

// observed calls end with all that was read, or event with each SSE event.
type observed struct {
	io.ReadCloser
	end, event func([]byte)
	buf        []byte
}

func (o *observed) Read(p []byte) (int, error) {
	n, err := o.ReadCloser.Read(p)
	o.buf = append(o.buf, p[:n]...)
	if o.event != nil {
		for {
			head, rest, ok := bytes.Cut(o.buf, []byte("\n\n"))
			if !ok {
				break
			}
			o.buf = rest
			if data := eventData(head); len(data) > 0 {
				o.event(data)
			}
		}
	}
	if errors.Is(err, io.EOF) && o.end != nil && len(o.buf) > 0 {
		o.end(o.buf)
		o.end = nil
	}
	return n, err
}

// eventData joins the data lines of one event.
func eventData(event []byte) []byte {
	var data [][]byte
	for line := range bytes.SplitSeq(event, []byte("\n")) {
		if d, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			data = append(data, bytes.TrimPrefix(d, []byte(" ")))
		}
	}
	return bytes.Join(data, []byte("\n"))
}

// --- connections: stdio and HTTP+SSE ---

// agreement is a handshake on a connection; rev is empty until it was answered.
type agreement struct {
	rev      string
	previous *agreement
}

// revision is what the handshake settled; one that failed settled nothing.
func (x *connectionExchange) revision(a *agreement) string {
	for ; a != nil; a = a.previous {
		if a.rev != "" {
			return a.rev
		}
	}
	return x.assumed
}

// connectionExchange is one connection.
type connectionExchange struct {
	*wire

	// assumed is the revision before a handshake.
	assumed string

	lines sync.Mutex
	in    []byte
	last  *agreement
	sent  []*sent
	flow  flow
	// agreed are all revisions that were agreed on.
	agreed []string
}

// serveStdio is ServeStdio, observed.
func (s *system) serveStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	return s.observeStdio(ctx, s.wire, in, out)
}

func (s *system) observeStdio(ctx context.Context, w *wire, in io.Reader, out io.Writer) error {
	x := &connectionExchange{wire: w, assumed: mcp.Assumed().Date}
	return s.edge.ServeStdio(ctx, &stdioIn{x, in}, &stdioOut{connectionExchange: x, next: out})
}

// stdioIn reads along what the client writes.
type stdioIn struct {
	*connectionExchange

	next io.Reader
}

func (x *stdioIn) Read(p []byte) (int, error) {
	n, err := x.next.Read(p)
	x.lines.Lock()
	defer x.lines.Unlock()
	x.in = append(x.in, p[:n]...)
	if err != nil {
		x.in = append(x.in, '\n') // the last line may have no end
	}
	for {
		line, rest, ok := bytes.Cut(x.in, []byte("\n"))
		if !ok {
			return n, err
		}
		x.in = rest
		x.tookLocked(line)
	}
}

// took notes what the client sends. It comes before what the edge makes of it.
func (x *connectionExchange) took(raw []byte) {
	x.lines.Lock()
	defer x.lines.Unlock()
	x.tookLocked(raw)
}

func (x *connectionExchange) tookLocked(raw []byte) {
	for _, s := range readSent(raw) {
		s.since = x.last
		if s.initializes() {
			s.since = &agreement{previous: x.last}
			x.last = s.since
		}
		x.sent = append(x.sent, s)
	}
}

// stdioOut reads along what the edge writes.
type stdioOut struct {
	*connectionExchange

	next io.Writer
	line []byte // what has come of the line
}

// Write takes one line, or a part of a large one: the edge writes each message
// at once, and nothing between the parts.
func (o *stdioOut) Write(p []byte) (int, error) {
	o.line = append(o.line, p...)
	whole, ended := bytes.CutSuffix(o.line, []byte("\n"))
	if bytes.Contains(whole, []byte("\n")) || ended && len(p) < len(o.line) && len(o.line) < jsonrpc.LargeBytes {
		o.fault(o.assumed, whole, errors.New("not exactly one line in one write"))
	}
	if ended {
		o.left(whole)
		o.line = nil
	}
	return o.next.Write(p)
}

// left checks a message of the edge.
func (x *connectionExchange) left(message []byte) {
	x.lines.Lock()
	sent := x.sent
	revs := x.revisions(message, sent)
	flowErr := x.flow.next(message, sent)
	x.lines.Unlock()
	if flowErr != nil {
		x.fault(revs[0], message, flowErr)
	}
	for _, rev := range revs {
		isBatch := bytes.HasPrefix(message, []byte("["))
		if isBatch && x.schemas.batches(rev) || !isBatch && x.valid(rev, message, sent) == nil {
			revs[0] = rev
			break
		}
	}
	x.check(revs[0], message, sent)
}

// newStream observes a connection of HTTP+SSE that was opened at the URL: its
// first event is where messages go, and every other one is a message.
func (w *wire) newStream(opened *url.URL) (event func([]byte)) {
	x := &connectionExchange{wire: w, assumed: mcp.Oldest().Date}
	first := true
	return func(data []byte) {
		if !first {
			x.left(data)
			return
		}
		first = false
		endpoint, err := opened.Parse(string(data))
		if err != nil {
			w.fault(x.assumed, data, err)
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.streams[endpoint.RawQuery] = x
	}
}

// stream returns the connection whose messages go to the URL, if any.
func (w *wire) stream(posted *url.URL) *connectionExchange {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.streams[posted.RawQuery]
}

// revisions finds what a message of the edge belongs to: usually one, but
// requests of different eras may have the same id.
func (x *connectionExchange) revisions(raw []byte, all []*sent) (revs []string) {
	var m received
	var batch []received
	if json.Unmarshal(raw, &batch) == nil && len(batch) > 0 {
		m = batch[0]
	} else if json.Unmarshal(raw, &m) != nil {
		return []string{x.revision(x.last)}
	}
	settled := false
	of := func(s *sent) (revs []string) {
		if s.initializes() && s.since.rev == "" && !settled && bytes.Contains(m.Result, []byte(`"protocolVersion"`)) {
			s.since.rev, settled = agreedRevision(&m), true
			x.agreed = append(x.agreed, s.since.rev)
		}
		if s.modern() && !s.batch {
			return []string{mcp.Modern().Date}
		}
		revs = []string{x.revision(s.since)}
		if x.last != nil && x.last.previous != nil {
			// With several handshakes, some of which may have failed or share
			// their id with other requests, it is not clear which came before.
			revs = slices.Concat(revs, x.agreed, []string{x.assumed})
		}
		return revs
	}
	var token struct {
		ProgressToken json.RawMessage
		RequestID     json.RawMessage            `json:"requestId"`
		Meta          map[string]json.RawMessage `json:"_meta"`
	}
	_ = json.Unmarshal(m.Params, &token) // other params have no such members
	if _, ok := token.Meta[mcp.MetaSubscriptionID]; ok {
		return []string{mcp.Modern().Date}
	}
	for _, s := range all {
		switch {
		case m.Method == "" && m.ID != nil && bytes.Equal(s.id, m.ID):
			revs = append(revs, of(s)...)
		case token.ProgressToken != nil && bytes.Equal(s.meta[mcp.MetaProgressToken], token.ProgressToken):
			revs = append(revs, of(s)...)
		}
	}
	if revs != nil {
		return revs
	}
	// What belongs to no message that can be told: the legacy era says nothing
	// by itself before the handshake, and an answer without an id may be to a
	// line from before it.
	if x.last == nil && m.Method != "" {
		return []string{mcp.Modern().Date}
	}
	revs = []string{x.revision(x.last)}
	if m.Method == "" {
		revs = slices.Concat(revs, x.agreed, []string{mcp.Modern().Date})
	}
	return revs
}

// --- the order of messages ---

// flow checks what no schema can: that each request has one response at most,
// and that progress belongs to a request that runs and increases.
type flow struct {
	answered map[string]int
	progress map[string]float64
}

func (f *flow) next(raw []byte, requests []*sent) error {
	var batch []json.RawMessage
	if json.Unmarshal(raw, &batch) == nil {
		for _, one := range batch {
			if err := f.next(one, requests); err != nil {
				return err
			}
		}
		return nil
	}
	var m received
	_ = json.Unmarshal(raw, &m) // the schema says what is wrong
	if f.answered == nil {
		f.answered, f.progress = map[string]int{}, map[string]float64{}
	}
	var p struct {
		Token    json.RawMessage `json:"progressToken"`
		Progress float64
	}
	_ = json.Unmarshal(m.Params, &p) // other params have no such members
	sentUnder, running := map[string]int{}, map[string]int{}
	unread := 0 // may have had any id, and an answer with it
	for _, s := range requests {
		sentUnder[string(s.id)]++
		if s.unread {
			unread++
		}
	}
	asked := 0
	for _, s := range requests {
		id, token := string(s.id), s.meta[mcp.MetaProgressToken]
		switch {
		case m.Method == "" && s.unread:
			asked++
		case m.Method == "" && m.ID != nil && bytes.Equal(s.id, m.ID):
			asked++
			delete(f.progress, string(token))
		case m.Method == mcp.NotificationProgress && bytes.Equal(token, p.Token) && running[id] < min(sentUnder[id], sentUnder[id]+unread-f.answered[id]):
			running[id]++
			asked++
		}
	}
	switch {
	case m.Method == mcp.NotificationProgress:
		if asked == 0 {
			return errors.New("progress for no request that runs")
		}
		// A client that gives two running requests one token, which it must
		// not, gets the progress of both under it.
		if last, ok := f.progress[string(p.Token)]; ok && p.Progress <= last && asked == 1 {
			return fmt.Errorf("progress %v after %v", p.Progress, last)
		}
		f.progress[string(p.Token)] = p.Progress
	case m.Method == "" && m.ID != nil && string(m.ID) != "null":
		if f.answered[string(m.ID)]++; f.answered[string(m.ID)] > asked {
			return fmt.Errorf("response %d to %d requests", f.answered[string(m.ID)], asked)
		}
	}
	return nil
}

// --- messages ---

// received is a message of the edge.
type received struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *struct{ Code int }
}

// check checks a message, or each of a batch.
func (w *wire) check(rev string, raw []byte, requests []*sent) {
	w.mu.Lock()
	w.checked++
	w.mu.Unlock()
	if strings.HasPrefix(string(bytes.TrimSpace(raw)), "[") {
		var batch []json.RawMessage
		if err := json.Unmarshal(raw, &batch); err != nil || len(batch) == 0 {
			w.fault(rev, raw, fmt.Errorf("a batch that is none: %w", err))
		}
		if !w.schemas.batches(rev) {
			w.fault(rev, raw, errors.New("the revision has no batches"))
		}
		// JSONRPCBatchResponse is an array of the types of single responses.
		for _, one := range batch {
			w.checkElement(rev, one, requests)
		}
		return
	}
	if err := w.valid(rev, raw, requests); err != nil {
		w.fault(rev, raw, err)
	}
}

// valid says what is wrong with one message.
func (w *wire) valid(rev string, raw []byte, requests []*sent) error {
	var m received
	if err := json.Unmarshal(raw, &m); err != nil {
		return err
	}
	switch {
	case m.Error != nil:
		return w.schemas.failure(rev, raw, &m)
	case m.Method != "" && m.ID != nil:
		return w.schemas.request(rev, raw, &m)
	case m.Method != "":
		return w.schemas.notification(rev, raw, &m)
	default:
		return w.schemas.result(rev, raw, &m, requests)
	}
}

// checkElement checks one response of a batch; the answer to a message of
// another era is one of that era.
func (w *wire) checkElement(rev string, raw json.RawMessage, requests []*sent) {
	var m received
	if err := json.Unmarshal(raw, &m); err != nil || m.Method != "" {
		w.fault(rev, raw, errors.New("not a response"))
		return
	}
	for _, s := range requests {
		if s.modern() && s.batch && s.id != nil && bytes.Equal(s.id, m.ID) && w.valid(rev, raw, requests) != nil {
			rev = mcp.Modern().Date
		}
	}
	w.check(rev, raw, requests)
}

// TestFlow: the judge of the order of messages sees a progress that does not
// increase, one after the answer, and a second answer, and makes no claim
// where a client has given two running requests one token.
func TestFlow(t *testing.T) {
	t.Parallel()
	one := func(id string) *sent {
		return &sent{id: json.RawMessage(id), meta: map[string]json.RawMessage{mcp.MetaProgressToken: json.RawMessage(`7`)}}
	}
	progress := func(n int) string {
		return fmt.Sprintf(`{"method":"notifications/progress","params":{"progressToken":7,"progress":%d}}`, n)
	}
	const answer = `{"id":"a","result":{}}`
	for name, c := range map[string]struct {
		sent     []*sent
		messages []string
		fault    string // of the last message
	}{
		"increases":                     {[]*sent{one(`"a"`)}, []string{progress(1), progress(2), answer}, ""},
		"repeated":                      {[]*sent{one(`"a"`)}, []string{progress(1), progress(1)}, "progress 1 after 1"},
		"after the answer":              {[]*sent{one(`"a"`)}, []string{answer, progress(1)}, "progress for no request that runs"},
		"two answers":                   {[]*sent{one(`"a"`)}, []string{answer, answer}, "response 2 to 1 requests"},
		"two share token":               {[]*sent{one(`"a"`), one(`"b"`)}, []string{progress(1), progress(1), progress(1)}, ""},
		"two share all":                 {[]*sent{one(`"a"`), one(`"a"`)}, []string{progress(1), progress(1), answer, answer}, ""},
		"one of two left":               {[]*sent{one(`"a"`), one(`"b"`)}, []string{progress(3), answer, progress(1), progress(1)}, "progress 1 after 1"},
		"answer to another with the id": {[]*sent{{unread: true}, one(`"a"`)}, []string{answer, progress(1), progress(2), answer}, ""},
		"unread and ended":              {[]*sent{{unread: true}, one(`"a"`)}, []string{answer, answer, progress(1)}, "progress for no request that runs"},
		"both have ended":               {[]*sent{one(`"a"`), one(`"a"`)}, []string{answer, answer, progress(1)}, "progress for no request that runs"},
	} {
		var f flow
		for i, m := range c.messages {
			want := ""
			if i == len(c.messages)-1 {
				want = c.fault
			}
			got := ""
			if err := f.next([]byte(m), c.sent); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("%s: message %d: %q, want %q", name, i, got, want)
			}
		}
	}
}
