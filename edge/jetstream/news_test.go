package jetstream

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A stream that goes and comes back all the time is in the log once a minute, and
// the log is right in the end.
func TestFlappingIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b strings.Builder
		n := news{log: slog.New(slog.NewTextHandler(&b, nil))}
		told := func(want string) {
			t.Helper()
			var words []string
			for line := range strings.Lines(b.String()) {
				word := "up"
				if strings.Contains(line, "has failed") {
					word = "down"
				}
				if _, before, ok := strings.Cut(strings.TrimSpace(line), "before="); ok {
					word += before
				}
				words = append(words, word)
			}
			b.Reset()
			if got := strings.Join(words, " "); got != want {
				t.Errorf("the log says %q, want %q", got, want)
			}
		}
		broken := errors.New("broken")
		n.recover(true, slog.LevelInfo)
		told("up")
		for range 90 {
			n.fail(broken)
			time.Sleep(time.Second)
			n.recover(false, slog.LevelInfo)
			time.Sleep(time.Second)
		}
		told("down up down29 up down29 up")
		n.fail(broken)
		told("down29")
		time.Sleep(10 * time.Second)
		n.recover(false, slog.LevelInfo)
		n.fail(broken)
		told("up")
		for range 120 {
			n.still(broken)
			time.Sleep(time.Second)
		}
		told("down1")
		n.recover(false, slog.LevelInfo)
		told("up")
	})
}
