// Command mcpgo is a server made with mark3labs/mcp-go, with the tools that are
// measured.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/millrace/millrace/deploy/bench/servers/payload"
)

func main() {
	stateless := flag.Bool("stateless", false, "keep no sessions")
	tools := flag.Int("tools", 0, "how many tools there are that are only listed, instead of the others")
	flag.Parse()
	s := server.NewMCPServer("mcpgo", "1.0.0")
	if *tools > 0 {
		addListed(s, *tools)
	} else {
		addCalled(s)
	}
	option := server.WithStateful(true)
	if *stateless {
		option = server.WithStateLess(true)
	}
	log.Fatal(payload.Serve(server.NewStreamableHTTPServer(s, option)))
}

func addListed(s *server.MCPServer, n int) {
	for i := range n {
		s.AddTool(mcp.NewToolWithRawSchema(payload.ToolName(i), payload.Description, json.RawMessage(payload.Schema)),
			func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return nil, errors.New("this tool is only listed")
			})
	}
}

func addCalled(s *server.MCPServer) {
	s.AddTool(mcp.NewTool("say", mcp.WithDescription("Returns its text."), mcp.WithString("text", mcp.Required())),
		func(_ context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultText(req.GetString("text", "")), nil
		})
	s.AddTool(mcp.NewTool("big", mcp.WithDescription("Returns as many bytes as it is told, as a text."), mcp.WithNumber("bytes", mcp.Required())),
		func(_ context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultText(payload.Text(req.GetInt("bytes", 0))), nil
		})
	s.AddTool(mcp.NewTool("count", mcp.WithDescription("Counts to n, with progress."), mcp.WithNumber("n", mcp.Required())),
		func(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			n := req.GetInt("n", 0)
			for i := range n {
				if err := server.ServerFromContext(ctx).SendNotificationToClient(ctx, "notifications/progress", map[string]any{
					"progressToken": req.Params.Meta.ProgressToken, "progress": i + 1, "total": n,
				}); err != nil {
					return nil, err
				}
			}
			return mcp.NewToolResultStructured(map[string]int{"count": n}, fmt.Sprintf(`{"count":%d}`, n)), nil
		})
}
