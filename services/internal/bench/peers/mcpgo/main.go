// Command mcpgo is a server made with mark3labs/mcp-go, with the tools that are
// measured.
package main

import (
	"context"
	"log"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/millrace/millrace/services/internal/bench/peers/told"
)

func main() {
	// Without the option the library has no sessions of its own.
	options := []server.StreamableHTTPOption{server.WithStateful(true)}
	if told.Events() {
		options = append(options, server.WithEventStore(server.NewInMemoryEventStore()))
	}
	s := server.NewMCPServer("mcpgo", "1.0.0")
	s.AddTool(mcp.NewTool("echo", mcp.WithString("text")), func(_ context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultText(req.GetString("text", "")), nil
	})
	s.AddTool(mcp.NewTool("wait", mcp.WithString("name"), mcp.WithString("report")),
		func(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if err := progress(ctx, req, 1); err != nil {
				return nil, err
			}
			<-ctx.Done()
			return mcp.NewToolResultText(""), told.Ended(ctx, req.GetString("report", ""), req.GetString("name", ""))
		})
	s.AddTool(mcp.NewTool("count", mcp.WithNumber("n")), func(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		pace := time.NewTicker(told.Pace)
		defer pace.Stop()
		for i := 1; i <= req.GetInt("n", 0); i++ {
			<-pace.C
			if err := progress(ctx, req, i); err != nil {
				return nil, err
			}
		}
		<-ctx.Done()
		return mcp.NewToolResultText("counted"), nil
	})
	log.Fatal(told.Serve(server.NewStreamableHTTPServer(s, options...)))
}

func progress(ctx context.Context, req mcp.CallToolRequest, n int) error {
	if req.Params.Meta == nil {
		return nil
	}
	return server.ServerFromContext(ctx).SendNotificationToClient(ctx, "notifications/progress", map[string]any{
		"progressToken": req.Params.Meta.ProgressToken, "progress": n,
	})
}
