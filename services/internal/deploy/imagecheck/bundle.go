package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// bundle is an unpacked image as runc takes it.
type bundle struct {
	dir   string
	state string // of runc
}

func (b *bundle) unpack(ctx context.Context, image string) error {
	if out, err := exec.CommandContext(ctx, "umoci", "unpack", "--rootless", "--image", image, b.dir).CombinedOutput(); err != nil {
		return fmt.Errorf("umoci: %w\n%s", err, out)
	}
	return nil
}

// configure writes the configuration for runc. What is not in it a process does
// not get: no capabilities, no devices, no network of its own. umoci writes one
// as well, with more rights than we want to need.
func (b *bundle) configure(c process, args ...string) error {
	ids := strings.SplitN(c.User, ":", 2)
	uid, err := strconv.Atoi(ids[0])
	if err != nil {
		return fmt.Errorf("user %q: %w", c.User, err)
	}
	gid, err := strconv.Atoi(ids[len(ids)-1])
	if err != nil {
		return fmt.Errorf("user %q: %w", c.User, err)
	}
	type object map[string]any
	config, err := json.Marshal(object{
		"ociVersion": "1.0.2",
		"process": object{
			"user": object{"uid": uid, "gid": gid}, "cwd": "/",
			"args": append(c.Entrypoint, args...), "env": append([]string{"MILLRACE_LOG_FORMAT=json"}, c.Env...),
			"capabilities":    object{"bounding": []string{}, "effective": []string{}, "inheritable": []string{}, "permitted": []string{}, "ambient": []string{}},
			"noNewPrivileges": true,
		},
		"root": object{"path": "rootfs", "readonly": true},
		"mounts": []object{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			// NATS with JetStream in one process keeps its files there.
			{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "nodev", "noexec", "mode=1777", "size=64m"}},
		},
		// The network stays the host's: loopback is all that is needed, and it
		// needs nobody who sets it up. There are no control groups, which not
		// every place where this runs can make.
		"linux": object{"namespaces": []object{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}}},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.dir, "config.json"), config, 0o600)
}

// call runs the image with everything in one process, has curl call a tool, and
// stops it as Kubernetes does. It returns the answer.
func (b *bundle) call(ctx context.Context, c process) (answer string, err error) {
	addr, err := freePort()
	if err != nil {
		return "", err
	}
	if err := b.configure(c, "up", "--listen", addr); err != nil {
		return "", err
	}
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, "runc", "--root", b.state, "run", "--bundle", b.dir, "millrace-imagecheck-"+strconv.Itoa(os.Getpid()))
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // runc passes it on; killed, it would leave the process behind
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("runc: %w", err)
	}
	answer, err = curl(ctx, "http://"+addr+"/mcp")
	if signalErr := cmd.Process.Signal(syscall.SIGTERM); signalErr != nil {
		err = errors.Join(err, signalErr)
	}
	if exit := cmd.Wait(); exit != nil {
		err = errors.Join(err, fmt.Errorf("after SIGTERM the image ended with: %w", exit))
	}
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, log.String())
	}
	return answer, nil
}

// curl calls a tool, trying until the process listens and its worker has joined,
// and returns the answer.
func curl(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		out, err := exec.CommandContext(ctx, "curl", "--silent", "--show-error", "--max-time", "30",
			"--header", "Content-Type: application/json", "--data",
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search_term","arguments":{"query":"context engineering"}}}`, url).CombinedOutput()
		var answer struct {
			Result *struct {
				Content []any `json:"content"`
				IsError bool  `json:"isError"`
			} `json:"result"`
		}
		if err == nil {
			err = json.Unmarshal(out, &answer)
		}
		if err == nil && answer.Result != nil && !answer.Result.IsError && len(answer.Result.Content) > 0 {
			return string(out), nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return "", fmt.Errorf("the call was not answered (%w) but with: %s", err, out)
		}
	}
}
