package worker_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

// scoped has one item of each kind, all of which need two scopes.
func scoped() *worker.Worker {
	w := worker.New(worker.Config{Pool: "scoped"})
	scopes := []string{"write", "read", "write"}
	w.AddRawTool(worker.Tool{Name: "t", Scopes: scopes}, func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
		return &worker.Result{Content: []worker.Content{worker.Text("done")}}, nil
	})
	read := func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
		return worker.TextContents("", "done"), nil
	}
	w.AddResource(worker.Resource{URI: "x://one", Name: "one", Scopes: scopes}, read)
	w.AddResourceTemplate(worker.ResourceTemplate{
		URITemplate: "x://many/{n}", Name: "many", Scopes: scopes,
		Complete: map[string]worker.CompleteFunc{"n": worker.CompleteFrom("done")},
	}, read)
	w.AddPrompt(worker.Prompt{
		Name: "p", Scopes: scopes, Arguments: []worker.PromptArgument{{Name: "a", Complete: worker.CompleteFrom("done")}},
	}, func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) {
		return &worker.PromptResult{Messages: []worker.PromptMessage{{Content: worker.Text("done")}}}, nil
	})
	return w
}

// TestScopesAreChecked: the edge checks them too, but perhaps by an older
// manifest.
func TestScopesAreChecked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		principal *worker.Principal
		want      bool
	}{
		"an edge that authenticates nobody": {nil, true},
		"all scopes":                        {&worker.Principal{Subject: "a", Scopes: []string{"other", "read", "write"}}, true},
		"one scope":                         {&worker.Principal{Subject: "a", Scopes: []string{"read"}}, false},
		"no scope":                          {&worker.Principal{}, false},
		"a scope that contains them":        {&worker.Principal{Scopes: []string{"read write", "readwrite"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := scoped()
			client := &workertest.Client{Principal: c.principal}
			check := func(what string, e *millracev1.Error, kind millracev1.Error_Kind) {
				t.Helper()
				switch {
				case c.want && e != nil:
					t.Errorf("%s: %v", what, e)
				case !c.want && !proto.Equal(e, &millracev1.Error{Kind: kind}):
					t.Errorf("%s: %v, want what an unknown one gives", what, e)
				}
			}
			check("tool", client.Call(t, w, "t", struct{}{}).Error, millracev1.Error_KIND_UNKNOWN_TOOL)
			check("resource", client.Read(t, w, "x://one").Error, millracev1.Error_KIND_RESOURCE_NOT_FOUND)
			check("template", client.Read(t, w, "x://many/7").Error, millracev1.Error_KIND_RESOURCE_NOT_FOUND)
			check("prompt", client.Get(t, w, "p", nil).Error, millracev1.Error_KIND_UNKNOWN_PROMPT)
			ask := worker.CompleteRequest{Argument: "a"}
			check("completion of a prompt", client.CompletePrompt(t, w, "p", ask).GetError(), millracev1.Error_KIND_UNKNOWN_PROMPT)
			ask.Argument = "n"
			check("completion of a template", client.CompleteTemplate(t, w, "x://many/{n}", ask).GetError(), millracev1.Error_KIND_RESOURCE_NOT_FOUND)
		})
	}
}

func TestScopesThatAreNone(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "a b", `a"`, `a\`, "ż", "a\n"} {
		w := worker.New(worker.Config{Pool: "scoped"})
		scopes := []string{"good", bad}
		w.AddRawTool(worker.Tool{Name: "t", Scopes: scopes}, func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) { return nil, nil })
		read := func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) { return nil, nil }
		w.AddResource(worker.Resource{URI: "x://one", Name: "one", Scopes: scopes}, read)
		w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "x://{n}", Name: "many", Scopes: scopes}, read)
		w.AddPrompt(worker.Prompt{Name: "p", Scopes: scopes}, func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) { return nil, nil })
		err := w.Run(t.Context(), connect(t, startBus(t)))
		if err == nil || strings.Count(err.Error(), "must be visible ASCII") != 4 {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
