package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/deploy/bench/servers/payload"
)

// server is a server that runs: one process or several.
type server struct {
	name string
	// url is that of the endpoint.
	url       string
	processes []*process
	// front is the process that holds the connections of clients.
	front *process
}

func (s *server) stop() {
	// NATS, which was first, is the last: the others would complain.
	for _, p := range slices.Backward(s.processes) {
		p.stop()
	}
}

// cpu is the processor time of all processes.
func (s *server) cpu() (total time.Duration, err error) {
	for _, p := range s.processes {
		one, err := p.cpu()
		if err != nil {
			return 0, err
		}
		total += one
	}
	return total, nil
}

// need is what a measurement needs of the servers.
type need struct {
	// listed is how many tools there are that are only listed; 0: those that
	// are called.
	listed int
	// events: results are answered as events, where that has to be chosen.
	events bool
}

// target is a server as the table names it.
type target struct {
	name string
	// fixed: it answers the same whatever it is asked, and the path says what.
	fixed bool
	// session: each connection has a session.
	session bool
	// loses: it is known to lose reports of progress that come just before the
	// result; how many is told.
	loses bool
	// server is what runs; targets with the same one share it.
	server string
}

// Names of servers, and so of what is compared.
const (
	fixedAnswer    = "net/http, fixed answer"
	relay          = "bare relay, 3 processes"
	relayUp        = "bare relay, NATS in process"
	three          = "Millrace, 3 processes"
	up             = "`millrace up`"
	mcpgoStateless = "mcp-go, stateless"
	mcpgoStateful  = "mcp-go, sessions"
	gosdkStateless = "go-sdk, stateless"
	gosdkStateful  = "go-sdk, sessions"

	inSession = ", sessions"
)

// targets are all of them, in the order of the table. The first ones know
// nothing of the protocol.
func targets() []target {
	return []target{
		{name: fixedAnswer, server: fixedAnswer, fixed: true},
		{name: relay, server: relay, fixed: true},
		{name: relayUp, server: relayUp, fixed: true},
		{name: three, server: three},
		{name: three + inSession, server: three, session: true},
		{name: up, server: up},
		{name: up + inSession, server: up, session: true},
		{name: mcpgoStateless, server: mcpgoStateless, loses: true},
		{name: mcpgoStateful, server: mcpgoStateful, session: true, loses: true},
		{name: gosdkStateless, server: gosdkStateless},
		{name: gosdkStateful, server: gosdkStateful, session: true},
	}
}

// launcher starts servers from the programs in a folder.
type launcher struct {
	bin string
	log io.Writer
	// profiled: Millrace in one process has an admin listener with profiles.
	profiled bool
}

// server starts the server of a name.
func (l *launcher) server(ctx context.Context, name string, n need) (*server, error) {
	s := &server{name: name}
	if err := l.begin(ctx, s, n); err != nil {
		s.stop()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// fleet are servers by name.
type fleet map[string]*server

// servers starts servers, all at the same time. Those that were started are
// returned with an error too.
func (l *launcher) servers(ctx context.Context, names []string, n need) (fleet, error) {
	var mu sync.Mutex
	running := fleet{}
	var failed error
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			s, err := l.server(ctx, name, n)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = errors.Join(failed, err)
				return
			}
			running[name] = s
		})
	}
	all.Wait()
	return running, failed
}

// stop ends all of them.
func (f fleet) stop() {
	var all sync.WaitGroup
	for _, s := range f {
		all.Go(s.stop)
	}
	all.Wait()
}

// Messages with which roles of Millrace say where they serve.
const (
	saysNATS  = "NATS node serves"
	saysJoin  = "NATS takes workers and edges of other processes"
	saysAdmin = "admin listener serves"
)

// run starts a process of a server and waits until it says where it serves; with
// an empty message it does not wait.
func (l *launcher) run(ctx context.Context, s *server, message, program string, args ...string) (string, error) {
	if program == "millrace" {
		args = append([]string{"--log-format=json"}, args...)
	}
	p, err := launch(ctx, l.log, filepath.Join(l.bin, program), args...)
	if err != nil {
		return "", err
	}
	s.processes = append(s.processes, p)
	if message == "" {
		return "", nil
	}
	return p.await(ctx, message)
}

// begin starts the processes of a server.
func (l *launcher) begin(ctx context.Context, s *server, n need) (err error) {
	front := func(program string, args ...string) (err error) {
		s.url, err = l.run(ctx, s, payload.Ready, program, args...)
		s.front = s.processes[len(s.processes)-1]
		return err
	}
	tools := "-tools=" + strconv.Itoa(n.listed)
	switch s.name {
	case fixedAnswer:
		return front("relay", "fixed")
	case relayUp:
		return front("relay", "up")
	case relay:
		nats, err := l.run(ctx, s, saysNATS, "millrace", "nats", "--listen="+anyPort)
		if err != nil {
			return err
		}
		if _, err := l.run(ctx, s, payload.Ready, "relay", "worker", "-nats="+nats); err != nil {
			return err
		}
		return front("relay", "edge", "-nats="+nats)
	case three:
		nats, err := l.run(ctx, s, saysNATS, "millrace", "nats", "--listen="+anyPort)
		if err != nil {
			return err
		}
		pool := "everything"
		if n.listed > 0 {
			pool = "bulk"
			_, err = l.run(ctx, s, "", "bulk", "-nats="+nats, tools)
		} else {
			_, err = l.run(ctx, s, "", "millrace", "everything", "--nats="+nats)
		}
		if err != nil {
			return err
		}
		return front("millrace", "edge", "--nats="+nats, "--listen="+anyPort, "--wait-for="+pool)
	case up:
		return l.up(ctx, s, n.listed, tools)
	case mcpgoStateless, mcpgoStateful:
		return front("mcpgo", "-stateless="+strconv.FormatBool(s.name == mcpgoStateless), tools)
	case gosdkStateless, gosdkStateful:
		return front("gosdk", "-stateless="+strconv.FormatBool(s.name == gosdkStateless), tools, "-json="+strconv.FormatBool(!n.events))
	}
	return fmt.Errorf("there is no server %q", s.name)
}

// anyPort is a free port of the loopback interface.
const anyPort = "127.0.0.1:0"

// up starts Millrace in one process. Tools that are only listed are those of a
// worker that joins it, since the binary has none with so many.
func (l *launcher) up(ctx context.Context, s *server, listed int, tools string) error {
	args := []string{"up", "--listen=" + anyPort, "--worker=everything"}
	if l.profiled {
		args = append(args, "--admin="+anyPort, "--pprof")
	}
	if listed > 0 {
		args = append(args, "--nats-listen="+anyPort)
	}
	p, err := launch(ctx, l.log, filepath.Join(l.bin, "millrace"), append([]string{"--log-format=json"}, args...)...)
	if err != nil {
		return err
	}
	s.processes, s.front = append(s.processes, p), p
	var nats string
	for _, said := range []struct {
		message string
		url     *string
		wanted  bool
	}{
		{saysJoin, &nats, listed > 0},
		{payload.Ready, &s.url, true},
	} {
		if !said.wanted {
			continue
		}
		if *said.url, err = p.await(ctx, said.message); err != nil {
			return err
		}
	}
	if listed > 0 {
		_, err = l.run(ctx, s, "", "bulk", "-nats="+nats, tools)
	}
	return err
}

// build builds the programs into a folder: Millrace with the modules of its own
// go.mod, the others with those of this one.
func build(ctx context.Context, into string) error {
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/millrace/millrace").Output()
	if err != nil {
		return fmt.Errorf("run it inside the module of the benchmark: %w", err)
	}
	for _, of := range []struct{ dir, packages string }{
		{"", "./servers/..."},
		{strings.TrimSpace(string(dir)), "./services/millrace"},
	} {
		cmd := exec.CommandContext(ctx, "go", "build", "-o", into+string(filepath.Separator), of.packages) //nolint:gosec // of the table
		cmd.Dir, cmd.Stdout, cmd.Stderr = of.dir, os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("building %s: %w", of.packages, err)
		}
	}
	return nil
}
