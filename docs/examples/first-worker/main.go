// Command first-worker is a worker in a module of its own: what somebody writes
// who uses Millrace and does not change it.
//
//	millrace up --nats-listen 127.0.0.1:4222
//	go run .
//	millrace call word_count --arg text='to be or not to be'
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/millrace/millrace/worker"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(log); err != nil {
		log.Error("worker stopped", "error", err)
		os.Exit(1)
	}
}

// run serves until a signal comes.
func run(log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	url := os.Getenv("NATS_URL")
	if url == "" {
		url = "nats://127.0.0.1:4222"
	}
	return newWorker(log).Serve(ctx, url)
}

// newWorker is apart from main so that the test can have the worker without a
// process and without NATS.
func newWorker(log *slog.Logger) *worker.Worker {
	w := worker.New(worker.Config{Pool: "words", Version: "1.0.0", Logger: log})
	worker.AddTool(w, worker.Tool{
		Name:        "word_count",
		Description: "Counts how often each word occurs in a text.",
		Annotations: &worker.Annotations{ReadOnlyHint: new(true)},
	}, wordCount)
	return w
}

type countInput struct {
	Text string `json:"text" jsonschema:"the text to count in"`
}

type countOutput struct {
	Words  int            `json:"words"`
	Counts map[string]int `json:"counts"`
}

func wordCount(ctx context.Context, call *worker.Call, in countInput) (countOutput, error) {
	out := countOutput{Counts: map[string]int{}}
	words := strings.Fields(strings.ToLower(in.Text))
	for i, word := range words {
		if ctx.Err() != nil { // the client has cancelled, or nobody waits any more
			return out, context.Cause(ctx)
		}
		out.Counts[strings.Trim(word, ".,;:!?\"'()")]++
		call.Progress(float64(i+1), float64(len(words)), "counting")
	}
	out.Words = len(words)
	return out, nil
}
