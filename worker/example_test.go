package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
)

// A complete worker: what it takes, what it does, where it serves.
func Example() {
	type In struct {
		Name string `json:"name" jsonschema:"who is greeted"`
	}
	w := worker.New(worker.Config{Pool: "greeter", Version: "1.0.0"})
	worker.AddTool(w, worker.Tool{Name: "greet", Description: "Greets a person by name."},
		func(_ context.Context, _ *worker.Call, in In) (string, error) {
			return "Hello, " + in.Name + "!", nil
		})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	log.Print(w.Serve(ctx, "nats://127.0.0.1:4222"))
}

// The schemas come from the types; what the handler returns is checked and
// becomes structured content.
func ExampleAddTool() {
	type In struct {
		Values []float64 `json:"values" jsonschema:"the numbers to add up"`
	}
	type Out struct {
		Sum   float64 `json:"sum"`
		Count int     `json:"count"`
	}
	w := worker.New(worker.Config{Pool: "math"})
	worker.AddTool(w, worker.Tool{
		Name:        "sum",
		Annotations: &worker.Annotations{ReadOnlyHint: new(true)},
	}, func(_ context.Context, _ *worker.Call, in In) (Out, error) {
		var out Out
		for _, v := range in.Values {
			out.Sum += v
			out.Count++
		}
		return out, nil
	})

	show(w, "math", "sum", `{"values":[1,2.5]}`, `{"value":[1,2.5]}`)
	// Output:
	// {"sum":3.5,"count":2}
	// KIND_INVALID_ARGUMENTS: missing required property "values"; unknown property "value" (known: "values")
}

// A raw tool gets the arguments byte for byte.
func ExampleWorker_AddRawTool() {
	w := worker.New(worker.Config{Pool: "raw"})
	w.AddRawTool(worker.Tool{
		Name:        "echo",
		InputSchema: json.RawMessage(`{"type":"object","required":["n"]}`),
	}, func(_ context.Context, _ *worker.Call, args json.RawMessage) (*worker.Result, error) {
		return &worker.Result{Structured: args}, nil
	})

	show(w, "raw", "echo", `{"n":9007199254740993}`)
	// Output:
	// {"n":9007199254740993}
}

// An ordinary error is for the model; a ProtocolError is for the client.
func ExampleProtocolError() {
	type In struct {
		City string `json:"city"`
	}
	w := worker.New(worker.Config{Pool: "weather"})
	worker.AddTool(w, worker.Tool{Name: "forecast"}, func(_ context.Context, _ *worker.Call, in In) (string, error) {
		switch in.City {
		case "Atlantis":
			return "", errors.New("there is no such city; ask for one nearby")
		case "":
			return "", worker.InvalidArguments("city is empty")
		}
		return "", &worker.ProtocolError{Code: -31001, Message: "the forecast is not licensed"}
	})

	show(w, "weather", "forecast", `{"city":"Atlantis"}`, `{"city":""}`, `{"city":"Gdynia"}`)
	// Output:
	// [{"type":"text","text":"there is no such city; ask for one nearby"}]
	// KIND_INVALID_ARGUMENTS: city is empty
	// KIND_CUSTOM: the forecast is not licensed
}

func ExampleCall_Progress() {
	w := worker.New(worker.Config{Pool: "jobs"})
	worker.AddTool(w, worker.Tool{Name: "count"}, func(ctx context.Context, call *worker.Call, _ struct{}) (string, error) {
		for i := range 3 {
			if err := ctx.Err(); err != nil {
				return "", err // the client has cancelled the call
			}
			call.Progress(float64(i+1), 3, "counting")
		}
		return "counted", nil
	})

	show(w, "jobs", "count", ``)
	// Output:
	// progress 1 of 3: counting
	// progress 2 of 3: counting
	// progress 3 of 3: counting
	// [{"type":"text","text":"counted"}]
}

func ExampleWorker_AddResourceTemplate() {
	notes := map[string]string{"hello": "# Hello"}
	w := worker.New(worker.Config{Pool: "notes"})
	w.AddResourceTemplate(worker.ResourceTemplate{
		URITemplate: "memo://notes/{name}",
		Name:        "note",
		MIMEType:    "text/markdown",
	}, func(_ context.Context, _ *worker.Call, req worker.ReadRequest) (*worker.Contents, error) {
		text, ok := notes[req.Vars["name"]]
		if !ok {
			return nil, worker.ErrResourceNotFound
		}
		return worker.TextContents("", text), nil
	})
	// Resources may come and go while the worker runs.
	w.AddResource(worker.Resource{URI: "memo://notes/hello", Name: "hello"},
		func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
			return worker.TextContents("text/markdown", notes["hello"]), nil
		})
	w.RemoveResource("memo://notes/hello")
}

func ExampleResult() {
	type In struct {
		Width int `json:"width,omitempty"`
	}
	w := worker.New(worker.Config{Pool: "art"})
	worker.AddTool(w, worker.Tool{Name: "draw"}, func(context.Context, *worker.Call, In) (*worker.Result, error) {
		return &worker.Result{
			Content: []worker.Content{worker.Text("a dot"), worker.Image([]byte{0x2e}, "image/png")},
			Meta:    json.RawMessage(`{"example.com/model":"dots"}`),
		}, nil
	})

	show(w, "art", "draw", `{"width":1}`)
	// Output:
	// [{"type":"text","text":"a dot"},{"type":"image","data":"Lg==","mimeType":"image/png"}]
}

// show serves w on a bus of its own, calls a tool once for each of args and
// prints what comes back.
func show(w *worker.Worker, pool, tool string, args ...string) {
	if err := try(w, pool, tool, args); err != nil {
		fmt.Println(err)
	}
}

func try(w *worker.Worker, pool, tool string, args []string) error {
	server, err := localnats.Start(localnats.Config{})
	if err != nil {
		return err
	}
	defer server.Shutdown()
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	conn, err := bus.Connect(ctx, bus.ConnConfig{InProcess: server})
	if err != nil {
		return err
	}
	defer conn.Close()
	client := bus.NewClient(conn, bus.ClientConfig{})
	ended := make(chan error, 2) // one of each actor
	go func() { ended <- w.Run(ctx, conn) }()
	go func() { ended <- client.Run(ctx) }()
	<-w.Ready()
	<-client.Ready()

	service := millracev1.NewWorkerServiceClient(client.Pool(pool))
	for _, arg := range args {
		events, callErr := callTool(ctx, service, &millracev1.CallToolRequest{
			Context:   &millracev1.CallContext{WantsProgress: true},
			Name:      tool,
			Arguments: []byte(arg),
		})
		err = errors.Join(err, callErr)
		for _, event := range events {
			printEvent(event)
		}
	}
	stop()
	return errors.Join(err, <-ended, <-ended)
}

func printEvent(event *millracev1.CallToolResponse) {
	p, r, e := event.GetProgress(), event.GetResult(), event.GetError()
	switch {
	case p != nil:
		fmt.Printf("progress %s of %s: %s\n", p.GetProgress(), p.GetTotal(), p.GetMessage())
	case len(r.GetStructuredContent()) > 0:
		fmt.Printf("%s\n", r.GetStructuredContent())
	case r != nil:
		fmt.Printf("%s\n", r.GetContent())
	default:
		fmt.Printf("%s: %s%s\n", e.GetKind(), e.GetMessage(), e.GetDetail())
	}
}
