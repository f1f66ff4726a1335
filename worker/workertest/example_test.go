package workertest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

// demo stands for the *testing.T of a test.
type demo struct{ testing.TB }

func (demo) Helper()                           {}
func (demo) Context() context.Context          { return context.Background() }
func (demo) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// A test of a tool that asks: what it asked, and what it makes of the answer.
func ExampleClient() {
	t := demo{}
	type choice struct {
		Colour string `json:"colour" enum:"red,green"`
	}
	w := worker.New(worker.Config{Pool: "paint"})
	worker.AddTool(w, worker.Tool{Name: "paint"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		answers, err := call.Ask(worker.ElicitFor[choice]("colour", "Which colour?"))
		if err != nil {
			return "", err
		}
		picked, ok, err := worker.Accepted[choice](answers, "colour")
		if err != nil || !ok {
			return "left as it was", err
		}
		call.Progress(1, 1, "painting")
		call.Log(worker.LevelInfo, "brush", "painting")
		return "painted " + picked.Colour, nil
	})

	for _, answer := range []any{
		workertest.Accept(choice{Colour: "green"}),
		workertest.Decline(),
		workertest.Cancel(),
	} {
		client := workertest.Client{Answers: map[string]any{"colour": answer}}
		out := client.Call(t, w, "paint", struct{}{})
		fmt.Println(out.Asked[0].Key, out.Text(), len(out.Progress), len(out.Logs))
	}

	// Without an answer the test sees the question; with a bad one, it comes
	// again.
	out := workertest.Call(t, w, "paint", struct{}{})
	fmt.Println(len(out.Unanswered), out.Unanswered[0].Method)
	client := workertest.Client{Answer: func(q workertest.Question) (any, bool) {
		if q.Round == 1 {
			return workertest.Accept(choice{Colour: "blue"}), true
		}
		return workertest.Accept(choice{Colour: "red"}), true
	}}
	out = client.Call(t, w, "paint", struct{}{})
	fmt.Println(len(out.Asked), out.Text())
	// Output:
	// colour painted green 1 1
	// colour left as it was 0 0
	// colour left as it was 0 0
	// 1 elicitation/create
	// 2 painted red
}
