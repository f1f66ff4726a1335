package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/millrace/millrace/worker"
)

// workerCommand is the argument that makes this program one of the workers.
const workerCommand = "worker"

// pool is the name of the workers.
const pool = "chaos"

// The tools of the workers: the same work, of which only one may run twice.
const (
	toolOnce = "act"
	toolMany = "look"
)

// arguments are those of both tools.
type arguments struct {
	Token   int `json:"token"`
	Attempt int `json:"attempt"`
	MS      int `json:"ms"`
}

// runWorker runs a worker until it is told to stop.
func runWorker(args []string) error {
	flags := flag.NewFlagSet(workerCommand, flag.ContinueOnError)
	nats := flags.String("nats", "", "")
	name := flags.String("name", "", "")
	path := flags.String("ledger", "", "folder of the ledger")
	status := flags.String("status", "", "socket")
	if err := flags.Parse(args); err != nil {
		return err
	}
	l, err := openLedger(*path, *name)
	if err != nil {
		return err
	}
	if err := serveStatus(*status); err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w := worker.New(worker.Config{Pool: pool, Version: "1.0.0", Logger: log})
	for tool, idempotent := range map[string]bool{toolOnce: false, toolMany: true} {
		worker.AddTool(w, worker.Tool{
			Name: tool, Description: "Waits, after it has written down that it was called.",
			Annotations: &worker.Annotations{IdempotentHint: new(idempotent)},
		}, l.work)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return w.Serve(ctx, *nats)
}

// ledger is what one process writes down: a line before it does anything for a
// call, and one when it has done it. Each is one write, so that a process that
// is killed leaves whole lines behind; they are in the file from then on,
// since it is the process that dies and not the machine.
type ledger struct {
	file *os.File
	name string // of this process, in all its lives
	runs atomic.Int64
}

func openLedger(dir, name string) (*ledger, error) {
	name = fmt.Sprintf("%s-%d", name, os.Getpid())
	file, err := os.OpenFile(dir+"/"+name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // for people to read
	return &ledger{file: file, name: name}, err
}

// note writes a line: what happened, when, in which execution, and for which
// attempt of which call.
func (l *ledger) note(event string, run int64, in arguments) error {
	_, err := fmt.Fprintf(l.file, "%s %d %d %d %d\n", event, time.Now().UnixNano(), run, in.Token, in.Attempt)
	return err
}

// What a line of a ledger says.
const (
	noteBegin = "begin"
	noteEnd   = "end"
	noteCut   = "cut" // the context of the call ended
)

// work is both tools.
func (l *ledger) work(ctx context.Context, call *worker.Call, in arguments) (string, error) {
	run := l.runs.Add(1)
	if err := l.note(noteBegin, run, in); err != nil {
		return "", err
	}
	steps := max(in.MS/250, 1)
	for i := range steps {
		timer := time.NewTimer(time.Duration(in.MS) * time.Millisecond / time.Duration(steps))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return "", l.note(noteCut, run, in)
		}
		if steps > 1 {
			call.Progress(float64(i+1), float64(steps), strconv.Itoa(in.Token))
		}
	}
	if err := l.note(noteEnd, run, in); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d %d %s %d", in.Token, in.Attempt, l.name, run), nil
}

// serveStatus does for this program what the overlay does for the other one.
func serveStatus(path string) error {
	_ = os.Remove(path) // of the process before
	ln, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	go func() { // until the process ends
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(conn, "%d\n", runtime.NumGoroutine()) // whoever asked may have left
			_ = pprof.Lookup("goroutine").WriteTo(conn, 1)
			_ = conn.Close()
		}
	}()
	return nil
}
