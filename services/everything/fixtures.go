package everything

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/millrace/millrace/worker"
)

// maxBig is how much the tool big returns at most, in bytes: more than a result
// may have, so that clients can see what happens then.
const maxBig = 80 << 20

// bigSlots is how many results of the tool big an instance makes at the same
// time: each takes a few times its size until it is on its way.
const bigSlots = 24

// addTestTools adds what tests of ours need.
func (e *Everything) addTestTools() {
	e.worker.AddRawTool(worker.Tool{
		Name: "echo", Description: "Returns its arguments, byte for byte, as structured content.", Annotations: readOnly(),
	}, func(_ context.Context, _ *worker.Call, args json.RawMessage) (*worker.Result, error) {
		return &worker.Result{Structured: args}, nil
	})
	worker.AddTool(e.worker, worker.Tool{
		Name: "say", Description: "Returns its text.", Annotations: readOnly(),
	}, func(_ context.Context, _ *worker.Call, in struct {
		Text string `json:"text" jsonschema:"what to say"`
	},
	) (string, error) {
		return in.Text, nil
	})
	worker.AddTool(e.worker, worker.Tool{
		Name: "big", Description: "Returns as many bytes as it is told, as a text, in a resource (as: blob) or as structured content (as: structured).", Annotations: readOnly(),
		Slots: bigSlots,
	}, func(_ context.Context, _ *worker.Call, in struct {
		Bytes int    `json:"bytes" jsonschema:"how long it is"`
		As    string `json:"as,omitempty" jsonschema:"text, blob or structured; text if left out"`
	},
	) (*worker.Result, error) {
		if in.Bytes < 0 || in.Bytes > maxBig {
			return nil, worker.InvalidArguments(fmt.Sprintf("bytes must be from 0 to %d", maxBig))
		}
		switch in.As {
		case "", "text":
			return &worker.Result{Content: []worker.Content{worker.Text(Big(in.Bytes))}}, nil
		case "blob":
			return &worker.Result{Content: []worker.Content{worker.EmbeddedResource(worker.ResourceContents{
				URI: "test://big", MIMEType: "application/octet-stream", Blob: []byte(Big(in.Bytes)),
			})}}, nil
		case "structured":
			return &worker.Result{Content: []worker.Content{worker.Text("")}, Structured: map[string]string{"big": Big(in.Bytes)}}, nil
		}
		return nil, worker.InvalidArguments("as must be text, blob or structured")
	})
	worker.AddTool(e.worker, worker.Tool{
		Name: "slow", Description: "Returns after as many milliseconds as it is told.", Annotations: readOnly(), Timeout: time.Hour,
	}, func(ctx context.Context, _ *worker.Call, in struct {
		MS int `json:"ms" jsonschema:"how long it takes, in milliseconds"`
	},
	) (string, error) {
		if err := pause(ctx, time.Duration(in.MS)*time.Millisecond); err != nil {
			return "", err
		}
		return fmt.Sprintf("That took %d ms.", in.MS), nil
	})
	worker.AddTool(e.worker, worker.Tool{
		Name: "crash", Description: "Fails in the middle of the call: panics, ends its goroutine (how: goexit), or ends the process (how: exit).",
	}, func(_ context.Context, _ *worker.Call, in struct {
		How string `json:"how,omitempty" jsonschema:"panic, goexit or exit; panic if left out"`
	},
	) (string, error) {
		switch in.How {
		case "", "panic":
			panic("the tool crash was called")
		case "goexit":
			runtime.Goexit()
		case "exit":
			if e.exit == nil {
				return "", errors.New("this process is not one that may be ended")
			}
			e.exit()
		}
		return "", worker.InvalidArguments("how must be panic, goexit or exit")
	})
	worker.AddTool(e.worker, worker.Tool{
		Name:        "danger",
		Description: "Has a side effect: it must not run twice for one call. danger_count tells how often it ran.",
		Annotations: &worker.Annotations{DestructiveHint: new(true), IdempotentHint: new(false)},
	}, func(ctx context.Context, _ *worker.Call, in struct {
		MS int `json:"ms,omitempty" jsonschema:"how long it takes after the side effect, in milliseconds"`
	},
	) (counted, error) {
		ran := e.dangers.Add(1)
		if err := pause(ctx, time.Duration(in.MS)*time.Millisecond); err != nil {
			return counted{}, err
		}
		return counted{Count: int(ran)}, nil
	})
	worker.AddTool(e.worker, worker.Tool{
		Name: "danger_count", Description: "Returns how often danger ran in the instance that answers.", Annotations: readOnly(),
	}, func(context.Context, *worker.Call, none) (counted, error) {
		return counted{Count: int(e.dangers.Load())}, nil
	})
}

// Big returns what the tool big returns: what has arrived whole is equal to it.
func Big(bytes int) string {
	const line = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
	return strings.Repeat(line, bytes/len(line)+1)[:bytes]
}
