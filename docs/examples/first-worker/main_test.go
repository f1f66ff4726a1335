package main

import (
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/millrace/millrace/worker/workertest"
)

func TestWordCount(t *testing.T) {
	t.Parallel()
	w := newWorker(slog.New(slog.DiscardHandler))
	outcome := workertest.Call(t, w, "word_count", map[string]string{"text": "To be, or not to be!"})
	if outcome.Error != nil {
		t.Fatal(outcome.Error)
	}
	var got countOutput
	if err := json.Unmarshal([]byte(outcome.Text()), &got); err != nil {
		t.Fatal(err)
	}
	if got.Words != 6 || got.Counts["to"] != 2 || got.Counts["be"] != 2 || got.Counts["or"] != 1 {
		t.Errorf("got %+v", got)
	}
	if len(outcome.Progress) != 6 {
		t.Errorf("%d progress events, want one a word", len(outcome.Progress))
	}
}
