package legacy

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/edge/seal"
	"github.com/millrace/millrace/proto/bus"
)

func TestPlace(t *testing.T) {
	t.Parallel()
	ring, err := seal.NewRing()
	if err != nil {
		t.Fatal(err)
	}
	e := &Era{Routes: ring}
	for _, id := range []string{`1`, `"a-b.c"`, `""`, `12345678901234567890`, `"` + strings.Repeat("x", 100) + `"`} {
		name := nameStream(e.Routes, "scope", "STREAM7", []byte(id))
		for _, p := range []place{
			{streamName: name},
			{streamName: name, EventPoint: bus.EventPoint{Round: 3, Number: 1 << 60}},
			{streamName: name, EventPoint: bus.EventPoint{Round: 1, Number: 2}, part: 4},
			{streamName: name, EventPoint: bus.EventPoint{Round: 1, Number: 2}, part: 4, end: true},
		} {
			text := p.String()
			if got, ok := e.parsePlace("scope", text); !ok || got != p || !looksLikePlace(text) {
				t.Errorf("%q reads as %+v, %v; want %+v", text, got, ok, p)
			}
			if len(id) <= maxRequestID != (p.request == id) {
				t.Errorf("id %s became %q", id, p.request)
			}
			for _, bad := range []string{"", "x" + text, text + "x", text + ".1.2", strings.Replace(text, ".", "", 1), strings.ToLower(text)} {
				if got, ok := e.parsePlace("scope", bad); ok {
					t.Errorf("%q reads as %+v", bad, got)
				}
			}
			if _, ok := e.parsePlace("other", text); ok {
				t.Errorf("%q is good in another session", text)
			}
		}
	}
	if looksLikePlace("g-abc-def") {
		t.Error("the id of a stream of no call looks like one of a call")
	}
}
