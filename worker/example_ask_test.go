package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

// demo stands for the *testing.T that workertest gets in a test.
type demo struct{ testing.TB }

func (demo) Helper()                           {}
func (demo) Context() context.Context          { return context.Background() }
func (demo) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// A tool that asks before it acts. The handler runs twice: the first time Ask
// has no answer, and its error ends the round.
func ExampleCall_Ask() {
	type Trip struct {
		City string `json:"city" jsonschema:"where to go"`
		Seat string `json:"seat" enum:"window,aisle" default:"window"`
	}
	w := worker.New(worker.Config{Pool: "travel"})
	worker.AddTool(w, worker.Tool{Name: "book"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		fmt.Println("the handler runs")
		answers, err := call.Ask(worker.ElicitFor[Trip]("trip", "Where do you want to go?"))
		if err != nil {
			return "", err // worker.ErrNeedsInput, the first time
		}
		trip, accepted, err := worker.Accepted[Trip](answers, "trip")
		if err != nil {
			return "", err
		}
		if !accepted {
			return "Nothing was booked: " + string(answers.Elicited("trip").Action), nil
		}
		return "Booked to " + trip.City + ", " + trip.Seat, nil
	})

	client := workertest.Client{Answers: map[string]any{
		"trip": workertest.Accept(Trip{City: "Gdynia", Seat: "window"}),
	}}
	out := client.Call(demo{}, w, "book", struct{}{})
	fmt.Printf("%s\n", out.Asked[0].Params)
	fmt.Println(out.Text())

	client.Answers["trip"] = workertest.Decline()
	fmt.Println(client.Call(demo{}, w, "book", struct{}{}).Text())
	// Output:
	// the handler runs
	// the handler runs
	// {"mode":"form","message":"Where do you want to go?","requestedSchema":{"type":"object","properties":{"city":{"type":"string","description":"where to go"},"seat":{"type":"string","default":"window","enum":["window","aisle"]}},"required":["city","seat"]}}
	// Booked to Gdynia, window
	// the handler runs
	// the handler runs
	// Nothing was booked: decline
}

// Several questions at once, of all kinds, and what their answers look like.
func ExampleAnswers() {
	summary := func(answers worker.Answers, size worker.ElicitResult, motto worker.CreateMessageResult, folders []worker.Root) string {
		fmt.Println(size.Action == worker.ActionAccept, string(size.Content))
		switch answers.Elicited("login").Action {
		case worker.ActionAccept:
			fmt.Println("the user goes to the page")
		case worker.ActionDecline:
			fmt.Println("the user does not want to sign in")
		case worker.ActionCancel:
			fmt.Println("the user has closed the dialog")
		}
		fmt.Println(motto.Text(), "by", motto.Model)
		fmt.Println(folders[0].URI)
		return string(answers.Raw("folders"))
	}
	questions := []worker.Question{
		worker.Elicit("size", "Which size?", json.RawMessage(`{
			"type": "object",
			"properties": {"size": {"type": "string", "enum": ["S", "M", "L"]}}
		}`)),
		worker.ElicitURL("login", "Please sign in.", "https://example.com/login", "login-8f3a"),
		worker.CreateMessage("motto", worker.CreateMessageParams{
			Messages: []worker.SamplingMessage{
				{Role: worker.RoleUser, Content: []worker.Content{worker.Text("Write a motto.")}},
			},
			MaxTokens:        50,
			ModelPreferences: &worker.ModelPreferences{Hints: []string{"small"}},
		}),
		worker.ListRoots("folders"),
	}
	w := worker.New(worker.Config{Pool: "shop"})
	worker.AddTool(w, worker.Tool{Name: "order"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		answers, err := call.Ask(questions...)
		if err != nil {
			return "", err
		}
		return summary(answers, answers.Elicited("size"), answers.Message("motto"), answers.Roots("folders")), nil
	})

	client := workertest.Client{Answers: map[string]any{
		"size":    workertest.Accept(map[string]string{"size": "M"}),
		"login":   workertest.Cancel(),
		"motto":   workertest.Message("Measure twice."),
		"folders": workertest.Roots("file:///home/ada"),
	}}
	fmt.Println(client.Call(demo{}, w, "order", struct{}{}).Text())
	// Output:
	// true {"size":"M"}
	// the user has closed the dialog
	// Measure twice. by test
	// file:///home/ada
	// {"roots":[{"uri":"file:///home/ada"}]}
}

// A model of the client may use tools of the handler: the handler runs them and
// asks on, each time by another key.
func ExampleCreateMessage() {
	weather := worker.Tool{Name: "weather", Description: "Tells the weather."}
	forecast := func(use worker.ToolUse) worker.SamplingMessage {
		result := fmt.Sprintf(`{"type":"tool_result","toolUseId":%q,"content":[{"type":"text","text":"rain"}]}`, use.ID)
		return worker.SamplingMessage{Content: []worker.Content{worker.RawContent(json.RawMessage(result))}}
	}
	w := worker.New(worker.Config{Pool: "agent"})
	worker.AddTool(w, worker.Tool{Name: "advise"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		conversation := []worker.SamplingMessage{{Content: []worker.Content{worker.Text("Do I need an umbrella?")}}}
		for turn := range 5 {
			key := fmt.Sprint("turn-", turn)
			answers, err := call.Ask(worker.CreateMessage(key, worker.CreateMessageParams{
				Messages: conversation, MaxTokens: 100, Tools: []worker.Tool{weather},
			}))
			if err != nil {
				return "", err
			}
			reply := answers.Message(key)
			uses := reply.ToolUses()
			if len(uses) == 0 {
				return reply.Text(), nil
			}
			conversation = append(conversation, reply.Message)
			for _, use := range uses {
				conversation = append(conversation, forecast(use))
			}
		}
		return "", errors.New("the model does not come to an end")
	})

	client := workertest.Client{Answers: map[string]any{
		"turn-0": json.RawMessage(`{"role":"assistant","model":"m","content":{"type":"tool_use","id":"1","name":"weather","input":{}}}`),
		"turn-1": workertest.Message("Yes."),
	}}
	fmt.Println(client.Call(demo{}, w, "advise", struct{}{}).Text())
	// Output:
	// Yes.
}

// What must come before a question and not happen again belongs in Once.
func ExampleOnce() {
	w := worker.New(worker.Config{Pool: "travel"})
	worker.AddTool(w, worker.Tool{Name: "reserve"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		number, err := worker.Once(call, "reservation", func() (int, error) {
			fmt.Println("reserving a seat")
			return 42, nil
		})
		if err != nil {
			return "", err
		}
		type Confirmation struct {
			Take bool `json:"take"`
		}
		answers, err := call.Ask(worker.ElicitFor[Confirmation]("confirm", fmt.Sprintf("Seat %d is free. Take it?", number)))
		if err != nil {
			return "", err
		}
		answer, _, err := worker.Accepted[Confirmation](answers, "confirm")
		return fmt.Sprintf("seat %d: %v", number, answer.Take), err
	})

	client := workertest.Client{Answers: map[string]any{"confirm": workertest.Accept(map[string]bool{"take": true})}}
	fmt.Println(client.Call(demo{}, w, "reserve", struct{}{}).Text())
	// Output:
	// reserving a seat
	// seat 42: true
}

// A handler looks at what the client can do before it asks.
func ExampleCall_Can() {
	w := worker.New(worker.Config{Pool: "shop"})
	worker.AddTool(w, worker.Tool{Name: "able"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		fmt.Println(string(call.Capabilities()))
		for _, capability := range []worker.Capability{
			worker.CapabilityElicitation, worker.CapabilityElicitationURL,
			worker.CapabilitySampling, worker.CapabilitySamplingTools, worker.CapabilitySamplingContext,
			worker.CapabilityRoots,
		} {
			fmt.Println(capability, call.Can(capability))
		}
		return "", nil
	})

	client := workertest.Client{Capabilities: json.RawMessage(`{"elicitation":{},"sampling":{"tools":{}}}`)}
	client.Call(demo{}, w, "able", struct{}{})
	// Output:
	// {"elicitation":{},"sampling":{"tools":{}}}
	// elicitation true
	// elicitation.url false
	// sampling true
	// sampling.tools true
	// sampling.context false
	// roots false
}

// A client that cannot do what the handler needs is told so.
func ExampleMissingCapabilityError() {
	w := worker.New(worker.Config{Pool: "shop"})
	worker.AddTool(w, worker.Tool{Name: "pay"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		err := call.Require(worker.CapabilityElicitationURL)
		if missing, ok := errors.AsType[*worker.MissingCapabilityError](err); ok {
			fmt.Println(missing.Missing)
		}
		return "", err
	})

	client := workertest.Client{Capabilities: struct{}{}}
	out := client.Call(demo{}, w, "pay", struct{}{})
	fmt.Printf("%s %s\n", out.Error.GetKind(), out.Error.GetData())
	// Output:
	// [elicitation.url]
	// KIND_MISSING_CAPABILITY {"elicitation":{"url":{}}}
}

// ErrNeedsInput can be wrapped, as any error.
func ExampleErrNeedsInput() {
	w := worker.New(worker.Config{Pool: "shop"})
	worker.AddTool(w, worker.Tool{Name: "count"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		answers, err := call.Ask(worker.ListRoots("folders"))
		if err != nil {
			if errors.Is(err, worker.ErrNeedsInput) {
				fmt.Println("asking")
			}
			return "", fmt.Errorf("looking for folders: %w", err)
		}
		return fmt.Sprint(len(answers.Roots("folders"))), nil
	})

	client := workertest.Client{Answers: map[string]any{"folders": workertest.Roots("file:///a")}}
	fmt.Println(client.Call(demo{}, w, "count", struct{}{}).Text())
	// Output:
	// asking
	// 1
}

// A client may answer with an error; a handler can go on without it.
func ExampleClientError() {
	w := worker.New(worker.Config{Pool: "shop"})
	worker.AddTool(w, worker.Tool{Name: "where"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		_, err := call.Ask(worker.ListRoots("folders"))
		if refused, ok := errors.AsType[*worker.ClientError](err); ok {
			return "Nowhere in particular: " + refused.Message, nil
		}
		return "Somewhere.", err
	})

	client := workertest.Client{Answers: map[string]any{"folders": &worker.ClientError{Code: -32603, Message: "no folders today"}}}
	fmt.Println(client.Call(demo{}, w, "where", struct{}{}).Text())
	// Output:
	// Nowhere in particular: no folders today
}
