package everything

import (
	"context"
	"time"

	"github.com/millrace/millrace/worker"
)

// step is the time between two reports, so that a client sees them come.
const step = 50 * time.Millisecond

func (e *Everything) addReportingTools() {
	worker.AddTool(e.worker, worker.Tool{
		Name: "test_tool_with_progress", Description: "Reports progress three times.", Annotations: readOnly(),
	}, func(ctx context.Context, call *worker.Call, _ none) (string, error) {
		for i, done := range []float64{0, 50, 100} {
			if i > 0 {
				if err := pause(ctx, step); err != nil {
					return "", err
				}
			}
			call.Progress(done, 100, "")
		}
		return "Tool with progress executed.", nil
	})
	worker.AddTool(e.worker, worker.Tool{
		Name: "test_tool_with_logging", Description: "Sends three log messages.", Annotations: readOnly(),
	}, func(ctx context.Context, call *worker.Call, _ none) (string, error) {
		for i, message := range []string{"Tool execution started", "Tool processing data", "Tool execution completed"} {
			if i > 0 {
				if err := pause(ctx, step); err != nil {
					return "", err
				}
			}
			call.Log(worker.LevelInfo, "", message)
		}
		return "Tool with logging executed.", nil
	})
	worker.AddTool(e.worker, worker.Tool{
		Name: "test_logging_tool", Description: "Sends a log message to clients that want one.", Annotations: readOnly(),
	}, func(_ context.Context, call *worker.Call, _ none) (string, error) {
		call.Logger().Info("Tool executed", "tool", call.Name())
		return "Logged.", nil
	})
	worker.AddTool(e.worker, worker.Tool{
		Name: "log_all", Description: "Sends one log message at each of the eight levels.", Annotations: readOnly(),
	}, func(_ context.Context, call *worker.Call, _ none) (string, error) {
		for level := worker.LevelDebug; level <= worker.LevelEmergency; level++ {
			call.Log(level, Pool, map[string]string{"message": "a message at level " + level.String()})
		}
		return "Sent one message at each level.", nil
	})
	worker.AddTool(e.worker, worker.Tool{
		Name: "test_reconnection", Description: "Takes a little longer than one connection may last.", Annotations: readOnly(),
	}, func(ctx context.Context, call *worker.Call, _ none) (string, error) {
		call.CloseStream(step)
		if err := pause(ctx, 2*step); err != nil {
			return "", err
		}
		return "Reconnection test completed.", nil
	})
	worker.AddTool(e.worker, worker.Tool{
		Name: "count", Description: "Counts to n, with progress.", Annotations: readOnly(), Timeout: time.Hour,
	}, func(ctx context.Context, call *worker.Call, in struct {
		N     int `json:"n" jsonschema:"how far to count"`
		Delay int `json:"delay_ms,omitempty" jsonschema:"the pause before each number, in milliseconds"`
	},
	) (counted, error) {
		for i := range max(in.N, 0) {
			if err := pause(ctx, time.Duration(in.Delay)*time.Millisecond); err != nil {
				return counted{}, err
			}
			call.Progress(float64(i+1), float64(in.N), "")
		}
		return counted{Count: max(in.N, 0)}, nil
	})
}

type counted struct {
	Count int `json:"count"`
}
