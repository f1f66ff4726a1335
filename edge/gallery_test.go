package edge

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/worker"
)

// gallery is a worker that uses every member that any revision has, so that an
// edge that shows one where it does not belong is found by the closed schemas
// of the wire checks.
func (s *system) gallery() {
	s.t.Helper()
	w := worker.New(worker.Config{Pool: "gallery", Version: "1.0.0", Title: "Gallery", Logger: slog.New(slog.DiscardHandler)})
	icons := []worker.Icon{{Src: "https://example.com/i.png", MIMEType: "image/png", Sizes: []string{"48x48"}, Theme: "dark"}}
	meta := json.RawMessage(`{"example.com/m":1}`)
	notes := worker.ContentAnnotations{
		Audience: []worker.Role{worker.RoleUser}, Priority: new(0.5),
		LastModified: time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	contents := worker.ResourceContents{URI: "gallery://full", MIMEType: "text/plain", Text: "all", Meta: meta}
	full := worker.Resource{
		URI: "gallery://full", Name: "full", Title: "Full", Description: "Has all.", MIMEType: "text/plain",
		Size: new(int64(3)), Annotations: notes.JSON(), Icons: icons, Meta: meta,
	}
	blocks := []worker.Content{
		worker.Text("text").Annotated(notes).WithMeta(meta),
		worker.Image([]byte{1}, "image/png").Annotated(notes).WithMeta(meta),
		worker.Audio([]byte{1}, "audio/wav").Annotated(notes).WithMeta(meta),
		worker.EmbeddedResource(contents).Annotated(notes).WithMeta(meta),
		worker.EmbeddedResource(worker.ResourceContents{URI: "gallery://blob", Blob: []byte{1}, Meta: meta}),
		worker.ResourceLink(full),
	}
	w.AddRawTool(worker.Tool{
		Name: "gallery", Title: "Gallery", Description: "Has all.", Icons: icons, Meta: meta,
		Annotations: &worker.Annotations{
			Title: "Gallery", ReadOnlyHint: new(true), DestructiveHint: new(false), IdempotentHint: new(true), OpenWorldHint: new(false),
		},
		InputSchema:  json.RawMessage(`{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{}}`),
		OutputSchema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}`),
	}, func(_ context.Context, call *worker.Call, _ json.RawMessage) (*worker.Result, error) {
		call.Log(worker.LevelWarning, "gallery", map[string]any{"looking": true})
		call.Progress(1, 2, "half")
		return &worker.Result{Content: blocks, Structured: json.RawMessage(`{"a":1}`), Meta: meta}, nil
	})
	w.AddRawTool(worker.Tool{
		Name: "list", OutputSchema: json.RawMessage(`{"type":"array"}`), InputSchema: json.RawMessage(`{"type":"object"}`),
	}, func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
		return &worker.Result{Content: []worker.Content{worker.Text("[1]")}, Structured: json.RawMessage(`[1]`)}, nil
	})
	type loose struct {
		Any any             `json:"any"`
		Raw json.RawMessage `json:"raw"`
	}
	worker.AddTool(w, worker.Tool{Name: "loose"}, func(_ context.Context, _ *worker.Call, in loose) (loose, error) { return in, nil })
	w.AddRawTool(worker.Tool{Name: "booleans", InputSchema: json.RawMessage(`{"type":"object","properties":{"yes":true,"no":false}}`)},
		func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
			return &worker.Result{}, nil
		})
	type none struct{}
	worker.AddTool(w, worker.Tool{Name: "sign-in"}, func(_ context.Context, call *worker.Call, _ none) (string, error) {
		_, err := call.Ask(worker.ElicitURL("page", "Sign in.", "https://example.com/", ""))
		return "signed in", err
	})
	type form struct {
		Name  string   `json:"name" title:"Name" jsonschema:"who you are" default:"Ala"`
		Mail  string   `json:"mail,omitempty" format:"email"`
		Size  string   `json:"size" enum:"small,large"`
		Tags  []string `json:"tags,omitempty" enum:"a,b"`
		Count int      `json:"count"`
		Share float64  `json:"share"`
		Sure  bool     `json:"sure"`
	}
	worker.AddTool(w, worker.Tool{Name: "fill-in"}, func(_ context.Context, call *worker.Call, _ none) (string, error) {
		_, err := call.Ask(worker.ElicitFor[form]("form", "Please fill in."))
		return "filled in", err
	})
	type choice struct {
		Tags []string `json:"tags" enum:"a,b"`
	}
	worker.AddTool(w, worker.Tool{Name: "choose"}, func(_ context.Context, call *worker.Call, _ none) (string, error) {
		_, err := call.Ask(worker.ElicitFor[choice]("form", "Please choose."))
		return "chosen", err
	})
	worker.AddTool(w, worker.Tool{Name: "think"}, func(_ context.Context, call *worker.Call, _ none) (string, error) {
		answers, err := call.Ask(worker.CreateMessage("thought", worker.CreateMessageParams{
			Messages: []worker.SamplingMessage{{Role: worker.RoleUser, Content: []worker.Content{worker.Text("Think.")}}}, MaxTokens: 10,
			SystemPrompt: "Be brief.", Temperature: new(0.5), StopSequences: []string{"."}, IncludeContext: "none", Metadata: meta,
			ModelPreferences: &worker.ModelPreferences{SpeedPriority: new(0.5)},
		}))
		return answers.Message("thought").Text(), err
	})
	w.AddPrompt(worker.Prompt{
		Name: "gallery", Title: "Gallery", Description: "Has all.", Icons: icons, Meta: meta,
		Arguments: []worker.PromptArgument{{Name: "a", Title: "A", Description: "The first.", Required: true}},
	}, func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) {
		r := &worker.PromptResult{Description: "All.", Meta: meta}
		for _, b := range blocks {
			r.Messages = append(r.Messages, worker.PromptMessage{Role: worker.RoleAssistant, Content: b})
		}
		return r, nil
	})
	w.AddResource(full, func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
		return &worker.Contents{Items: []worker.ResourceContents{contents, {URI: "gallery://blob", Blob: []byte{1}, Meta: meta}}, Meta: meta, TTL: time.Minute, Public: true}, nil
	})
	w.AddResourceTemplate(worker.ResourceTemplate{
		URITemplate: "gallery://{room}/{wall}", Name: "wall", Title: "Wall", Description: "A wall.", MIMEType: "text/plain",
		Annotations: notes.JSON(), Icons: icons, Meta: meta,
	}, func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
		return worker.TextContents("text/plain", "a wall"), nil
	})
	s.serveWorker("gallery", w)
}

// serveWorker runs a further worker and waits until the edge knows it.
func (s *system) serveWorker(pool string, w *worker.Worker) {
	s.t.Helper()
	conn := s.conn(pool)
	run(s.t, pool, func(ctx context.Context) error { return w.Run(ctx, conn) })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.edge.WaitReady(ctx, pool); err != nil {
		s.t.Fatal(err)
	}
}

// TestEachRevisionHasOnlyItsMembers shows the gallery in every revision. The
// assertion is that of the wire: each message is valid, and has no member that
// its type in that revision does not have.
func TestEachRevisionHasOnlyItsMembers(t *testing.T) {
	t.Parallel()
	for _, rev := range mcp.Supported() {
		t.Run(rev, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { showGallery(t, rev) })
		})
	}
}

func showGallery(t *testing.T, rev string) {
	s := start(t, Config{Server: mcp.Implementation{Name: "millrace", Title: "Millrace", Version: "1"}})
	s.gallery()
	const capabilities = `{"elicitation":{"form":{},"url":{}},"sampling":{"context":{}},"roots":{}}`
	call := func(method, params string) string {
		text := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
		if rev == mcp.Modern().Date {
			meta := `{"_meta":{"` + mcp.MetaProtocolVersion + `":"` + rev + `","` + mcp.MetaClientCapabilities + `":` + capabilities + `,"` + mcp.MetaLogLevel + `":"debug","progressToken":"p"},`
			text = strings.Replace(text, `"params":{`, strings.TrimSuffix(`"params":`+meta, ","[:map[bool]int{params == "{}": 1}[true]]), 1)
			return body(t, s.post(context.Background(), text, append(modernHeaders(text), "Accept: application/json, text/event-stream")...))
		}
		return body(t, s.post(context.Background(), text, mcp.HeaderSessionID+": "+s.session(rev, capabilities), "Accept: application/json, text/event-stream"))
	}
	method := mcp.MethodPing
	if rev == mcp.Modern().Date {
		method = mcp.MethodDiscover
	}
	for _, c := range []struct{ method, params, want string }{
		{method, `{}`, `"result"`},
		{mcp.MethodToolsList, `{}`, `"name":"gallery"`},
		{mcp.MethodPromptsList, `{}`, `"name":"gallery"`},
		{mcp.MethodResourcesList, `{}`, `"uri":"gallery://full"`},
		{mcp.MethodResourceTemplatesList, `{}`, `"uriTemplate":"gallery://{room}/{wall}"`},
		{mcp.MethodToolsCall, `{"name":"gallery","arguments":{}}`, `"type":"image"`},
		{mcp.MethodToolsCall, `{"name":"loose","arguments":{"any":[],"raw":null}}`, `{\"any\":[],\"raw\":null}`},
		{mcp.MethodToolsCall, `{"name":"list","arguments":{}}`, `"text":"[1]"`},
		{mcp.MethodPromptsGet, `{"name":"gallery","arguments":{"a":"b"}}`, `"description":"All."`},
		{mcp.MethodResourcesRead, `{"uri":"gallery://full"}`, `"text":"all"`},
		{mcp.MethodComplete, `{"ref":{"type":"ref/prompt","name":"greeting"},"argument":{"name":"name","value":"Al"}}`, `"Alicja"`},
	} {
		if got := call(c.method, c.params); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s", c.method, got)
		}
	}
	session := ""
	if rev != mcp.Modern().Date {
		session = s.session(rev, capabilities)
	}
	row, _ := mcp.Lookup(rev)
	for name, asks := range map[string]string{"sign-in": mcp.MethodElicit, "fill-in": mcp.MethodElicit, "choose": mcp.MethodElicit, "think": mcp.MethodCreateMessage} {
		if session == "" {
			if got := call(mcp.MethodToolsCall, `{"name":"`+name+`"}`); !strings.Contains(got, `"method":"`+asks+`"`) {
				t.Errorf("%s: %s", name, got)
			}
			continue
		}
		stream := s.callStream(session, `{"name":"`+name+`"}`)
		first := stream.next()
		asked := strings.Contains(first, `"method":"`+asks+`"`)
		want := name == "think" || row.ElicitationModes || row.Elicitation && name == "fill-in"
		if asked != want {
			t.Errorf("%s asked: %v: %s", name, asked, first)
		}
		if name == "choose" && row.Elicitation && !asked {
			resp := s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"choose"}}`, mcp.HeaderSessionID+": "+session)
			if got := body(t, resp); !strings.Contains(got, `"reason":"no_input"`) {
				t.Errorf("a form that the revision does not have: %s", got)
			}
		}
		if name == "fill-in" && asked && strings.Contains(first, `"tags"`) != row.ElicitationModes {
			t.Errorf("%s: a list to choose several from: %s", name, first)
		}
		if asked {
			id, _ := request(t, first, asks)
			s.respond(session, `{"jsonrpc":"2.0","id":"`+id+`","error":{"code":-1,"message":"no"}}`)
			stream.next()
		}
	}
}
