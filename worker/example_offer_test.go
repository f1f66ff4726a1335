package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

// A prompt with an argument that the client can complete while it is typed.
func ExampleWorker_AddPrompt() {
	var review worker.PromptFunc = func(_ context.Context, _ *worker.Call, args map[string]string) (*worker.PromptResult, error) {
		return &worker.PromptResult{
			Description: "A review of " + args["language"] + " code.",
			Messages: []worker.PromptMessage{
				{Role: worker.RoleUser, Content: worker.Text("Review this " + args["language"] + " code:\n" + args["code"])},
				{Role: worker.RoleAssistant, Content: worker.Text("With pleasure. What matters most to you?")},
			},
		}, nil
	}
	w := worker.New(worker.Config{Pool: "prompts"})
	w.AddPrompt(worker.Prompt{
		Name:        "review",
		Description: "Has code reviewed.",
		Arguments: []worker.PromptArgument{
			{Name: "code", Required: true},
			{Name: "language", Complete: worker.CompleteFrom("Go", "Gleam", "Rust")},
		},
	}, review)

	client := workertest.Client{}
	out := client.Get(demo{}, w, "review", map[string]string{"code": "x := 1", "language": "Go"})
	fmt.Println(out.Text())
	fmt.Println(client.Get(demo{}, w, "review", nil).Error.GetDetail())
	fmt.Println(client.CompletePrompt(demo{}, w, "review", worker.CompleteRequest{Argument: "language", Value: "g"}).GetValues())
	w.RemovePrompt("review")
	fmt.Println(client.Get(demo{}, w, "review", nil).Error.GetKind())
	// Output:
	// Review this Go code:
	// x := 1
	// With pleasure. What matters most to you?
	// missing required argument "code"
	// [Go Gleam]
	// KIND_UNKNOWN_PROMPT
}

// A tool whose schema came from elsewhere and cannot be used is left out; what
// is wrong with it can be looked up.
func ExampleWorker_Problems() {
	w := worker.New(worker.Config{Pool: "relay"})
	w.AddRawTool(worker.Tool{Name: "relayed", InputSchema: json.RawMessage(`{"type":"object","$schema":"http://json-schema.org/draft-04/schema#"}`)},
		func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
			return &worker.Result{}, nil
		})
	show := func(p worker.Problem) { fmt.Println(p.Tool, "is not offered:", p.Reason) }
	for _, p := range w.Problems() {
		show(p)
	}
	// Output:
	// relayed is not offered: input schema: its dialect "http://json-schema.org/draft-04/schema#" is not supported: use draft 2020-12 or draft-07
}

// Suggestions that depend on what was chosen before.
func ExampleCompleteFunc() {
	cities := map[string][]string{"pl": {"Gdynia", "Gdańsk"}, "se": {"Göteborg"}}
	var city worker.CompleteFunc = func(ctx context.Context, call *worker.Call, req worker.CompleteRequest) (*worker.Completion, error) {
		found, err := worker.CompleteFrom(cities[req.Known["country"]]...)(ctx, call, req)
		if err != nil {
			return nil, err
		}
		return &worker.Completion{Values: found.Values, Total: len(found.Values)}, nil
	}
	w := worker.New(worker.Config{Pool: "cities"})
	w.AddResourceTemplate(worker.ResourceTemplate{
		URITemplate: "city://{country}/{city}",
		Name:        "city",
		Complete:    map[string]worker.CompleteFunc{"country": worker.CompleteFrom("pl", "se"), "city": city},
	}, func(_ context.Context, _ *worker.Call, req worker.ReadRequest) (*worker.Contents, error) {
		return worker.TextContents("text/plain", req.Vars["city"]), nil
	})

	client := workertest.Client{}
	fmt.Println(client.CompleteTemplate(demo{}, w, "city://{country}/{city}", worker.CompleteRequest{
		Argument: "city", Value: "gdy", Known: map[string]string{"country": "pl"},
	}).GetValues())
	// Output:
	// [Gdynia]
}

// Resources of all kinds; they may come, change and go while the worker runs.
func ExampleWorker_AddResource() {
	var logo worker.ReadFunc = func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
		contents := worker.BlobContents("image/png", []byte("not really"))
		contents.TTL, contents.Public = time.Hour, true // any cache may keep it
		return contents, nil
	}
	w := worker.New(worker.Config{Pool: "files"})
	w.AddResource(worker.Resource{
		URI: "file:///logo.png", Name: "logo", Title: "Our logo",
		Icons:       []worker.Icon{{Src: "https://example.com/logo.svg", Sizes: []string{"any"}}},
		Annotations: worker.ContentAnnotations{Audience: []worker.Role{worker.RoleUser}, Priority: new(0.2)}.JSON(),
	}, logo)
	w.AddResource(worker.Resource{URI: "file:///docs/", Name: "docs"},
		func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
			return &worker.Contents{Items: []worker.ResourceContents{
				{URI: "file:///docs/a.md", MIMEType: "text/markdown", Text: "# A"},
				{URI: "file:///docs/b.md", MIMEType: "text/markdown", Text: "# B"},
			}}, nil
		})
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "file:///{+path}", Name: "file"},
		func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
			return nil, worker.ErrResourceNotFound
		})

	client := workertest.Client{}
	fmt.Printf("%s\n", client.Read(demo{}, w, "file:///logo.png").Contents.GetContents())
	fmt.Println(client.Read(demo{}, w, "file:///docs/").Text())
	fmt.Println(client.Read(demo{}, w, "file:///none").Error.GetKind())

	w.ResourceUpdated("file:///docs/") // tells those who have subscribed
	w.RemoveResource("file:///docs/")
	w.RemoveResourceTemplate("file:///{+path}")
	fmt.Println(client.Read(demo{}, w, "file:///docs/").Error.GetKind())
	// Output:
	// [{"uri":"file:///logo.png","mimeType":"image/png","blob":"bm90IHJlYWxseQ=="}]
	// # A
	// # B
	// KIND_RESOURCE_NOT_FOUND
	// KIND_RESOURCE_NOT_FOUND
}

// A tool that two calls may use at a time, and that can be taken away.
func ExampleWorker_RemoveTool() {
	w := worker.New(worker.Config{Pool: "render"})
	worker.AddTool(w, worker.Tool{Name: "render", Slots: 2, Timeout: time.Minute},
		func(context.Context, *worker.Call, struct{}) (string, error) { return "rendered", nil })

	fmt.Println(workertest.Call(demo{}, w, "render", struct{}{}).Text())
	w.RemoveTool("render")
	fmt.Println(workertest.Call(demo{}, w, "render", struct{}{}).Error.GetKind())
	// Output:
	// rendered
	// KIND_UNKNOWN_TOOL
}

// Every kind of block, with what can be said about one.
func ExampleContent() {
	for _, block := range []worker.Content{
		worker.Text("for the user").Annotated(worker.ContentAnnotations{
			Audience:     []worker.Role{worker.RoleUser},
			Priority:     new(1.0),
			LastModified: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
		}),
		worker.Image([]byte("png"), "image/png").WithMeta(json.RawMessage(`{"example.com/width":1}`)),
		worker.Audio([]byte("wav"), "audio/wav"),
		worker.ResourceLink(worker.Resource{URI: "memo://hello", Name: "hello"}),
		worker.EmbeddedResource(worker.ResourceContents{URI: "memo://dots", MIMEType: "image/png", Blob: []byte("png")}),
		worker.RawContent(json.RawMessage(`{"type":"text","text":"as it is"}`)),
	} {
		raw, err := json.Marshal(block)
		fmt.Println(string(raw), err)
	}
	// Output:
	// {"type":"text","text":"for the user","annotations":{"audience":["user"],"priority":1,"lastModified":"2026-11-30T12:00:00Z"}} <nil>
	// {"type":"image","data":"cG5n","mimeType":"image/png","_meta":{"example.com/width":1}} <nil>
	// {"type":"audio","data":"d2F2","mimeType":"audio/wav"} <nil>
	// {"type":"resource_link","uri":"memo://hello","name":"hello"} <nil>
	// {"type":"resource","resource":{"uri":"memo://dots","mimeType":"image/png","blob":"cG5n"}} <nil>
	// {"type":"text","text":"as it is"} <nil>
}

type temperature struct {
	Celsius float64 `json:"celsius"`
}

// Content implements worker.Contenter.
func (t temperature) Content() []worker.Content {
	return []worker.Content{worker.Text(fmt.Sprintf("It is %.1f °C.", t.Celsius))}
}

// A result that speaks for itself, beside its structured content.
func ExampleContenter() {
	var out worker.Contenter = temperature{Celsius: 3.5}
	w := worker.New(worker.Config{Pool: "weather"})
	worker.AddTool(w, worker.Tool{Name: "measure"}, func(context.Context, *worker.Call, struct{}) (temperature, error) {
		return out.(temperature), nil
	})

	result := workertest.Call(demo{}, w, "measure", struct{}{}).Result
	fmt.Printf("%s\n%s\n", result.GetContent(), result.GetStructuredContent())
	// Output:
	// [{"type":"text","text":"It is 3.5 °C."}]
	// {"celsius":3.5}
}

// A worker in a process that has its own NATS server.
func ExampleWorker_Run() {
	server, err := localnats.Start(localnats.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Shutdown()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	greets := func(w *worker.Worker) *worker.Worker {
		worker.AddTool(w, worker.Tool{Name: "greet"}, func(context.Context, *worker.Call, struct{}) (string, error) { return "Hello!", nil })
		return w
	}
	inside := greets(worker.New(worker.Config{Pool: "inside"}))
	conn, err := bus.Connect(ctx, bus.ConnConfig{InProcess: server})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	outside := greets(worker.New(worker.Config{Pool: "outside"}))

	ended := make(chan error, 2) // one of each worker
	go func() { ended <- inside.Run(ctx, conn) }()
	go func() { ended <- outside.Serve(ctx, server.ClientURL()) }()
	<-inside.Ready()
	<-outside.Ready()
	fmt.Println("both take calls")
	stop()
	fmt.Println(<-ended, <-ended)
	// Output:
	// both take calls
	// <nil> <nil>
}

// The service of a worker on a gRPC server of any kind.
func ExampleWorker_Register() {
	server := grpc.NewServer()
	w := worker.New(worker.Config{Pool: "any"})
	if err := w.Register(server); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(server.GetServiceInfo()), "service")
	// Output:
	// 1 service
}
