// Command mcpgo is a client made with mark3labs/mcp-go. Its mode is a protocol
// revision, or empty for the newest the library knows.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/millrace/millrace/services/internal/e2e/clients/go/scenario"
)

func main() {
	log.SetFlags(0)
	line, err := scenario.Parse(os.Args[1:])
	if err != nil {
		log.Fatal(err)
	}
	c := &steps{line: line, watch: &scenario.Watch{}}
	if err := scenario.Run(context.Background(), "mcp-go", line, c, c.watch, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// steps implements scenario.Client.
type steps struct {
	line   scenario.CommandLine
	watch  *scenario.Watch
	client *client.Client
}

// Connect implements scenario.Client.
func (s *steps) Connect(ctx context.Context) (string, error) {
	var carrier transport.Interface
	var err error
	switch s.line.Transport {
	case "http":
		var options []transport.StreamableHTTPCOption
		if s.line.Mode != "" {
			// What a server tells by itself comes by the GET stream; the
			// library takes the option for the wish to speak an older revision.
			options = append(options, transport.WithContinuousListening()) //nolint:staticcheck // deprecated, and in use
		}
		if carrier, err = transport.NewStreamableHTTP(s.line.Target[0], options...); err != nil {
			return "", fmt.Errorf("transport: %w", err)
		}
	case "sse":
		if carrier, err = transport.NewSSE(s.line.Target[0]); err != nil {
			return "", fmt.Errorf("transport: %w", err)
		}
	default:
		carrier = transport.NewStdioWithOptions(s.line.Target[0], nil, s.line.Target[1:],
			transport.WithCommandStderrWriter(os.Stderr))
	}
	options := []client.ClientOption{
		client.WithElicitationHandler(user{}), client.WithSamplingHandler(user{}), client.WithRootsHandler(user{}),
	}
	if s.line.Mode != "" {
		options = append(options, client.WithProtocolVersion(s.line.Mode))
	}
	s.client = client.NewClient(carrier, options...)
	// The library calls this before it reads the next message.
	s.client.OnNotification(func(n mcp.JSONRPCNotification) {
		fields := n.Params.AdditionalFields
		method, _ := strings.CutPrefix(n.Method, "notifications/")
		switch method {
		case "progress":
			s.watch.Progress(fmt.Sprint(fields["progressToken"]), fields)
		case "message":
			s.watch.Notified(method, fmt.Sprint(fields["level"]))
		case "resources/updated":
			s.watch.Notified(method, fmt.Sprint(fields["uri"]))
		default:
			s.watch.Notified(method, "")
		}
	})
	if err := s.client.Start(ctx); err != nil {
		return "", fmt.Errorf("start: %w", err)
	}
	var request mcp.InitializeRequest
	request.Params.ClientInfo = mcp.Implementation{Name: "e2e-mcp-go", Version: "1.0.0"}
	result, err := s.client.Initialize(ctx, request)
	if err != nil {
		return "", fmt.Errorf("initialize: %w", err)
	}
	return result.ProtocolVersion, nil
}

// List implements scenario.Client. The library reads all pages.
func (s *steps) List(ctx context.Context) (tools, resources, templates []string, err error) {
	t, err := s.client.ListTools(ctx, mcp.ListToolsRequest{})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("tools: %w", err)
	}
	for i := range t.Tools {
		tools = append(tools, t.Tools[i].Name)
	}
	r, err := s.client.ListResources(ctx, mcp.ListResourcesRequest{})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("resources: %w", err)
	}
	for i := range r.Resources {
		resources = append(resources, r.Resources[i].URI)
	}
	p, err := s.client.ListResourceTemplates(ctx, mcp.ListResourceTemplatesRequest{})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("templates: %w", err)
	}
	for i := range p.ResourceTemplates {
		templates = append(templates, p.ResourceTemplates[i].URITemplate.Raw())
	}
	return tools, resources, templates, nil
}

// Call implements scenario.Client.
func (s *steps) Call(ctx context.Context, tool string, arguments map[string]any, token string) (any, error) {
	var request mcp.CallToolRequest
	request.Params.Name, request.Params.Arguments = tool, arguments
	if token != "" {
		request.Params.Meta = &mcp.Meta{ProgressToken: token}
	}
	return s.client.CallTool(ctx, request)
}

// Read implements scenario.Client.
func (s *steps) Read(ctx context.Context, uri string) (any, error) {
	var request mcp.ReadResourceRequest
	request.Params.URI = uri
	return s.client.ReadResource(ctx, request)
}

// Prompt implements scenario.Client.
func (s *steps) Prompt(ctx context.Context, name string, arguments map[string]string) (any, error) {
	var request mcp.GetPromptRequest
	request.Params.Name, request.Params.Arguments = name, arguments
	return s.client.GetPrompt(ctx, request)
}

// Complete implements scenario.Client.
func (s *steps) Complete(ctx context.Context, prompt, argument, value string) (any, error) {
	var request mcp.CompleteRequest
	request.Params.Ref = mcp.PromptReference{Type: "ref/prompt", Name: prompt}
	request.Params.Argument = mcp.CompleteArgument{Name: argument, Value: value}
	return s.client.Complete(ctx, request)
}

// SetLevel implements scenario.Client.
func (s *steps) SetLevel(ctx context.Context, level string) error {
	var request mcp.SetLevelRequest
	request.Params.Level = mcp.LoggingLevel(level)
	return s.client.SetLevel(ctx, request) //nolint:staticcheck // as above
}

// Follow implements scenario.Client. Up to 2025-11-25 the library follows the
// lists by itself.
func (s *steps) Follow(ctx context.Context, uri string) (stop func(context.Context) error, err error) {
	if s.client.ProtocolVersion() >= scenario.FirstWithoutHandshake {
		end, err := s.client.ListenAsync(ctx, mcp.SubscriptionFilter{
			ToolsListChanged: true, PromptsListChanged: true, ResourcesListChanged: true,
			ResourceSubscriptions: []string{uri},
		}, func(err error) { s.watch.Notified("listen", err.Error()) })
		return func(context.Context) error { end(); return nil }, err
	}
	var request mcp.SubscribeRequest
	request.Params.URI = uri
	return func(ctx context.Context) error {
		var request mcp.UnsubscribeRequest
		request.Params.URI = uri
		return s.client.Unsubscribe(ctx, request) //nolint:staticcheck // as above
	}, s.client.Subscribe(ctx, request) //nolint:staticcheck // as above
}

// Close implements scenario.Client.
func (s *steps) Close() error { return s.client.Close() }

// Failure implements scenario.Client. The library keeps the code of an error
// only as one of its variables.
func (s *steps) Failure(err error) scenario.Failure {
	f := scenario.Failure{Message: err.Error()}
	for code, sentinel := range map[int64]error{
		mcp.PARSE_ERROR: mcp.ErrParseError, mcp.INVALID_REQUEST: mcp.ErrInvalidRequest,
		mcp.METHOD_NOT_FOUND: mcp.ErrMethodNotFound, mcp.INVALID_PARAMS: mcp.ErrInvalidParams,
		mcp.INTERNAL_ERROR: mcp.ErrInternalError,
	} {
		if errors.Is(err, sentinel) {
			f.Code = code
		}
	}
	return f
}

// user answers a server that asks.
type user struct{}

// Elicit implements client.ElicitationHandler.
func (user) Elicit(_ context.Context, request mcp.ElicitationRequest) (*mcp.ElicitationResult, error) {
	content, err := scenario.Fill(request.Params.RequestedSchema)
	return &mcp.ElicitationResult{ElicitationResponse: mcp.ElicitationResponse{
		Action: mcp.ElicitationResponseActionAccept, Content: content,
	}}, err
}

// CreateMessage implements client.SamplingHandler.
func (user) CreateMessage(_ context.Context, request mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
	text, err := scenario.Sample(request.Messages[0].Content)
	return &mcp.CreateMessageResult{
		SamplingMessage: mcp.SamplingMessage{Role: mcp.RoleAssistant, Content: mcp.NewTextContent(text)},
		Model:           "none", StopReason: "endTurn",
	}, err
}

// ListRoots implements client.RootsHandler.
func (user) ListRoots(context.Context, mcp.ListRootsRequest) (*mcp.ListRootsResult, error) {
	result := &mcp.ListRootsResult{}
	for _, uri := range scenario.Roots() {
		result.Roots = append(result.Roots, mcp.Root{URI: uri})
	}
	return result, nil
}
