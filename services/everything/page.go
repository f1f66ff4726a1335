package everything

import (
	"context"

	"github.com/millrace/millrace/worker"
)

// visit is what a user was sent to a page for. Visits are known to the instance
// that was asked only: tools for real use keep them where all instances look.
type visit struct {
	scope string
	over  bool
}

// addPageTools adds tools that need their user to visit a page first, and one
// whose answers count once.
func (e *Everything) addPageTools() {
	type in struct {
		Visit string `json:"visit" jsonschema:"the name of the visit, chosen by the caller"`
	}
	worker.AddTool(e.worker, worker.Tool{
		Name: "test_url_elicitation_required", Description: "Succeeds once its user has visited a page; finish_visit says that it was.", Annotations: readOnly(),
	}, func(_ context.Context, call *worker.Call, in in) (string, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if v := e.visits[in.Visit]; v != nil && v.over {
			return "The page was visited.", nil
		}
		e.visits[in.Visit] = &visit{scope: call.Scope()}
		return "", &worker.URLElicitationRequiredError{
			Message: "This tool needs a visit to a page.",
			Pages: []worker.URLElicitation{{
				URL: "https://example.com/visit", Message: "Please visit this page.", ID: in.Visit,
			}},
		}
	})
	worker.AddTool(e.worker, worker.Tool{
		Name: "finish_visit", Description: "Says that a page was visited, as the page itself would, and tells the client that was sent there.",
	}, func(_ context.Context, _ *worker.Call, in in) (string, error) {
		e.mu.Lock()
		v := e.visits[in.Visit]
		if v == nil {
			v = &visit{}
			e.visits[in.Visit] = v
		}
		v.over = true
		scope := v.scope
		e.mu.Unlock()
		if err := e.worker.ElicitationComplete(scope, in.Visit); err != nil {
			return "", err
		}
		return "The visit is over.", nil
	})
	worker.AddTool(e.worker, worker.Tool{
		Name: "redeem", Description: "Redeems a voucher when its user agrees; the answer counts once.", OnceOnly: true,
	}, func(_ context.Context, call *worker.Call, _ none) (counted, error) {
		type agreement struct {
			Redeem bool `json:"redeem" jsonschema:"whether to redeem it"`
		}
		answers, err := call.Ask(worker.ElicitFor[agreement]("redeem", "Redeem the voucher?"))
		if err != nil {
			return counted{}, err
		}
		if answer, accepted, err := worker.Accepted[agreement](answers, "redeem"); err != nil || !accepted || !answer.Redeem {
			return counted{Count: int(e.redeemed.Load())}, err
		}
		return counted{Count: int(e.redeemed.Add(1))}, nil
	})
	worker.AddTool(e.worker, worker.Tool{
		Name: "broken_contract", Description: "Returns what its output schema does not allow.", Annotations: readOnly(),
		OutputSchema: []byte(`{"type":"object","properties":{"count":{"type":"string"}},"required":["count"]}`),
	}, func(context.Context, *worker.Call, none) (counted, error) { return counted{Count: 1}, nil })
}
