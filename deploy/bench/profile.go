package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"
)

// profileTime is how long a profile is taken.
const profileTime = 10 * time.Second

// profile writes a CPU profile of Millrace in one process under a shape. What
// the admin listener counts is in it.
func (b *bench) profile(ctx context.Context, under shape) error {
	b.servers.profiled = true
	s, err := b.servers.server(ctx, up, under.need)
	if err != nil {
		return err
	}
	defer s.stop()
	admin, err := s.front.await(ctx, saysAdmin)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := settle(ctx, s, target{}, &under.request); err != nil {
		return err
	}
	fetched := make(chan error, 1) // one result
	go func() {
		fetched <- fetch(ctx, admin+"/debug/pprof/profile?seconds="+strconv.Itoa(int(profileTime.Seconds())), b.options.profile)
	}()
	o, err := load(ctx, s, target{}, &under.request, under.connections, b.warm, profileTime+time.Second)
	if err != nil {
		return err
	}
	b.say("%s: %d calls, %.1f CPU-µs each", under.name, o.calls, micro(o.cpu)/float64(o.calls))
	return <-fetched
}

// fetch writes what a URL gives to a file.
func fetch(ctx context.Context, url, file string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, resp.Body)
	if closed := out.Close(); err == nil {
		err = closed
	}
	return err
}
