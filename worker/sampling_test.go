package worker_test

import (
	"encoding/json"
	"testing"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

// What a model has wanted of tools is answered in the next message, each use
// once, with nothing else beside; anything else is a fault of the author.
func TestToolResultsInSampling(t *testing.T) {
	t.Parallel()
	use := func(id string) worker.Content {
		return worker.RawContent(json.RawMessage(`{"type":"tool_use","id":"` + id + `","name":"t","input":{}}`))
	}
	result := func(id string) worker.Content {
		return worker.RawContent(json.RawMessage(`{"type":"tool_result","toolUseId":"` + id + `","content":[]}`))
	}
	user := func(content ...worker.Content) worker.SamplingMessage {
		return worker.SamplingMessage{Content: content}
	}
	model := func(content ...worker.Content) worker.SamplingMessage {
		return worker.SamplingMessage{Role: worker.RoleAssistant, Content: content}
	}
	hello := user(worker.Text("hello"))
	for name, c := range map[string]struct {
		messages []worker.SamplingMessage
		good     bool
	}{
		"one":           {[]worker.SamplingMessage{hello, model(use("1")), user(result("1"))}, true},
		"two at once":   {[]worker.SamplingMessage{hello, model(worker.Text("a"), use("1"), use("2")), user(result("2"), result("1"))}, true},
		"twice":         {[]worker.SamplingMessage{hello, model(use("1")), user(result("1")), model(use("1")), user(result("1"))}, true},
		"none":          {[]worker.SamplingMessage{hello, model(worker.Text("a")), hello}, true},
		"no result":     {[]worker.SamplingMessage{hello, model(use("1"))}, false},
		"no result yet": {[]worker.SamplingMessage{hello, model(use("1")), hello}, false},
		"one of two":    {[]worker.SamplingMessage{hello, model(use("1"), use("2")), user(result("1"))}, false},
		"another":       {[]worker.SamplingMessage{hello, model(use("1")), user(result("2"))}, false},
		"the same":      {[]worker.SamplingMessage{hello, model(use("1")), user(result("1"), result("1"))}, false},
		"for nothing":   {[]worker.SamplingMessage{hello, user(result("1"))}, false},
		"with a text":   {[]worker.SamplingMessage{hello, model(use("1")), user(result("1"), worker.Text("a"))}, false},
		"the model's":   {[]worker.SamplingMessage{hello, model(use("1")), model(result("1"))}, false},
		"later":         {[]worker.SamplingMessage{hello, model(use("1")), hello, user(result("1"))}, false},
	} {
		out := workertest.Call(t, asking(func(call *worker.Call) (string, error) {
			_, err := call.Ask(worker.CreateMessage("q", worker.CreateMessageParams{Messages: c.messages, MaxTokens: 1}))
			return "", err
		}), "ask", struct{}{})
		if good := len(out.Unanswered) == 1; good != c.good || !good && out.Error.GetKind() != millracev1.Error_KIND_INTERNAL {
			t.Errorf("%s: %v, %v", name, out.Error, out.Asked)
		}
	}
}
