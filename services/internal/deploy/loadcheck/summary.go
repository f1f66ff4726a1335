package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// result is what a script has written about its run.
type result struct {
	summary struct {
		Script     string                        `json:"script"`
		Passed     bool                          `json:"passed"`
		Thresholds []json.RawMessage             `json:"thresholds"`
		Metrics    map[string]map[string]float64 `json:"metrics"`
	}
	junit suites
}

// suites is a report in the form of JUnit.
type suites struct {
	XMLName xml.Name `xml:"testsuites"`
	Suite   struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Cases    []struct {
			Failure *struct{} `xml:"failure"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

// read reads both summaries of a script and takes them away, so that the next run
// has to write its own.
func (s *suite) read(script string) (*result, error) {
	r := &result{}
	for ending, parse := range map[string]func([]byte) error{
		".json": func(text []byte) error { return json.Unmarshal(text, &r.summary) },
		".xml":  func(text []byte) error { return xml.Unmarshal(text, &r.junit) },
	} {
		path := filepath.Join(s.out, script+ending)
		text, err := os.ReadFile(path)
		if err == nil {
			err = parse(text)
		}
		if err != nil {
			return nil, fmt.Errorf("summary of %s.js: %s: %w", script, filepath.Base(path), err)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// failed counts the failures in the report for machines.
func (r *result) failed() (n int) {
	for _, c := range r.junit.Suite.Cases {
		if c.Failure != nil {
			n++
		}
	}
	return n
}

// good checks that the summaries are those of a run that has passed and measured
// something.
func (r *result) good(script string) error {
	failed, judged := r.summary.Metrics["mcp_failed"]["rate"]
	switch {
	case r.summary.Script != script || !r.summary.Passed:
		return fmt.Errorf("summary of %s.js is that of %q, passed: %v", script, r.summary.Script, r.summary.Passed)
	case !judged || failed != 0:
		return fmt.Errorf("summary of %s.js: %v of its calls failed (judged: %v)", script, failed, judged)
	case r.summary.Metrics["iterations"]["count"] == 0:
		return fmt.Errorf("summary of %s.js: it did nothing", script)
	case len(r.summary.Thresholds) == 0 || r.junit.Suite.Tests != len(r.summary.Thresholds) || len(r.junit.Suite.Cases) != r.junit.Suite.Tests:
		return fmt.Errorf("summaries of %s.js have %d thresholds and %d tests, of which %d are there", script, len(r.summary.Thresholds), r.junit.Suite.Tests, len(r.junit.Suite.Cases))
	case r.junit.Suite.Failures != 0 || r.failed() != 0:
		return errors.New("summaries of " + script + ".js do not agree")
	}
	return nil
}
