package everything

import (
	"encoding/json"
	"strings"
	"testing"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker/workertest"
)

func TestPages(t *testing.T) {
	t.Parallel()
	w := New(Config{}).worker
	visit := json.RawMessage(`{"visit":"v1"}`)
	out := workertest.Call(t, w, "test_url_elicitation_required", visit)
	const page = `{"method":"elicitation/create","params":{"mode":"url","message":"Please visit this page.","url":"https://example.com/visit","elicitationId":"v1"}}`
	if out.Error.GetKind() != millracev1.Error_KIND_URL_ELICITATION_REQUIRED || string(out.Error.GetInput().GetRequests()["millrace/page/1"]) != page {
		t.Errorf("before the visit: %v, %v", out.Error, out.Result)
	}
	if out := workertest.Call(t, w, "finish_visit", visit); out.Text() != "The visit is over." {
		t.Errorf("finish: %v, %v", out.Error, out.Result)
	}
	if out := workertest.Call(t, w, "test_url_elicitation_required", visit); out.Text() != "The page was visited." {
		t.Errorf("after the visit: %v, %v", out.Error, out.Result)
	}
}

func TestRedeem(t *testing.T) {
	t.Parallel()
	w := New(Config{}).worker
	for answer, want := range map[any]string{true: `{"count":1}`, false: `{"count":`} {
		client := &workertest.Client{Answers: map[string]any{"redeem": workertest.Accept(map[string]any{"redeem": answer})}}
		if out := client.Call(t, w, "redeem", json.RawMessage(nil)); !strings.HasPrefix(out.Text(), want) {
			t.Errorf("%v: %v, %v", answer, out.Error, out.Result)
		}
	}
	declined := &workertest.Client{Answers: map[string]any{"redeem": workertest.Decline()}}
	if out := declined.Call(t, w, "redeem", json.RawMessage(nil)); out.Text() != `{"count":1}` {
		t.Errorf("declined: %v, %v", out.Error, out.Result)
	}
}

func TestBrokenContract(t *testing.T) {
	t.Parallel()
	if out := workertest.Call(t, New(Config{}).worker, "broken_contract", json.RawMessage(nil)); out.Error.GetKind() != millracev1.Error_KIND_INTERNAL {
		t.Errorf("%v, %v", out.Error, out.Result)
	}
	out := workertest.Call(t, New(Config{Development: true}).worker, "broken_contract", json.RawMessage(nil))
	if !out.Result.GetIsError() || !strings.Contains(out.Text(), `property "count" must be a string, not an integer`) {
		t.Errorf("in development: %v, %v", out.Error, out.Result)
	}
}
