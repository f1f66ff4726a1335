package main

import "testing"

func TestRules(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		board, want string
	}{
		"queries":        {`{"panels":[{"id":1,"type":"row"},{"id":2,"type":"stat","targets":[{"expr":"rate(x{pool=~\"$pool\"}[$__rate_interval])"}]}]}`, `{"groups":[{"name":"dashboard","rules":[{"record":"panel_2:query_0","expr":"rate(x{pool=~\"glossary\"}[5m])"}]}]}`},
		"no panel":       {`{"panels":[]}`, ""},
		"no query":       {`{"panels":[{"id":1,"type":"stat"}]}`, ""},
		"empty query":    {`{"panels":[{"id":1,"targets":[{"expr":""}]}]}`, ""},
		"other variable": {`{"panels":[{"id":1,"targets":[{"expr":"$x"}]}]}`, ""},
		"same id":        {`{"panels":[{"id":1,"targets":[{"expr":"a"}]},{"id":1,"targets":[{"expr":"a"}]}]}`, ""},
		"no JSON":        {`{`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := rulesOf([]byte(c.board))
			if string(got) != c.want || (err != nil) != (c.want == "") {
				t.Errorf("%s %v, want %s", got, err, c.want)
			}
		})
	}
}
