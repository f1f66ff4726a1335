// Command dashboard writes the queries of a Grafana dashboard as recording rules
// for Prometheus, so that promtool can tell whether they are valid:
//
//	dashboard DASHBOARD.json >rules.yaml
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "dashboard:", err) // stderr is the last resort
		os.Exit(1)                                        //nolint:forbidigo // this is main
	}
}

func run(args []string, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: dashboard DASHBOARD.json")
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	rules, err := rulesOf(text)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	_, err = out.Write(rules)
	return err
}

// rule is a recording rule; JSON is YAML too.
type rule struct {
	Record string `json:"record"`
	Expr   string `json:"expr"`
}

// rulesOf are the queries with the variables of Grafana filled in. A panel
// without a query is an error: nobody would see that it is empty.
func rulesOf(text []byte) ([]byte, error) {
	var board struct {
		Panels []struct {
			ID      int    `json:"id"`
			Type    string `json:"type"`
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(text, &board); err != nil {
		return nil, err
	}
	fill := strings.NewReplacer("$__rate_interval", "5m", "$__interval", "1m", "$namespace", "millrace", "$pool", "glossary")
	var rules []rule
	seen := map[int]bool{}
	for _, p := range board.Panels {
		if seen[p.ID] {
			return nil, fmt.Errorf("two panels have the id %d", p.ID)
		}
		seen[p.ID] = true
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 {
			return nil, fmt.Errorf("panel %q has no query", p.Title)
		}
		for i, target := range p.Targets {
			expr := fill.Replace(target.Expr)
			if expr == "" || strings.Contains(expr, "$") {
				return nil, fmt.Errorf("panel %q: %q is empty or has a variable that is not known here", p.Title, target.Expr)
			}
			rules = append(rules, rule{fmt.Sprintf("panel_%d:query_%d", p.ID, i), expr})
		}
	}
	if len(rules) == 0 {
		return nil, errors.New("there are no panels")
	}
	return json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
}
