// Command gosdk is a client made with modelcontextprotocol/go-sdk. Its mode is
// a protocol revision, or empty for the newest the library knows.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/millrace/millrace/services/internal/e2e/clients/go/scenario"
)

func main() {
	log.SetFlags(0)
	line, err := scenario.Parse(os.Args[1:])
	if err != nil {
		log.Fatal(err)
	}
	c := &steps{line: line, watch: &scenario.Watch{}, changed: make(chan struct{}, 1)}
	if err := scenario.Run(context.Background(), "go-sdk", line, c, c.watch, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// steps implements scenario.Client.
//
// The library hands notifications and answers to its user by different
// goroutines, so the order of arrival is taken where the library reads.
type steps struct {
	line    scenario.CommandLine
	watch   *scenario.Watch
	session *mcp.ClientSession

	level string // of the log messages that each request asks for, in the newest revision

	mu      sync.Mutex
	arrived map[string]int // by progress token, where the library reads
	handled map[string]int // the same, by the handler of its user
	changed chan struct{}  // capacity 1; full: a change is announced already
}

// Connect implements scenario.Client.
func (s *steps) Connect(ctx context.Context) (string, error) {
	s.arrived, s.handled = map[string]int{}, map[string]int{}
	var carrier mcp.Transport
	switch s.line.Transport {
	case "http":
		carrier = &mcp.StreamableClientTransport{
			Endpoint:   s.line.Target[0],
			HTTPClient: &http.Client{Transport: tap{http.DefaultTransport, s.read}},
		}
	case "sse":
		carrier = &mcp.SSEClientTransport{
			Endpoint:   s.line.Target[0],
			HTTPClient: &http.Client{Transport: tap{http.DefaultTransport, s.read}},
		}
	default:
		cmd := exec.Command(s.line.Target[0], s.line.Target[1:]...) //nolint:gosec,noctx // the test says what to run, and the transport ends it
		cmd.Stderr = os.Stderr
		carrier = &mcp.LoggingTransport{Transport: &mcp.CommandTransport{Command: cmd}, Writer: &lines{emit: s.read}}
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "e2e-go-sdk", Version: "1.0.0"}, &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
			s.watch.Notified("tools/list_changed", "")
		},
		PromptListChangedHandler: func(context.Context, *mcp.PromptListChangedRequest) {
			s.watch.Notified("prompts/list_changed", "")
		},
		ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) {
			s.watch.Notified("resources/list_changed", "")
		},
		ResourceUpdatedHandler: func(_ context.Context, req *mcp.ResourceUpdatedNotificationRequest) {
			s.watch.Notified("resources/updated", req.Params.URI)
		},
		LoggingMessageHandler: func(_ context.Context, req *mcp.LoggingMessageRequest) { //nolint:staticcheck // deprecated, and in use
			s.watch.Notified("message", string(req.Params.Level))
		},
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			s.count(s.handled, fmt.Sprint(req.Params.ProgressToken))
		},
		ElicitationHandler: func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			content, err := scenario.Fill(req.Params.RequestedSchema)
			return &mcp.ElicitResult{Action: "accept", Content: content}, err
		},
		CreateMessageHandler: func(_ context.Context, req *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) { //nolint:staticcheck // deprecated, and in use
			text, err := scenario.Sample(req.Params.Messages[0].Content)
			return &mcp.CreateMessageResult{ //nolint:staticcheck // as above
				Model: "none", Role: "assistant", StopReason: "endTurn", Content: &mcp.TextContent{Text: text},
			}, err
		},
	})
	for _, uri := range scenario.Roots() {
		client.AddRoots(&mcp.Root{URI: uri}) //nolint:staticcheck // as above
	}
	session, err := client.Connect(ctx, carrier, &mcp.ClientSessionOptions{ProtocolVersion: s.line.Mode})
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	s.session = session
	return session.InitializeResult().ProtocolVersion, nil
}

// read takes one message where the library reads it.
func (s *steps) read(m message) {
	switch m.Method {
	case "notifications/progress":
		token := fmt.Sprint(m.Params["progressToken"])
		s.count(s.arrived, token)
		s.watch.Progress(token, m.Params)
	case "": // an answer
		s.watch.Answer()
	}
}

func (s *steps) count(counts map[string]int, token string) {
	s.mu.Lock()
	counts[token]++
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// List implements scenario.Client.
func (s *steps) List(ctx context.Context) (tools, resources, templates []string, err error) {
	for tool, err := range s.session.Tools(ctx, nil) {
		if err != nil {
			return nil, nil, nil, fmt.Errorf("tools: %w", err)
		}
		tools = append(tools, tool.Name)
	}
	for resource, err := range s.session.Resources(ctx, nil) {
		if err != nil {
			return nil, nil, nil, fmt.Errorf("resources: %w", err)
		}
		resources = append(resources, resource.URI)
	}
	for template, err := range s.session.ResourceTemplates(ctx, nil) {
		if err != nil {
			return nil, nil, nil, fmt.Errorf("templates: %w", err)
		}
		templates = append(templates, template.URITemplate)
	}
	return tools, resources, templates, nil
}

// Call implements scenario.Client. It returns when the handler has got all
// progress that was read.
func (s *steps) Call(ctx context.Context, tool string, arguments map[string]any, token string) (any, error) {
	params := &mcp.CallToolParams{Name: tool, Arguments: arguments}
	if token != "" {
		params.SetProgressToken(token)
	}
	if s.level != "" {
		if params.Meta == nil {
			params.Meta = mcp.Meta{}
		}
		params.Meta[mcp.MetaKeyLogLevel] = s.level //nolint:staticcheck // deprecated, and in use
	}
	result, err := s.session.CallTool(ctx, params)
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		s.mu.Lock()
		missing := s.arrived[token] - s.handled[token]
		s.mu.Unlock()
		if missing == 0 {
			return result, nil
		}
		select {
		case <-s.changed:
		case <-wait.Done():
			return nil, fmt.Errorf("%d progress notifications were read and never handed on", missing)
		}
	}
}

// Read implements scenario.Client.
func (s *steps) Read(ctx context.Context, uri string) (any, error) {
	return s.session.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
}

// Prompt implements scenario.Client.
func (s *steps) Prompt(ctx context.Context, name string, arguments map[string]string) (any, error) {
	return s.session.GetPrompt(ctx, &mcp.GetPromptParams{Name: name, Arguments: arguments})
}

// Complete implements scenario.Client.
func (s *steps) Complete(ctx context.Context, prompt, argument, value string) (any, error) {
	return s.session.Complete(ctx, &mcp.CompleteParams{
		Ref:      &mcp.CompleteReference{Type: "ref/prompt", Name: prompt},
		Argument: mcp.CompleteParamsArgument{Name: argument, Value: value},
	})
}

// SetLevel implements scenario.Client. The newest revision has a level for each
// request, which the library leaves to its user.
func (s *steps) SetLevel(ctx context.Context, level string) error {
	if s.session.InitializeResult().ProtocolVersion >= scenario.FirstWithoutHandshake {
		s.level = level
		return nil
	}
	return s.session.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: mcp.LoggingLevel(level)}) //nolint:staticcheck // deprecated, and in use
}

// Follow implements scenario.Client. The library follows the lists by itself,
// for the handlers that it was given.
func (s *steps) Follow(ctx context.Context, uri string) (stop func(context.Context) error, err error) {
	return func(ctx context.Context) error {
		return s.session.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: uri})
	}, s.session.Subscribe(ctx, &mcp.SubscribeParams{URI: uri})
}

// Close implements scenario.Client.
func (s *steps) Close() error { return s.session.Close() }

// Failure implements scenario.Client.
func (s *steps) Failure(err error) scenario.Failure {
	f := scenario.Failure{Message: err.Error()}
	if wire, ok := errors.AsType[*jsonrpc.Error](err); ok {
		f.Code, f.Data = wire.Code, wire.Data
	}
	return f
}
