package scenario

import (
	"context"
	"slices"
	"time"
)

// FirstWithoutHandshake is the first revision in which requests carry what was
// agreed on in a handshake before.
const FirstWithoutHandshake = "2026-07-28"

// Notice is a notification that a client library has handed to its user:
// method is its name without "notifications/", subject the level of a log
// message or the URI of a resource.
type Notice struct {
	Method  string `json:"method"`
	Subject string `json:"subject"`
}

// Features is how the scenario features went, besides its calls.
type Features struct {
	// Logged are the levels of the log messages of a call that sends one at
	// each, in a client that has asked for warnings.
	Logged []string `json:"logged"`
	// Told are the notifications that came of those that were caused, each
	// once.
	Told []Notice `json:"told"`
	// Refused are the steps in which the library itself failed, with its words.
	Refused map[string]string `json:"refused"`
}

// watchedURI is the resource that is followed.
const watchedURI = "test://watched-resource"

// attempts is how often a change is made until the client is told: some
// libraries do not say when they have begun to listen.
const attempts = 20

// features goes through what a server tells or asks by itself. What a library
// refuses does not end the scenario.
func (r *Report) features(ctx context.Context, c Client, w *Watch) {
	f := &Features{Refused: map[string]string{}}
	r.Features = f
	refused := func(step string, err error) bool {
		if err != nil {
			f.Refused[step] = err.Error()
		}
		return err != nil
	}
	r.hold(ctx, c, w)
	r.call(ctx, c, w, "count", map[string]any{"n": 20, "delay_ms": 1}, "counted")()
	for _, call := range asking()[:3] {
		r.call(ctx, c, w, call.tool, call.arguments, "")
	}
	if !refused("level", c.SetLevel(ctx, "warning")) {
		r.call(ctx, c, w, "log_all", map[string]any{}, "")
		settle(ctx, func() bool { return count(w.noticed(), "message") >= 5 })
		for _, n := range w.noticed() {
			if n.Method == "message" {
				f.Logged = append(f.Logged, n.Subject)
			}
		}
	}
	stop, err := c.Follow(ctx, watchedURI)
	if refused("follow", err) {
		return
	}
	for _, cause := range []struct {
		tool string
		told Notice
	}{
		{"test_trigger_resource_update", Notice{"resources/updated", watchedURI}},
		{"test_trigger_tool_change", Notice{"tools/list_changed", ""}},
		{"test_trigger_prompt_change", Notice{"prompts/list_changed", ""}},
		{"test_trigger_resource_change", Notice{"resources/list_changed", ""}},
	} {
		told := func() bool { return slices.Contains(w.noticed(), cause.told) }
		for range attempts {
			if _, err := c.Call(ctx, cause.tool, map[string]any{}, ""); refused(cause.tool, err) {
				break
			}
			if settle(ctx, told); told() {
				f.Told = append(f.Told, cause.told)
				break
			}
		}
	}
	refused("stop", stop(ctx))
}

// hold cancels a call when its first progress is there, and asks the worker
// what has become of it.
func (r *Report) hold(ctx context.Context, c Client, w *Watch) {
	cancelled, cancel := context.WithCancel(ctx)
	defer cancel()
	const progressToken = "held"
	name := r.Client + time.Now().String()
	w.listen(func() {
		if progress, _ := w.of(progressToken, 0); len(progress) > 0 {
			cancel()
		}
	})
	r.call(cancelled, c, w, "hold", map[string]any{"name": name}, progressToken)
	w.listen(nil)
	r.call(ctx, c, w, "held", map[string]any{"name": name, "ms": 5000}, "")
}

func count(notices []Notice, method string) (n int) {
	for _, notice := range notices {
		if notice.Method == method {
			n++
		}
	}
	return n
}

// settle waits until the condition holds, but not for long.
func settle(ctx context.Context, condition func() bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
