package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"

	"github.com/millrace/millrace/services/devcluster"
)

// upProcess is everything in one process.
type upProcess struct {
	origin string
	cmd    *exec.Cmd
	read   chan struct{} // closed when its log has ended
}

// startUp starts millrace up on a free port and returns when it serves.
func startUp(ctx context.Context, millrace string, args ...string) (*upProcess, error) {
	p := &upProcess{
		cmd:  exec.CommandContext(ctx, millrace, append([]string{"--log-format", "json", "up", "--listen", "127.0.0.1:0"}, args...)...),
		read: make(chan struct{}),
	}
	p.cmd.WaitDelay = 5 * time.Second
	log, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		var record struct {
			Msg string `json:"msg"`
			URL string `json:"url"`
		}
		if json.Unmarshal(lines.Bytes(), &record) == nil && record.Msg == devcluster.MessageEdge {
			p.origin = record.URL[:len(record.URL)-len("/mcp")]
			go func() {
				defer close(p.read)
				_, _ = io.Copy(io.Discard, log) // it must not stand still for a full pipe
			}()
			return p, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("millrace up does not serve: %w", lines.Err()), p.cmd.Wait())
}

// stop ends the process as a supervisor does.
func (p *upProcess) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	<-p.read
	return p.cmd.Wait()
}
