// Command gosdk is a server made with modelcontextprotocol/go-sdk, with the tools
// that are measured.
package main

import (
	"context"
	"log"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/millrace/millrace/services/internal/bench/peers/told"
)

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
	options := &mcp.StreamableHTTPOptions{}
	if told.Events() {
		options.EventStore = mcp.NewMemoryEventStore(nil)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "gosdk", Version: "1.0.0"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "echo", Description: "Returns its text."},
		func(_ context.Context, _ *mcp.CallToolRequest, in echo) (*mcp.CallToolResult, any, error) {
			return text(in.Text), nil, nil
		})
	mcp.AddTool(server, &mcp.Tool{Name: "wait", Description: "Reports progress and waits for its end."},
		func(ctx context.Context, req *mcp.CallToolRequest, in wait) (*mcp.CallToolResult, any, error) {
			if err := progress(ctx, req, 1); err != nil {
				return nil, nil, err
			}
			<-ctx.Done()
			return nil, nil, told.Ended(ctx, in.Report, in.Name)
		})
	mcp.AddTool(server, &mcp.Tool{Name: "count", Description: "Reports progress n times and waits for its end."},
		func(ctx context.Context, req *mcp.CallToolRequest, in count) (*mcp.CallToolResult, any, error) {
			pace := time.NewTicker(told.Pace)
			defer pace.Stop()
			for i := 1; i <= in.N; i++ {
				<-pace.C
				if err := progress(ctx, req, i); err != nil {
					return nil, nil, err
				}
			}
			<-ctx.Done()
			return text("counted"), nil, nil
		})
	log.Fatal(told.Serve(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, options)))
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

func progress(ctx context.Context, req *mcp.CallToolRequest, n int) error {
	return req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
		ProgressToken: req.Params.GetProgressToken(), Progress: float64(n),
	})
}
