// Command policy holds rendered Kubernetes manifests against the rules by which
// Millrace is to be run:
//
//	policy PROCESS.GO MANIFESTS.YAML ...
//
// PROCESS.GO is the source file with the time that a process takes to stop. Each
// file of manifests is a whole: what selects something must find it in the same
// file. What is only valid or not is no rule here, a validator knows that.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(args []string, w io.Writer) error {
	if len(args) < 2 {
		return errors.New("want PROCESS.GO and files of manifests")
	}
	source, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	grace, err := drainGrace(source)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	var problems []error
	pods := 0
	for _, path := range args[1:] {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		all, err := parse(text)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		all.drainGrace = grace
		pods += len(all.pods())
		for _, finding := range all.findings() {
			problems = append(problems, fmt.Errorf("%s: %s", path, finding))
		}
	}
	if pods == 0 {
		problems = append(problems, errors.New("nothing in these files runs"))
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%d workloads in %d files keep %d rules\n", pods, len(args)-1, len(rules()))
	return err
}

// drainGrace finds out how long an actor of a process may take to stop.
func drainGrace(source []byte) (time.Duration, error) {
	found := regexp.MustCompile(`(?m)^const drainGrace = (\d+) \* time\.Second$`).FindSubmatch(source)
	if found == nil {
		return 0, errors.New("no constant drainGrace in seconds")
	}
	return time.ParseDuration(string(found[1]) + "s")
}
