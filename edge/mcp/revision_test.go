package mcp

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/edge/jsonrpc"
)

func TestRevisions(t *testing.T) {
	t.Parallel()
	dates := Supported()
	if len(dates) != 5 || !slices.IsSortedFunc(dates, func(a, b string) int { return -compare(a, b) }) {
		t.Errorf("Supported() = %q, want five dates, newest first", dates)
	}
	numbers := map[byte]bool{}
	for _, date := range dates {
		rev, ok := Lookup(date)
		if !ok || rev.Date != date {
			t.Errorf("Lookup(%q) = %+v, %v", date, rev, ok)
			continue
		}
		same, ok := Numbered(rev.Number)
		if !ok || same != rev || numbers[rev.Number] {
			t.Errorf("the number %d of %s is not its own", rev.Number, date)
		}
		numbers[rev.Number] = true
	}
	if got := Legacy().Date; got != "2025-11-25" {
		t.Errorf("Legacy() = %s", got)
	}
	if got := Modern().Date; got != "2026-07-28" {
		t.Errorf("Modern() = %s", got)
	}
	if got := Assumed().Date; got != "2025-03-26" {
		t.Errorf("Assumed() = %s", got)
	}
	for _, date := range []string{"", "1999-01-01", "2025-11-2", "2026-07-28 "} {
		if _, ok := Lookup(date); ok {
			t.Errorf("Lookup(%q) finds a revision", date)
		}
	}
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

func TestProgressToken(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		`0`: `0`, `"0"`: `"0"`, `""`: `""`, `-7`: `-7`, `9007199254740993`: `9007199254740993`, `null`: ``, ``: ``,
	} {
		got, err := ProgressToken(meta(raw))
		if err != nil || string(got) != want {
			t.Errorf("ProgressToken(%s) = %s, %v", raw, got, err)
		}
	}
	for _, raw := range []string{`1.5`, `1e3`, `true`, `{}`, `[1]`, `-`} {
		if got, err := ProgressToken(meta(raw)); err == nil {
			t.Errorf("ProgressToken(%s) = %s, want an error", raw, got)
		}
	}
}

func meta(token string) jsonrpc.Object {
	if token == "" {
		return jsonrpc.Object{}
	}
	return jsonrpc.Object{Members: []jsonrpc.Member{{Key: MetaProgressToken, Value: []byte(token)}}}
}
