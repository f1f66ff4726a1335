// Command gosdk is a server made with modelcontextprotocol/go-sdk, with the tools
// that are measured.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/millrace/millrace/deploy/bench/servers/payload"
)

type say struct {
	Text string `json:"text"`
}

type big struct {
	Bytes int `json:"bytes"`
}

type count struct {
	N int `json:"n"`
}

type counted struct {
	Count int `json:"count"`
}

func main() {
	options := &mcp.StreamableHTTPOptions{}
	flag.BoolVar(&options.Stateless, "stateless", false, "keep no sessions")
	flag.BoolVar(&options.JSONResponse, "json", false, "answer with JSON, not with events")
	tools := flag.Int("tools", 0, "how many tools there are that are only listed, instead of the others")
	flag.Parse()
	server := mcp.NewServer(&mcp.Implementation{Name: "gosdk", Version: "1.0.0"}, nil)
	if *tools > 0 {
		addListed(server, *tools)
	} else {
		addCalled(server)
	}
	log.Fatal(payload.Serve(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, options)))
}

func addListed(server *mcp.Server, n int) {
	for i := range n {
		server.AddTool(&mcp.Tool{Name: payload.ToolName(i), Description: payload.Description, InputSchema: json.RawMessage(payload.Schema)},
			func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return nil, errors.New("this tool is only listed")
			})
	}
}

func addCalled(server *mcp.Server) {
	mcp.AddTool(server, &mcp.Tool{Name: "say", Description: "Returns its text."},
		func(_ context.Context, _ *mcp.CallToolRequest, in say) (*mcp.CallToolResult, any, error) {
			return text(in.Text), nil, nil
		})
	mcp.AddTool(server, &mcp.Tool{Name: "big", Description: "Returns as many bytes as it is told, as a text."},
		func(_ context.Context, _ *mcp.CallToolRequest, in big) (*mcp.CallToolResult, any, error) {
			return text(payload.Text(in.Bytes)), nil, nil
		})
	mcp.AddTool(server, &mcp.Tool{Name: "count", Description: "Counts to n, with progress."},
		func(ctx context.Context, req *mcp.CallToolRequest, in count) (*mcp.CallToolResult, counted, error) {
			for i := range in.N {
				if err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
					ProgressToken: req.Params.GetProgressToken(), Progress: float64(i + 1), Total: float64(in.N),
				}); err != nil {
					return nil, counted{}, err
				}
			}
			return nil, counted{in.N}, nil
		})
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}
