package devcluster

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestDiesWithItsParent: when the process that runs the cluster is killed, the
// others are gone too.
func TestDiesWithItsParent(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asParent+"="+t.TempDir())
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []string
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "all" {
		pids = append(pids, lines.Text())
	}
	for _, pid := range pids {
		if !alive(pid) {
			t.Errorf("process %s is not there before its parent is killed", pid)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	if len(pids) != 10 {
		t.Fatalf("%d processes, want 10", len(pids))
	}
	for _, pid := range pids {
		eventually(t, "process "+pid+" ends with its parent", func() bool { return !alive(pid) })
	}
}

// alive says whether a process runs; one that nobody has waited for does not.
func alive(pid string) bool {
	if _, err := strconv.Atoi(pid); err != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return state[0] != 'Z' && state[0] != 'X'
}
