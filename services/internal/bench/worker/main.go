// Command worker is a worker with the tools that are measured.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os/signal"
	"syscall"
	"time"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/worker"
)

// pace is the time between two reports of progress, as in the other servers.
const pace = 500 * time.Microsecond

type echo struct {
	Text string `json:"text"`
}

type wait struct {
	Name   string `json:"name"`
	Report string `json:"report"`
}

type count struct {
	N int `json:"n"`
}

func main() {
	url := flag.String("nats", "", "where NATS is")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := run(ctx, *url)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string) error {
	conn, err := bus.Connect(ctx, bus.ConnConfig{URL: url, Name: "bench"})
	if err != nil {
		return err
	}
	defer conn.Close()
	w := worker.New(worker.Config{Pool: "bench", Version: "1.0.0", Slots: 256})
	worker.AddTool(w, worker.Tool{Name: "echo", Description: "Returns its text."},
		func(_ context.Context, _ *worker.Call, in echo) (string, error) { return in.Text, nil })
	worker.AddTool(w, worker.Tool{Name: "wait", Description: "Reports progress and waits for its end."},
		func(ctx context.Context, call *worker.Call, in wait) (string, error) {
			call.Progress(1, worker.UnknownTotal, "")
			<-ctx.Done()
			return "", ended(context.WithoutCancel(ctx), in.Report, in.Name)
		})
	worker.AddTool(w, worker.Tool{Name: "count", Description: "Reports progress n times and waits for its end."},
		func(ctx context.Context, call *worker.Call, in count) (string, error) {
			ticker := time.NewTicker(pace)
			defer ticker.Stop()
			for i := 1; i <= in.N; i++ {
				<-ticker.C
				call.Progress(float64(i), worker.UnknownTotal, "")
			}
			<-ctx.Done()
			return "counted", nil
		})
	return w.Run(ctx, conn)
}

// ended reports over UDP that the context of a call has ended.
func ended(ctx context.Context, address, name string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", address)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is buffered
	_, err = conn.Write([]byte(name))
	return err
}
