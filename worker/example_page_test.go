package worker_test

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

// A tool that works only for users who have signed in elsewhere. What happens
// on the page is between the user and whoever serves it; when it is done, the
// client is told, so that it can make the call again.
func ExampleURLElicitationRequiredError() {
	signedIn := map[string]bool{} // in a store that all instances share
	w := worker.New(worker.Config{Pool: "files"})
	worker.AddTool(w, worker.Tool{Name: "list"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		if !signedIn[call.Principal().Subject] {
			return "", &worker.URLElicitationRequiredError{
				Message: "Sign in to see your files.",
				Pages: []worker.URLElicitation{{
					URL: "https://files.example/connect?visit=8f3a", Message: "Sign in to Example Files.", ID: "8f3a",
				}},
			}
		}
		return "notes.txt", nil
	})
	// finished runs when the page has found out who has signed in.
	finished := func(subject, scope, visit string) {
		signedIn[subject] = true
		if err := w.ElicitationComplete(scope, visit); err != nil {
			fmt.Println("nobody was told:", err)
		}
	}

	client := workertest.Client{Principal: &worker.Principal{Subject: "ada"}}
	out := client.Call(demo{}, w, "list", struct{}{})
	fmt.Println(out.Error.GetKind(), out.Error.GetMessage())
	finished("ada", client.Scope, "8f3a")
	fmt.Println(client.Call(demo{}, w, "list", struct{}{}).Text())
	// Output:
	// KIND_URL_ELICITATION_REQUIRED Sign in to see your files.
	// notes.txt
}
