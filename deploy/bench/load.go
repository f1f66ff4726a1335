package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"
)

// idWidth is how many digits ids have: they are replaced in place.
const idWidth = 9

// request is a request that is made again and again, with another id each time.
type request struct {
	// method and name are for the headers of the modern revision.
	method, name string
	// params are without those of the modern revision; meta is what their _meta
	// has. %s in it stands for the id.
	params, meta string
	// kind is the answer of servers that know nothing of the protocol.
	kind string
	// modern: in the modern revision.
	modern bool
	// body is what each answer has to contain; steps is how many reports of
	// progress come before.
	body  []byte
	steps int
	// listed is how many tools a list has.
	listed int
	// opens: the answer begins a session, where there are some.
	opens bool
}

// idMark stands for an id.
const idMark = "100000000"

// message is the request as it is sent, and the headers it needs.
func (q *request) message() (message []byte, headers string) {
	params, meta := q.params, q.meta
	if q.modern {
		if meta != "" {
			meta += ","
		}
		meta += `"io.modelcontextprotocol/protocolVersion":"` + modern + `","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1.0.0"},"io.modelcontextprotocol/clientCapabilities":{}`
		headers = "Mcp-Method: " + q.method + "\r\n"
		if q.name != "" {
			headers += "Mcp-Name: " + q.name + "\r\n"
		}
	}
	if meta != "" {
		if params != "" {
			params += ","
		}
		params += `"_meta":{` + meta + `}`
	}
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s}}`, idMark, q.method, params), headers
}

// caller makes a request on a connection of its own.
type caller struct {
	*conn

	request *request
	target  target
	// marks are where the ids are in out.
	marks []int
	id    int
	// checked: an answer was read with a JSON decoder already.
	checked bool
	samples []time.Duration
	// lost is how many reports of progress did not come.
	lost int
}

// idsOfCaller is how many ids a caller has for itself.
const idsOfCaller = 1_000_000

func newCaller(ctx context.Context, t target, endpoint string, q *request, number int) (*caller, error) {
	if t.fixed {
		endpoint += "/" + q.kind
	}
	c, err := dial(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	if t.session && !q.opens {
		if err := c.open(); err != nil {
			c.close()
			return nil, err
		}
	}
	revision := legacy
	switch {
	case q.modern:
		revision = modern
	case q.opens:
		revision = ""
	}
	first, _ := strconv.Atoi(idMark)
	call := &caller{conn: c, request: q, target: t, id: first + number*idsOfCaller}
	message, headers := q.message()
	c.header("POST", "application/json, text/event-stream", revision, headers, len(message))
	at := len(c.out)
	c.out = append(c.out, message...)
	for {
		i := bytes.Index(c.out[at:], []byte(idMark))
		if i < 0 {
			return call, nil
		}
		call.marks = append(call.marks, at+i)
		at += i + idWidth
	}
}

// once makes the request once and checks the answer.
func (c *caller) once() error {
	c.id++
	var id [idWidth]byte
	strconv.AppendInt(id[:0], int64(c.id), 10)
	for _, at := range c.marks {
		copy(c.out[at:], id[:])
	}
	r, err := c.send()
	if err != nil {
		return err
	}
	if err := c.check(r, id[:]); err != nil {
		return fmt.Errorf("%w: status %d, %.400s", err, r.status, r.body)
	}
	return nil
}

// check says what is wrong with an answer.
func (c *caller) check(r response, id []byte) error {
	q := c.request
	if r.status != 200 {
		return errors.New("wrong status")
	}
	if q.steps > 0 && !r.events {
		return errors.New("the answer is no stream")
	}
	if q.opens && c.target.session != (r.session != "") {
		return errors.New("a session is missing or too many")
	}
	if !c.target.fixed && !bytes.Contains(r.body, append([]byte(`"id":`), id...)) {
		return errors.New("the answer is to something else")
	}
	if !bytes.Contains(r.body, q.body) {
		return errors.New("the answer is wrong")
	}
	steps := bytes.Count(r.body, []byte(`"notifications/progress"`))
	if steps > q.steps || steps < q.steps && !c.target.loses {
		return fmt.Errorf("%d reports of progress instead of %d", steps, q.steps)
	}
	c.lost += q.steps - steps
	if q.listed > 0 {
		if listed := bytes.Count(r.body, []byte(`"inputSchema"`)); listed != q.listed {
			return fmt.Errorf("%d tools instead of %d", listed, q.listed)
		}
	}
	if c.checked {
		return nil
	}
	// What it is made of is looked at once: that takes longer than the call.
	c.checked = true
	return c.parse(r, id, steps)
}

// parse checks that an answer is JSON-RPC as it should be, with a number of
// reports of progress.
func (c *caller) parse(r response, id []byte, steps int) error {
	messages := [][]byte{r.body}
	if r.events {
		messages = nil
		for l := range bytes.Lines(r.body) {
			if data, ok := bytes.CutPrefix(l, []byte("data:")); ok && len(bytes.TrimSpace(data)) > 0 {
				messages = append(messages, data)
			}
		}
	}
	if len(messages) != steps+1 {
		return fmt.Errorf("%d messages instead of %d", len(messages), steps+1)
	}
	step := 0
	for i, text := range messages {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Error  json.RawMessage `json:"error"`
			Params struct {
				Token    json.RawMessage `json:"progressToken"`
				Progress int             `json:"progress"`
			} `json:"params"`
			Result *struct {
				IsError bool `json:"isError"`
			} `json:"result"`
		}
		if err := json.Unmarshal(text, &m); err != nil {
			return err
		}
		if i < steps {
			expected := m.Params.Progress == step+1 || c.target.loses && m.Params.Progress > step
			if m.Method != "notifications/progress" || !expected || !c.target.fixed && !bytes.Equal(m.Params.Token, id) {
				return fmt.Errorf("message %d is not the report that it should be", i+1)
			}
			step = m.Params.Progress
			continue
		}
		if m.Error != nil || m.Result == nil || m.Result.IsError || !c.target.fixed && !bytes.Equal(m.ID, id) {
			return errors.New("this is no good result")
		}
	}
	return nil
}

// outcome is what one round has measured.
type outcome struct {
	calls    int
	took     time.Duration
	cpu      time.Duration // of the server
	p50, p99 time.Duration
	bytes    int // of an answer
	lost     int // reports of progress
}

// load calls a server over a number of connections, each of which makes a call
// when the one before is answered: first to warm up, then measured.
func load(ctx context.Context, s *server, t target, q *request, connections int, warm, measured time.Duration) (outcome, error) {
	callers := make([]*caller, connections)
	defer func() {
		for _, c := range callers {
			if c != nil {
				c.close()
			}
		}
	}()
	for i := range callers {
		c, err := newCaller(ctx, t, s.url, q, i)
		if err != nil {
			return outcome{}, err
		}
		callers[i] = c
	}
	if _, err := phase(ctx, callers, warm, false); err != nil {
		return outcome{}, err
	}
	before, err := s.cpu()
	if err != nil {
		return outcome{}, err
	}
	var o outcome
	if o.took, err = phase(ctx, callers, measured, true); err != nil {
		return outcome{}, err
	}
	after, err := s.cpu()
	if err != nil {
		return outcome{}, err
	}
	o.cpu = after - before
	var samples []time.Duration
	for _, c := range callers {
		samples = append(samples, c.samples...)
		o.lost += c.lost
	}
	slices.Sort(samples)
	o.calls = len(samples)
	o.p50, o.p99 = samples[o.calls/2], samples[o.calls*99/100]
	o.bytes = len(callers[0].body)
	return o, nil
}

// phase has all callers call for a time, each at least once, and returns how
// long it took until the last answer.
func phase(ctx context.Context, callers []*caller, d time.Duration, sampled bool) (time.Duration, error) {
	failed := make(chan error, len(callers)) // one each
	began := time.Now()
	var all sync.WaitGroup
	for _, c := range callers {
		all.Go(func() {
			c.lost = 0 // the last phase counts
			for again := true; again && ctx.Err() == nil; again = time.Since(began) < d {
				at := time.Now()
				if err := c.once(); err != nil {
					failed <- err
					return
				}
				if sampled {
					c.samples = append(c.samples, time.Since(at))
				}
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	select {
	case err := <-failed:
		return 0, err
	default:
		return took, nil
	}
}
