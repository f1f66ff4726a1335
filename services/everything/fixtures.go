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

// maxBig is the largest text of the tool big, in bytes: as large as a result
// may be.
const maxBig = 64 << 20

// addTestTools adds what tests of ours need.
func (e *Everything) addTestTools() {
	e.worker.AddRawTool(worker.Tool{
		Name: "echo", Description: "Returns its arguments, byte for byte, as structured content.", Annotations: readOnly(),
	}, func(_ context.Context, _ *worker.Call, args json.RawMessage) (*worker.Result, error) {
		return &worker.Result{Structured: args}, nil
	})
	worker.AddTool(e.worker, worker.Tool{
		Name: "big", Description: "Returns a text of as many bytes as it is told.", Annotations: readOnly(),
	}, func(_ context.Context, _ *worker.Call, in struct {
		Bytes int `json:"bytes" jsonschema:"how long the text is"`
	},
	) (string, error) {
		if in.Bytes < 0 || in.Bytes > maxBig {
			return "", worker.InvalidArguments(fmt.Sprintf("bytes must be from 0 to %d", maxBig))
		}
		return Big(in.Bytes), nil
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

// Big returns the text of the tool big: what has arrived whole is equal to it.
func Big(bytes int) string {
	const line = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
	return strings.Repeat(line, bytes/len(line)+1)[:bytes]
}
