package edge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/sse"
)

// modelClient is a client that has one session after another. act is its
// goroutine, and the only one that chooses; each call has one of its own.
type modelClient struct {
	m       *model
	n       int
	rng     *rand.Rand
	session *modelSession
	count   int // of sessions
}

// modelSession is a session and the model of it.
type modelSession struct {
	m        *model
	tag      string // unique: the calls and resources of the session have it in their names
	revision string
	id       string
	running  sync.WaitGroup // calls and the GET stream
	slots    chan struct{}  // one for each call that may run

	mu      sync.Mutex
	ended   bool // DELETE was sent
	calls   int
	open    map[int]*modelCall // that have no outcome yet
	history []string
	// listening ends the GET stream; nil: there is none.
	listening context.CancelFunc
	// blind counts how often the GET stream began without the place of the one
	// before: what happened between them is lost, and nobody is to blame.
	blind int
	// asking: a GET waits for its answer. halfOpen counts those that the client
	// has given up meanwhile: an edge may come to them late, and take them for the
	// newest stream.
	asking   bool
	halfOpen int
	told     map[string]int // updates of a resource that have arrived
	sent     []string       // notifications and answers, and what became of them
}

// modelCall is a call and the model of it.
type modelCall struct {
	s    *modelSession
	id   int
	work modelWork
	rng  *rand.Rand

	cancelled bool // guarded by s.mu; the notification was sent
	// left is done when the client does not wait any longer; leave does that.
	left  context.Context
	leave context.CancelFunc

	// Of the goroutine of the call:
	history []string
	lastID  string
	retry   time.Duration
	seen    int             // progress so far
	node    *node           // that serves the connection
	asked   map[string]*ask // questions by id
	answers []string
	final   string // the answer
}

// ask is a question, the edge that asked and what the client answers.
type ask struct {
	node   *node
	answer string
}

func newModelClient(m *model, n int) *modelClient {
	return &modelClient{m: m, n: n, rng: rand.New(rand.NewPCG(m.seed, uint64(n)))}
}

// act does one thing after another.
func (c *modelClient) act() {
	defer func() {
		if c.session != nil {
			c.session.hangUp()
			c.session.wait("at the end")
		}
	}()
	for {
		if c.session == nil {
			if !c.m.op("initialize") || !c.initialize() {
				return
			}
		}
		pick := c.rng.IntN(clusterSize)
		switch n := c.rng.IntN(100); {
		case n < 60:
			if !c.m.op("call") || !c.call() {
				return
			}
		case n < 68:
			if !c.m.op("cancel") {
				return
			}
			c.cancel(pick)
		case n < 76:
			if !c.m.op("listen") {
				return
			}
			c.listen()
		case n < 84:
			if !c.m.op("subscribe") {
				return
			}
			c.subscribe(pick)
		case n < 96:
			if !c.m.op("request") {
				return
			}
			c.session.succeeds(pick, []string{"ping", "tools/list", "prompts/list"}[c.rng.IntN(3)], `{}`)
		case n < 98:
			if !c.m.op("initialize and leave") {
				return
			}
			c.open()
		default:
			if !c.m.op("delete") {
				return
			}
			c.end(pick)
		}
	}
}

// open opens a session.
func (c *modelClient) open() (id, revision string) {
	revision = []string{"2025-03-26", "2025-06-18", "2025-11-25"}[c.rng.IntN(3)]
	for range 20 {
		r, err := c.m.send(c.m.ctx, c.rng.IntN(clusterSize), http.MethodPost, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+revision+
			`","capabilities":{"elicitation":{}},"clientInfo":{"name":"model","version":"1"}}}`, "", "")
		if err == nil {
			_, err = r.text()
		}
		switch {
		case err == nil && r.StatusCode == http.StatusOK && r.Header.Get(mcp.HeaderSessionID) != "":
			return r.Header.Get(mcp.HeaderSessionID), revision
		case err == nil:
			c.m.fault(nil, "initialize: %s", r.Status)
			return "", ""
		case !errors.Is(err, errModelKilled):
			if c.m.ctx.Err() == nil {
				c.m.fault(nil, "initialize: %v", err)
			}
			return "", ""
		}
	}
	c.m.fault(nil, "initialize: every edge is killed before it answers")
	return "", ""
}

func (c *modelClient) initialize() bool {
	id, revision := c.open()
	if id == "" {
		return false
	}
	c.count++
	c.session = &modelSession{
		m: c.m, tag: fmt.Sprintf("c%ds%d", c.n, c.count), revision: revision, id: id,
		slots: make(chan struct{}, 4), open: map[int]*modelCall{}, told: map[string]int{},
	}
	c.session.note("initialize: revision %s, session %s", revision, id)
	return true
}

// note writes into the history of the session.
func (s *modelSession) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.history) > 60 {
		s.history = s.history[20:]
	}
	s.history = append(s.history, modelTime()+fmt.Sprintf(format, args...))
}

func (s *modelSession) fault(format string, args ...any) {
	s.mu.Lock()
	history := append([]string{}, s.history...)
	s.mu.Unlock()
	s.m.fault(history, s.tag+": "+format, args...)
}

func (s *modelSession) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// wait waits for everything that runs in the session.
func (s *modelSession) wait(when string) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.running.Wait()
	}()
	limit := time.NewTimer(modelPatience)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
		s.mu.Lock()
		open, listens := len(s.open), s.listening != nil
		s.mu.Unlock()
		s.fault("%s: %d calls of the session hang, GET stream: %v", when, open, listens)
		s.hangUp()
		<-done // each call gives up by itself at some time
	}
}

// succeeds sends a request that has no reason to fail, again when its edge dies.
func (s *modelSession) succeeds(pick int, method, params string) bool {
	for range 20 {
		s.note("%s %s to %d", method, params, pick)
		r, err := s.m.send(s.m.ctx, pick, http.MethodPost, `{"jsonrpc":"2.0","id":"r","method":"`+method+`","params":`+params+`}`, s.id, "")
		text := ""
		if err == nil {
			text, err = r.text()
		}
		switch {
		case err == nil && r.StatusCode == http.StatusOK && strings.Contains(text, `"result"`):
			return true
		case err == nil && strings.Contains(text, `"reason":"unavailable"`):
			s.m.refused() // what cannot be stored or promised now
		case err == nil:
			s.fault("%s: %s %s", method, r.Status, text)
			return false
		case !errors.Is(err, errModelKilled):
			if s.m.ctx.Err() == nil {
				s.fault("%s: %v", method, err)
			}
			return false
		}
	}
	s.fault("%s: every edge is killed before it answers, or refuses it", method)
	return false
}

// tells sends a notification or an answer, again when its edge dies.
func (s *modelSession) tells(pick int, text string) {
	for range 20 {
		s.note("to %d: %s", pick, text)
		begun := modelTime()
		r, err := s.m.send(s.m.ctx, pick, http.MethodPost, text, s.id, "")
		by := "an edge"
		if err == nil {
			by = s.m.name(r.node)
			_, err = r.text()
		}
		s.mu.Lock()
		s.sent = append(s.sent, fmt.Sprintf("%sto %s: %s: %v at %s", begun, by, text, err, modelTime()))
		s.sent = s.sent[max(0, len(s.sent)-40):]
		s.mu.Unlock()
		switch {
		case err == nil && (r.StatusCode == http.StatusAccepted || r.StatusCode == http.StatusNotFound && s.over()):
			return
		case err == nil:
			s.fault("%s: %s", text, r.Status)
			return
		case !errors.Is(err, errModelKilled):
			if s.m.ctx.Err() == nil {
				s.fault("%s: %v", text, err)
			}
			return
		}
	}
}

// call begins a call; false: the run is over.
func (c *modelClient) call() bool {
	s := c.session
	select {
	case s.slots <- struct{}{}:
	case <-c.m.ctx.Done():
		return false
	case <-time.After(modelPatience):
		s.fault("no call ends")
		return false
	}
	s.mu.Lock()
	s.calls++
	call := &modelCall{s: s, id: s.calls, rng: rand.New(rand.NewPCG(c.rng.Uint64(), 0)), asked: map[string]*ask{}}
	call.work = modelWork{Name: fmt.Sprintf("%s-%d", s.tag, call.id), Steps: c.rng.IntN(7), Delay: c.rng.IntN(40)}
	if c.rng.IntN(12) == 0 {
		call.work.Delay = 300 // long enough to be stored without a second message, and to be primed
	}
	if s.revision != "2025-03-26" && c.rng.IntN(3) == 0 {
		call.work.Asks = 1 + c.rng.IntN(2)
	}
	call.left, call.leave = context.WithCancel(context.Background())
	s.open[call.id] = call
	s.mu.Unlock()
	s.running.Go(func() {
		defer call.leave()
		call.run()
		s.mu.Lock()
		delete(s.open, call.id)
		s.mu.Unlock()
		<-s.slots
	})
	return true
}

// cancel cancels a call that runs.
func (c *modelClient) cancel(pick int) {
	s := c.session
	s.mu.Lock()
	var one *modelCall
	for id := 1; id <= s.calls && one == nil; id++ { // the oldest, whatever the order of the map
		one = s.open[id]
	}
	if one != nil {
		one.cancelled = true
	}
	s.mu.Unlock()
	if one != nil {
		s.tells(pick, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, one.id))
		time.AfterFunc(modelFarewell, one.leave) // no answer has to come, and who gave up does not wait for one
	}
}

// end ends the session: what runs in it ends, and no edge knows it any more.
func (c *modelClient) end(pick int) {
	s := c.session
	c.session = nil
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	limit := time.Now().Add(modelPatience)
	for {
		s.note("DELETE to %d", pick)
		r, err := c.m.send(c.m.ctx, pick, http.MethodDelete, "", s.id, "")
		if err == nil {
			_, err = r.text()
		}
		if errors.Is(err, errModelKilled) {
			continue
		}
		if err == nil && r.StatusCode == http.StatusServiceUnavailable && time.Now().Before(limit) {
			c.m.refused()
			continue
		}
		if err != nil || r.StatusCode != http.StatusNoContent && r.StatusCode != http.StatusNotFound {
			if c.m.ctx.Err() == nil {
				s.fault("DELETE: %v, %v", r, err)
			}
			return
		}
		break
	}
	s.wait("after DELETE")
	limit = time.Now().Add(modelPatience)
	for pick := range clusterSize {
		for {
			r, err := c.m.send(c.m.ctx, pick, http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, s.id, "")
			if err == nil {
				_, err = r.text()
			}
			if err == nil && r.StatusCode == http.StatusNotFound || c.m.ctx.Err() != nil {
				break
			}
			if time.Now().After(limit) {
				s.fault("an edge goes on with the session after DELETE: %v, %v", r, err)
				return
			}
		}
	}
}

// listen opens a GET stream, which replaces the one before, or ends it.
func (c *modelClient) listen() {
	s := c.session
	s.hangUp()
	if c.rng.IntN(4) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(c.m.ctx)
	s.mu.Lock()
	s.listening = cancel
	s.mu.Unlock()
	first := make(chan struct{}) // closed when it is open
	rng := rand.New(rand.NewPCG(c.rng.Uint64(), 0))
	s.running.Go(func() { s.follow(ctx, rng, sync.OnceFunc(func() { close(first) })) })
	select {
	case <-first:
	case <-time.After(modelPatience):
		s.fault("the GET stream does not open")
	}
}

// hangUp ends the GET stream.
func (s *modelSession) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listening != nil {
		s.listening()
		s.listening = nil
		if s.asking {
			s.halfOpen++
		}
	}
}

// follow keeps a GET stream until ctx ends or the session does.
func (s *modelSession) follow(ctx context.Context, rng *rand.Rand, opened func()) {
	defer opened()
	lastID, refused := "", 0
	for {
		pick := rng.IntN(clusterSize)
		s.mu.Lock()
		if ctx.Err() != nil { // checked where hangUp cannot come between
			s.mu.Unlock()
			return
		}
		s.asking = true
		if lastID == "" {
			s.blind++
		}
		s.mu.Unlock()
		s.note("GET from %d after %q", pick, lastID)
		r, err := s.m.send(ctx, pick, http.MethodGet, "", s.id, lastID)
		s.mu.Lock()
		if ctx.Err() == nil {
			s.asking = false
		}
		s.mu.Unlock()
		if err != nil {
			if !errors.Is(err, errModelKilled) && ctx.Err() == nil {
				s.fault("GET: %v", err)
				return
			}
			continue
		}
		if r.StatusCode != http.StatusOK {
			text, _ := r.text()
			if r.StatusCode == http.StatusServiceUnavailable && !s.over() {
				s.m.refused()
				refused++
				if refused < modelRefusals {
					continue
				}
			}
			if r.StatusCode != http.StatusNotFound || !s.over() {
				s.fault("GET: %s %s", r.Status, text)
			}
			return
		}
		refused = 0
		if lastID == "" {
			s.mu.Lock()
			s.blind++ // the request began before this, and was deaf until now
			s.mu.Unlock()
		}
		opened()
		events := sse.NewReader(r.Body, 1<<20)
		for err = nil; err == nil; {
			var ev sse.Event
			if ev, err = events.Next(); err == nil && len(ev.Data) > 0 {
				s.hear(ev.Data)
			}
			if id := events.LastID(); id != "" {
				lastID = id
			}
		}
		r.Body.Close()
		if !r.node.killed.Load() && ctx.Err() == nil && !s.over() && !errors.Is(err, io.EOF) {
			s.fault("the GET stream broke off: %v", err)
			return
		}
		if errors.Is(err, io.EOF) && !r.node.killed.Load() && ctx.Err() == nil && !s.over() && !s.excuseClose() {
			// Closed by the edge: only a newer stream is a reason, and this
			// session has none.
			s.fault("the GET stream was closed")
			return
		}
	}
}

// excuseClose reports whether a stream may have made room for one that the client
// had given up.
func (s *modelSession) excuseClose() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.halfOpen--
	return s.halfOpen >= 0
}

// hear takes a message of the GET stream.
func (s *modelSession) hear(raw []byte) {
	var msg struct {
		Method string
		Params struct{ URI string }
	}
	if err := json.Unmarshal(raw, &msg); err != nil {
		s.fault("GET: %v: %s", err, raw)
		return
	}
	switch {
	case strings.HasSuffix(msg.Method, "/list_changed"):
	case msg.Method == mcp.NotificationResourceUpdated && strings.HasPrefix(msg.Params.URI, "model://"+s.tag+"/"):
		s.mu.Lock()
		s.told[msg.Params.URI]++
		s.mu.Unlock()
	default:
		s.fault("GET: not a message of this stream: %s", raw)
	}
}

// subscribe subscribes to a resource, changes it and waits to be told, if there
// is a GET stream to be told on; then mostly unsubscribes.
func (c *modelClient) subscribe(pick int) {
	s := c.session
	uri := fmt.Sprintf("model://%s/%d", s.tag, c.rng.IntN(5))
	if !s.succeeds(pick, mcp.MethodSubscribe, `{"uri":"`+uri+`"}`) {
		return
	}
	s.mu.Lock()
	listens, before := s.listening != nil, s.told[uri]
	s.mu.Unlock()
	if listens {
		c.m.count("update", 1)
		s.expectUpdate(uri, before)
	}
	if c.rng.IntN(3) > 0 {
		s.succeeds(c.rng.IntN(clusterSize), mcp.MethodUnsubscribe, `{"uri":"`+uri+`"}`)
	}
}

// expectUpdate changes a resource, once, and waits to be told. When a stream began
// without a place meanwhile, the news may have fallen between two streams: then,
// and only then, the resource changes again.
func (s *modelSession) expectUpdate(uri string, before int) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for attempt := 1; ; attempt++ {
		s.mu.Lock()
		blind := s.blind
		s.mu.Unlock()
		s.note("change %s", uri)
		s.m.cluster.worker.ResourceUpdated(uri)
		limit := time.Now().Add(modelTold)
		for time.Now().Before(limit) {
			s.mu.Lock()
			told := s.told[uri]
			s.mu.Unlock()
			if told > before || s.m.ctx.Err() != nil {
				return
			}
			<-tick.C
		}
		s.mu.Lock()
		excused := s.blind != blind || s.asking
		s.mu.Unlock()
		if !excused || attempt > 10 {
			s.fault("not told that %s has changed, at attempt %d; %s", uri, attempt, s.m.followed(s.id))
			return
		}
		s.m.count("update again", 1)
	}
}

var errModelWrong = errors.New("wrong")

// run makes the call and follows it to its outcome.
func (c *modelCall) run() {
	ctx, cancel := context.WithTimeout(c.s.m.ctx, modelPatience)
	defer cancel()
	context.AfterFunc(c.left, cancel)
	args, err := json.Marshal(c.work)
	if err != nil {
		c.s.fault("%v", err)
		return
	}
	// Ids and tokens are the same in all sessions: 1, 2, 3.
	text := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"act","arguments":%s,"_meta":{"progressToken":%d}}}`, c.id, args, c.id)
	method := http.MethodPost
	for {
		err := c.connect(ctx, method, text)
		cancelled, ended := c.given()
		switch {
		case c.final != "":
			c.s.m.count("result", 1)
			c.check(cancelled || ended)
			return
		case errors.Is(err, errModelWrong):
			return // reported
		case c.s.m.ctx.Err() != nil:
			return
		case cancelled || ended:
			c.s.m.count("given up", 1)
			c.check(true)
			return
		case ctx.Err() != nil:
			begun, over := c.s.m.book.of(c.work.Name)
			_ = c.wrong("hangs, at %q, %d rounds begun, %d over, asked %d; stored: %s", c.lastID, begun, over, len(c.asked), c.s.m.stored(c.s.id, c.lastID))
			return
		case c.lastID == "" && (errors.Is(err, errModelKilled) || errors.Is(err, errModelCut)):
			c.s.m.count("lost without a place", 1) // nothing can be done
			return
		case c.lastID == "":
			_ = c.wrong("ended without an answer or a place: %v", err)
			return
		case errors.Is(err, errModelKilled), errors.Is(err, errModelCut), errors.Is(err, io.EOF):
		default:
			_ = c.wrong("broke off: %v", err)
			return
		}
		select {
		case <-time.After(min(c.retry, time.Duration(c.rng.IntN(30))*time.Millisecond)):
		case <-ctx.Done():
		}
		c.s.m.count("resume", 1)
		method, text = http.MethodGet, ""
	}
}

// given says whether the client has given up the call, and whether its session.
func (c *modelCall) given() (cancelled, ended bool) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.cancelled, c.s.ended
}

// connect makes the call or goes on with it, until the connection ends.
func (c *modelCall) connect(ctx context.Context, method, text string) error {
	ctx, cut := context.WithCancel(ctx)
	defer cut()
	pick := c.rng.IntN(clusterSize)
	c.note("%s after %q %s", method, c.lastID, text)
	r, err := c.s.m.send(ctx, pick, method, text, c.s.id, c.lastID)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	c.node = r.node
	c.note("served by %s: %s", c.s.m.name(r.node), r.Status)
	if r.StatusCode != http.StatusOK {
		text, err := r.text()
		if cancelled, ended := c.given(); err == nil && !cancelled && !ended {
			return c.wrong("%s: %s %s", method, r.Status, text)
		}
		return io.EOF
	}
	if mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); mediaType == "application/json" {
		text, err := r.text()
		if err != nil {
			return err
		}
		return c.take([]byte(text))
	}
	events := sse.NewReader(r.Body, 1<<20)
	cutAt := -1 // an event after which the client leaves
	if c.rng.IntN(4) == 0 {
		cutAt = c.rng.IntN(6)
	}
	for n := 0; ; n++ {
		ev, err := events.Next()
		if id := events.LastID(); id != "" {
			c.lastID = id
		}
		c.retry = events.Retry()
		if err != nil {
			c.note("end of the connection: %v", err)
			return r.failure(err)
		}
		if len(ev.Data) > 0 {
			if err := c.take(ev.Data); err != nil {
				return err
			}
		}
		if n == cutAt && c.final == "" {
			c.note("cut after %q", c.lastID)
			c.s.m.count("cut", 1)
			return errModelCut
		}
	}
}

// wrong reports a fault of the call.
func (c *modelCall) wrong(format string, args ...any) error {
	c.s.mu.Lock()
	history := append(slices.Clone(c.history), c.s.sent...)
	c.s.mu.Unlock()
	c.s.m.fault(history, "%s: call %d %+v: "+format, append([]any{c.s.tag, c.id, c.work}, args...)...)
	return errModelWrong
}

// note writes into the history of the call.
func (c *modelCall) note(format string, args ...any) {
	c.history = append(c.history, modelTime()+fmt.Sprintf(format, args...))
}

// take takes one message of the call's stream.
func (c *modelCall) take(raw []byte) error {
	c.note("got %s", raw)
	var msg struct {
		ID     json.RawMessage
		Method string
		Params struct {
			ProgressToken int
			Progress      int
			Message       string
		}
		Result, Error json.RawMessage
	}
	if err := json.Unmarshal(raw, &msg); err != nil {
		return c.wrong("%v: %s", err, raw)
	}
	switch {
	case c.final != "":
		return c.wrong("after the answer: %s", raw)
	case msg.Method == mcp.NotificationProgress:
		if msg.Params.ProgressToken != c.id || msg.Params.Message != c.work.Name {
			return c.wrong("somebody else's progress: %s", raw)
		}
		if msg.Params.Progress != c.seen+1 {
			return c.wrong("progress %d after %d", msg.Params.Progress, c.seen)
		}
		c.seen++
	case msg.Method == mcp.MethodElicit:
		question := c.asked[string(msg.ID)]
		if question == nil {
			key := fmt.Sprintf("q%d", len(c.asked)+1)
			if msg.Params.Message != c.work.Name+" "+key {
				return c.wrong("not the question %s: %s", key, raw)
			}
			question = &ask{answer: fmt.Sprintf("%s-%s-%d", c.work.Name, key, c.rng.IntN(1000))}
			c.asked[string(msg.ID)] = question
			c.answers = append(c.answers, question.answer)
			c.s.m.count("ask", 1)
		} else if !question.node.killed.Load() {
			// An edge that was killed may have taken the answer with it.
			return c.wrong("asked twice: %s", raw)
		}
		question.node = c.node
		answer := question.answer
		pick := c.rng.IntN(clusterSize)
		c.s.running.Go(func() {
			c.s.tells(pick, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"text":%q}}}`, msg.ID, answer))
		})
	case msg.Method == "" && string(msg.ID) == fmt.Sprint(c.id):
		c.final = string(raw)
	default:
		return c.wrong("not a message of this call: %s", raw)
	}
	return nil
}

// check judges the outcome. What a client has given up may have ended in any
// way, but not with somebody else's result, and not by running twice.
func (c *modelCall) check(givenUp bool) {
	begun, _ := c.s.m.book.of(c.work.Name)
	if begun > c.work.Asks+1 {
		_ = c.wrong("%d rounds ran, it has %d", begun, c.work.Asks+1)
	}
	want := `"text":"` + modelResult(c.work.Name, c.answers) + `"`
	switch {
	case strings.Contains(c.final, want) && begun == c.work.Asks+1 && len(c.answers) == c.work.Asks && c.seen == c.work.Steps*(c.work.Asks+1):
	case givenUp && (c.final == "" || strings.Contains(c.final, `"error"`)):
	default:
		_ = c.wrong("ended with %s after %d rounds, %d questions and progress %d; want %s", c.final, begun, len(c.answers), c.seen, want)
	}
}
