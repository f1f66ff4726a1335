// Command bulk is a worker of Millrace with as many tools as it is told, which
// are only listed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"os/signal"
	"syscall"

	"github.com/millrace/millrace/deploy/bench/servers/payload"
	"github.com/millrace/millrace/worker"
)

func main() {
	url := flag.String("nats", "", "where NATS is")
	tools := flag.Int("tools", payload.Tools, "how many tools there are")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := run(ctx, *url, *tools)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string, tools int) error {
	w := worker.New(worker.Config{Pool: "bulk", Version: "1.0.0"})
	for i := range tools {
		w.AddRawTool(worker.Tool{
			Name: payload.ToolName(i), Description: payload.Description, InputSchema: json.RawMessage(payload.Schema),
		}, func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
			return nil, errors.New("this tool is only listed")
		})
	}
	return w.Serve(ctx, url)
}
