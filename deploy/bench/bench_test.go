package main

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/deploy/bench/servers/payload"
)

// TestWrongAnswersEndIt has a server give answers that are wrong in one thing
// each: a benchmark that counts those would measure how fast a server fails.
func TestWrongAnswersEndIt(t *testing.T) {
	t.Parallel()
	const id = "100000001" // the first one
	result := func(id, text string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%q}]}}`, id, text)
	}
	event := func(step int, token string) string {
		return fmt.Sprintf("data: "+`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"total":10}}`+"\n\n", token, step)
	}
	var events strings.Builder
	for i := range payload.Steps {
		events.WriteString(event(i+1, id))
	}
	counted := "data: " + strings.Replace(string(payload.Counted()), `"id":0`, `"id":`+id, 1) + "\n\n"
	list := strings.Replace(string(payload.LongList()), `"id":0`, `"id":`+id, 1)
	text := payload.Text(payload.SaySize)
	const asJSON, asEvents = "application/json", "text/event-stream"
	for name, c := range map[string]struct {
		shape  string
		status int
		media  string
		body   string
		loses  bool
		wrong  string // empty: nothing is
	}{
		"right":                 {small, 200, asJSON, result(id, text), false, ""},
		"status":                {small, 500, asJSON, result(id, text), false, "wrong status"},
		"another id":            {small, 200, asJSON, result("100000002", text), false, "to something else"},
		"another text":          {small, 200, asJSON, result(id, text+"x"), false, "the answer is wrong"},
		"an error besides":      {small, 200, asJSON, strings.Replace(result(id, text), `"result"`, `"error":{"code":1},"result"`, 1), false, "no good result"},
		"an error of the tool":  {small, 200, asJSON, strings.Replace(result(id, text), `"content"`, `"isError":true,"content"`, 1), false, "no good result"},
		"half":                  {small, 200, asJSON, strings.TrimSuffix(result(id, text), "}"), false, "unexpected end of JSON"},
		"list":                  {longList, 200, asJSON, list, false, ""},
		"a tool less":           {longList, 200, asJSON, strings.Replace(list, `"inputSchema"`, `"schema"`, 1), false, "999 tools"},
		"progress":              {progress, 200, asEvents, events.String() + counted, false, ""},
		"progress, no stream":   {progress, 200, asJSON, events.String() + counted, false, "no stream"},
		"progress, one missing": {progress, 200, asEvents, strings.Replace(events.String(), event(4, id), "", 1) + counted, false, "9 reports"},
		"progress, known loss":  {progress, 200, asEvents, strings.Replace(events.String(), event(4, id), "", 1) + counted, true, ""},
		"progress, order":       {progress, 200, asEvents, event(2, id) + strings.Replace(events.String(), event(2, id), "", 1) + counted, false, "message 1 is not"},
		"progress of another":   {progress, 200, asEvents, strings.Replace(events.String(), event(4, id), event(4, "7"), 1) + counted, false, "message 4 is not"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", c.media)
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
			}))
			defer server.Close()
			var request *request
			for _, s := range shapes() {
				if s.name == c.shape {
					request = &s.request
				}
			}
			call, err := newCaller(t.Context(), target{loses: c.loses}, server.URL+"/mcp", request, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer call.close()
			err = call.once()
			if (c.wrong == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("got %v, want %q", err, c.wrong)
			}
		})
	}
}

// TestEverythingIsMeasured runs all of it, briefly.
func TestEverythingIsMeasured(t *testing.T) {
	t.Parallel()
	var table bytes.Buffer
	if err := run(t.Context(), options{
		rounds: 1, warm: time.Millisecond, measured: 30 * time.Millisecond, idle: 20, rest: time.Millisecond,
	}, &table, t.Output()); err != nil {
		t.Fatal(err)
	}
	for _, s := range shapes() {
		_, part, found := strings.Cut(table.String(), "| **"+s.name+"**")
		part, _, _ = strings.Cut(part, "| **")
		if !found {
			t.Errorf("%s was not measured", s.name)
		}
		for _, of := range s.of() {
			if !strings.Contains(part, "\n| "+of.name+" |") {
				t.Errorf("%s: %s was not measured", s.name, of.name)
			}
		}
	}
	_, kept, found := strings.Cut(table.String(), "| KiB kept for it |")
	if !found || !strings.Contains(kept, "| an idle stream, on the edge |") {
		t.Error("sessions or goals are missing")
	}
	for _, of := range targets() {
		if of.session && !strings.Contains(kept, "\n| "+of.name+" |") {
			t.Errorf("sessions of %s were not measured", of.name)
		}
	}
	if t.Failed() {
		t.Logf("the table:\n%s", &table)
	}
}

func TestFigures(t *testing.T) {
	t.Parallel()
	for value, want := range map[float64]string{
		0: "0.00", 1.234: "1.23", 9.96: "10.0", 99.44: "99.4", 99.6: "100", 999.6: "1,000", 1234567: "1,234,567", -1500: "-1,500", 123456: "123,456",
	} {
		if got := number(value); got != want {
			t.Errorf("%v is written %s, want %s", value, got, want)
		}
	}
	if got := number(math.Inf(1)); got != "∞" {
		t.Errorf("infinity is written %s", got)
	}
	if got := number(math.NaN()); got != "-" {
		t.Errorf("what was not measured is written %s", got)
	}
	r := rounds{30, 10, 20}
	if r.median() != 20 || r.spread() != 1 {
		t.Errorf("median %v, spread %v", r.median(), r.spread())
	}
	if got := (rounds{1, 2}).median(); got != 1.5 {
		t.Errorf("median of two: %v", got)
	}
}
