package e2e

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// fill writes a file until the disk is full.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
}

// TestDiskFull: with the disk of --data full, what sessions change is refused and
// says so; everything else goes on, and so do changes once there is space.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Fatalf("mounting a small disk (this test needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	// Without the race detector: a NATS server that begins JetStream again replaces
	// its queue of requests (setJetStreamExportSubs) while it is read. Either queue
	// is a good one, and who asked the old one asks again.
	s := serveBinary(t, plain(t), "up", "--data", dir, "--worker", "everything")
	change := func(session http.Header, level string) string {
		t.Helper()
		_, got := post(t, s.url, `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"`+level+`"}}`, session)
		return got
	}
	works := func(session http.Header, when string) {
		t.Helper()
		if _, got := post(t, s.url, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"here"}}}`, session); !strings.Contains(got, `"here`) && !strings.Contains(got, `here\"`) {
			t.Errorf("%s, a call: %s", when, got)
		}
		wantSession(t, s.url, session, true)
	}
	old := keySession(t, s.url)
	eventually(t, "a session can be changed", func() bool { return strings.Contains(change(old, "error"), `"result":{}`) })

	filler := filepath.Join(dir, "filler")
	fill(t, filler)
	young := keySession(t, s.url)
	refused := ""
	// Files have room in their last pages.
	levels := []string{"debug", "info", "notice", "warning"}
	turn := 0
	eventually(t, "a change is refused", func() bool {
		turn++
		refused = change(young, levels[turn%len(levels)])
		return strings.Contains(refused, `"error"`)
	})
	if !strings.Contains(refused, `"reason":"unavailable"`) {
		t.Errorf("a change while the disk is full: %s", refused)
	}
	for _, session := range []http.Header{old, young, {}} {
		if len(session) > 0 {
			works(session, "while the disk is full")
		}
	}
	if resp, err := http.Get(strings.TrimSuffix(s.url, "/mcp") + "/readyz"); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("readyz while the disk is full: %v %v", resp, err)
	} else {
		resp.Body.Close()
	}

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	eventually(t, "changes are taken again", func() bool {
		turn++
		return strings.Contains(change(young, levels[turn%len(levels)]), `"result":{}`)
	})
	works(old, "with space again")
	works(young, "with space again")
	works(keySession(t, s.url), "with space again")
}
