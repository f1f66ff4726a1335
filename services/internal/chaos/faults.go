package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// fault is a kind of fault.
type fault struct {
	name string
	// targets are the processes it can hit; nil: inject chooses.
	role string
	// inject injects it and returns how it ends. What it hits is named.
	inject func(c *cluster, p *process) (heal func() error, err error)
	// lasts is how long it goes on.
	lasts time.Duration
}

// restart is how a process comes back that was killed.
func restart(p *process) func() error { return p.start }

func kill(_ *cluster, p *process) (func() error, error) { return restart(p), p.kill() }

func freeze(_ *cluster, p *process) (func() error, error) {
	return func() error { return p.signal(syscall.SIGCONT) }, p.signal(syscall.SIGSTOP)
}

// unplug takes the cable out: no byte arrives, and nobody is told.
func unplug(_ *cluster, p *process) (func() error, error) {
	return func() error { return commands("ip link set " + p.name + " master br0") },
		commands("ip link set " + p.name + " nomaster")
}

// part parts a node from the other nodes, while everybody else reaches it.
func part(c *cluster, p *process) (func() error, error) {
	filter := func(op string) error {
		var errs []error
		for _, other := range c.of(roleNATS) {
			if other != p {
				errs = append(errs,
					iptables(p.name, op, "INPUT", "-s", other.address, "-j", "DROP"),
					iptables(other.name, op, "INPUT", "-s", p.address, "-j", "DROP"))
			}
		}
		return errors.Join(errs...)
	}
	return func() error { return filter("-D") }, filter("-I")
}

// slow delays what edge-3 and worker-4 say to NATS and hear from it.
func slow(c *cluster, _ *process) (func() error, error) {
	set := func(d time.Duration) {
		for _, l := range c.links {
			l.delay.Store(int64(d))
		}
	}
	set(150 * time.Millisecond)
	return func() error { set(0); return nil }, nil
}

// resetBus resets the connections of edge-3 and worker-4 to NATS.
func resetBus(c *cluster, _ *process) (func() error, error) {
	for _, l := range c.links {
		l.reset()
	}
	return func() error { return nil }, nil
}

// resetHTTP resets the connections of an edge to the proxy, and refuses new
// ones.
func resetHTTP(_ *cluster, p *process) (func() error, error) {
	rule := []string{"INPUT", "-p", "tcp", "--dport", "8080", "-j", "REJECT", "--reject-with", "tcp-reset"}
	return func() error { return iptables(p.name, append([]string{"-D"}, rule...)...) },
		iptables(p.name, append([]string{"-I"}, rule...)...)
}

// gaveUp says whether a NATS server has logged, for want of disk, that it does
// without JetStream from then on, or without a replica of a stream. Ours begins
// JetStream again when there is room.
func gaveUp(log []byte) bool {
	return bytes.Contains(log, []byte("JetStream out of resources, will be DISABLED")) ||
		bytes.Contains(bytes.ToLower(log), []byte("critical write error"))
}

// fill fills the disk of a node.
func fill(c *cluster, p *process) (func() error, error) {
	path := filepath.Join(c.disk(p.name), "filler")
	before, err := os.ReadFile(p.log)
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = file.Write(block)
	}
	_ = file.Close() // it is full, that is all
	if !errors.Is(err, syscall.ENOSPC) {
		return nil, fmt.Errorf("filling the disk of %s: %w", p.name, err)
	}
	return func() error {
		if err := os.Remove(path); err != nil {
			return err
		}
		now, err := os.ReadFile(p.log)
		if err != nil || !gaveUp(now[min(len(before), len(now)):]) {
			return err
		}
		c.notes["a node gave JetStream or a replica up because its disk was full"]++
		return nil
	}, nil
}

func faults() []fault {
	return []fault{
		{"worker-kill", roleWorker, kill, 1500 * time.Millisecond},
		{"worker-freeze", roleWorker, freeze, 3 * time.Second},
		{"worker-partition", roleWorker, unplug, 5 * time.Second},
		{"edge-kill", roleEdge, kill, 1500 * time.Millisecond},
		{"edge-freeze", roleEdge, freeze, 3 * time.Second},
		{"edge-reset", roleEdge, resetHTTP, 500 * time.Millisecond},
		{"nats-kill", roleNATS, kill, 2 * time.Second},
		{"leader-kill", "", kill, 2 * time.Second},
		{"nats-partition", roleNATS, part, 5 * time.Second},
		{"disk-full", roleNATS, fill, 4 * time.Second},
		{"bus-latency", "links", slow, 3 * time.Second},
		{"bus-reset", "links", resetBus, 500 * time.Millisecond},
	}
}

// choose returns the faults with the names, all for none.
func choose(names string) ([]fault, error) {
	all := faults()
	if names == "" {
		return all, nil
	}
	var some []fault
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(f fault) bool { return f.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no fault %q", name)
		}
		some = append(some, all[i])
	}
	return some, nil
}
