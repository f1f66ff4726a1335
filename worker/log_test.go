package worker_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

func logging(log *journal, handle func(call *worker.Call)) *worker.Worker {
	w := newWorker(log.logger())
	worker.AddTool(w, worker.Tool{Name: "log"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		handle(call)
		return "", nil
	})
	return w
}

func lines(logs []*millracev1.LogMessage) string {
	var all []string
	for _, m := range logs {
		all = append(all, m.GetLevel()+" "+m.GetLogger()+" "+string(m.GetData()))
	}
	return strings.Join(all, "\n")
}

func TestLogLevels(t *testing.T) {
	t.Parallel()
	names := []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}
	var log journal
	w := logging(&log, func(call *worker.Call) {
		for level := worker.LevelDebug - 1; level <= worker.LevelEmergency+1; level++ {
			before := call.Logs(level)
			call.Log(level, "", before)
		}
	})
	for i, least := range append(names, "none", "verbose") {
		out := (&workertest.Client{LogLevel: least}).Call(t, w, "log", struct{}{})
		var got []string
		for _, m := range out.Logs {
			got = append(got, m.GetLevel())
			if string(m.GetData()) != "true" {
				t.Errorf("at %s: Logs says no to %v", least, m)
			}
		}
		if want := names[min(i, len(names)):]; !slices.Equal(got, want) {
			t.Errorf("at %s: %q, want %q", least, got, want)
		}
	}
	if got := worker.Level(8).String() + worker.Level(-1).String(); got != "unknownunknown" {
		t.Errorf("no levels: %s", got)
	}
}

func TestLogData(t *testing.T) {
	t.Parallel()
	var log journal
	out := workertest.Call(t, logging(&log, func(call *worker.Call) {
		call.Log(worker.LevelInfo, "db", "a text <b>")
		call.Log(worker.LevelInfo, "", nil)
		call.Log(worker.LevelInfo, "", map[string]any{"b": []int(nil), "a": 9007199254740993})
		call.Log(worker.LevelInfo, "", make(chan int))
	}), "log", struct{}{})
	if got, want := lines(out.Logs), "info db \"a text <b>\"\ninfo  null\ninfo  {\"a\":9007199254740993,\"b\":[]}"; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if !strings.Contains(log.String(), "cannot be written") {
		t.Errorf("the log says nothing about the channel:\n%s", &log)
	}
}

func TestSlog(t *testing.T) {
	t.Parallel()
	var log journal
	w := logging(&log, func(call *worker.Call) {
		l := call.Logger()
		l.Debug("a", "n", 1)
		l.With("user", "ada").WithGroup("g").With("x", 1).Info("b", "y", 2)
		l.Log(t.Context(), slog.LevelInfo+1, "c")
		l.Warn("d", "level", "high", "time", "now")
		l.Error("e", "msg", "twice", "msg", 3)
		for _, above := range []slog.Level{4, 8, 12, 99} {
			l.Log(t.Context(), slog.LevelError+above, "f")
		}
		derived := l.With("base", 1)
		derived.With("one", 1).Info("g")
		derived.With("two", 2).Info("h")
	})
	out := workertest.Call(t, w, "log", struct{}{})
	want := `debug  {"msg":"a","n":1}
info  {"msg":"b","user":"ada","g":{"x":1,"y":2}}
notice  {"msg":"c"}
warning  {"msg":"d","level":"high","time":"now"}
error  {"msg":3}
critical  {"msg":"f"}
alert  {"msg":"f"}
emergency  {"msg":"f"}
emergency  {"msg":"f"}
info  {"msg":"g","base":1,"one":1}
info  {"msg":"h","base":1,"two":2}`
	if got := lines(out.Logs); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	out = (&workertest.Client{LogLevel: "critical"}).Call(t, w, "log", struct{}{})
	if len(out.Logs) != 4 {
		t.Errorf("at critical:\n%s", lines(out.Logs))
	}
}

// Logs travel in order with progress, before the outcome, and not after it.
func TestLogOnTheBus(t *testing.T) {
	t.Parallel()
	calls := make(chan *worker.Call, 1) // of the only call
	w := newWorker(nil)
	worker.AddTool(w, worker.Tool{Name: "log"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		call.Log(worker.LevelNotice, "l", 1)
		call.Progress(1, worker.UnknownTotal, "")
		call.Log(worker.LevelNotice, "l", 2)
		calls <- call
		return "", nil
	})
	client := pair(t, w)
	events, err := callTool(t.Context(), client, &millracev1.CallToolRequest{
		Name: "log", Context: &millracev1.CallContext{WantsProgress: true, LogLevel: "notice"},
	})
	if err != nil || len(events) != 4 || string(events[0].GetLog().GetData()) != "1" || events[1].GetProgress() == nil ||
		string(events[2].GetLog().GetData()) != "2" || events[3].GetResult() == nil {
		t.Errorf("events: %v, %v", events, err)
	}
	(<-calls).Log(worker.LevelNotice, "l", "too late") // does nothing
}
