// Package e2e tests Millrace from outside: the binary as users start it, and
// the client libraries that they use, over HTTP and stdio.
//
// The binary is built once per run, with the race detector, and once without
// for the tests of large messages. What the clients
// need is installed once per machine (see clients_install_test.go); a failed
// build or installation fails the tests, and nothing is skipped.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// root is the top of the repository, seen from this package.
const root = "../../.."

// patience is how long a test waits for something that normally takes
// milliseconds; only a fault or a machine that is far too busy takes longer.
const patience = 60 * time.Second

// scratch holds what a run builds. TestMain removes it.
var scratch string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if scratch, err = os.MkdirTemp("", "millrace-e2e-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch) //nolint:errcheck // the system removes it otherwise
	return m.Run()
}

// buildBinary builds the binary once. Its name is millrace, so that its folder
// can be put on PATH.
var buildBinary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "bin", "millrace")
	return path, goBuild(root, "-race", "-o", path, "./services/millrace")
})

// millrace returns the path of the binary under test.
func millrace(t *testing.T) string {
	t.Helper()
	dependOnSources(t)
	path, err := buildBinary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// buildPlain builds the binary as users get it.
var buildPlain = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "plain", "millrace")
	return path, goBuild(root, "-o", path, "./services/millrace")
})

// plain returns the path of the binary without the race detector, for tests of
// many bytes, each of which the detector makes ten times as expensive.
func plain(t *testing.T) string {
	t.Helper()
	dependOnSources(t)
	path, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// goBuild runs go build in a folder.
func goBuild(dir string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-buildvcs=false"}, args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v in %s: %w\n%s", cmd.Args, dir, err, out)
	}
	return nil
}

// dependOnSources makes the result of a test depend on every file that goes
// into the binary and the clients: `go test` reuses a result until a file that
// the test itself looked at has changed, and it does not see what a build that
// the test starts looks at.
func dependOnSources(t *testing.T) {
	t.Helper()
	if err := lookAtSources(); err != nil {
		t.Fatal(err)
	}
}

// lookAtSources looks at them once per run; it must not run before the tests
// do, or nobody notes what it looks at.
var lookAtSources = sync.OnceValue(func() error {
	for _, top := range []string{"go.mod", "go.sum", "edge", "proto", "services", "worker"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "node_modules":
				return fs.SkipDir
			case d.IsDir() || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			// A file that an editor replaces just now is there again soon.
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
})

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("in vain after %v: %s", patience, what)
		}
	}
}
