package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
)

// marker is the name under which the contained process is started.
const marker = "chaos-contained"

// contained says whether this process has namespaces of its own.
func contained() bool { return os.Args[0] == marker }

// contain runs this program again in namespaces of its own for the network,
// mounts and processes. When it ends, however it ends, the kernel removes all
// that was made in them: interfaces, file systems and processes.
func contain() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	runtime.LockOSThread()                    // its death would be that of the child, see Pdeathsig
	cmd := exec.Command(self, os.Args[1:]...) //nolint:gosec,noctx // it ends with this process
	cmd.Args[0] = marker
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	signals := make(chan os.Signal, 1) // passed on; a second one may be lost
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		if errors.Is(err, syscall.EPERM) {
			return fmt.Errorf("namespaces need root: %w", err)
		}
		return err
	}
	ended := make(chan error, 1) // one result
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s) // it may have ended
		case err := <-ended:
			return err
		}
	}
}

// The addresses of the processes. The one of this process is that of the
// bridge.
const (
	network = "10.77.0."
	own     = network + "1"
)

// command runs a command to its end.
func command(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput() //nolint:gosec,noctx // short, and written here
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// commands runs commands, one a line.
func commands(lines ...string) error {
	for _, line := range lines {
		words := strings.Fields(line)
		if err := command(words[0], words[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// openNetwork makes the bridge that all processes are connected to.
func openNetwork() error {
	return commands(
		"mount --make-rprivate /",
		"mount -t proc chaos /proc",
		"mkdir -p /run/netns",
		"mount -t tmpfs chaos /run/netns",
		"ip link set lo up",
		"ip link add br0 type bridge",
		"ip addr add "+own+"/24 dev br0",
		"ip link set br0 up",
	)
}

// openHost makes a namespace with an address on the bridge.
func openHost(name, address string) error {
	return commands(
		"ip netns add "+name,
		"ip link add "+name+" type veth peer name eth0 netns "+name,
		"ip link set "+name+" master br0 up",
		"ip -n "+name+" addr add "+address+"/24 dev eth0",
		"ip -n "+name+" link set eth0 up",
		"ip -n "+name+" link set lo up",
	)
}

// within is a command line in the namespace of a host.
func within(host string, args ...string) []string {
	return append([]string{"nsenter", "--net=/run/netns/" + host, "--"}, args...)
}

// iptables changes the packet filter of a host.
func iptables(host string, args ...string) error {
	line := within(host, append([]string{"iptables", "-w"}, args...)...)
	return command(line[0], line[1:]...)
}
