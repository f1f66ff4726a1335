package exchange

import (
	"context"
	"errors"
	"testing"
)

func TestCallsCancel(t *testing.T) {
	t.Parallel()
	var calls Calls
	start := func(scope, id string) (context.Context, func()) {
		return calls.Start(context.Background(), scope, []byte(id))
	}
	a, stopA := start("s1", "1")
	twin, stopTwin := start("s1", "1")
	str, stopStr := start("s1", `"1"`)
	other, stopOther := start("s2", "1")
	none, stopNone := start("", "1")

	if n := calls.Cancel("", []byte("1")); n != 0 {
		t.Errorf("a call without a scope was cancelled")
	}
	if n := calls.Cancel("s1", []byte("2")); n != 0 {
		t.Errorf("an unknown id cancelled %d calls", n)
	}
	if n := calls.Cancel("s1", []byte("1")); n != 2 {
		t.Errorf("Cancel = %d, want the two calls of the session with that id", n)
	}
	for name, ctx := range map[string]context.Context{"first": a, "twin": twin} {
		if !errors.Is(context.Cause(ctx), ErrCancelled) {
			t.Errorf("%s: cause = %v", name, context.Cause(ctx))
		}
	}
	for name, ctx := range map[string]context.Context{"string id": str, "other session": other, "no scope": none} {
		if ctx.Err() != nil {
			t.Errorf("%s was cancelled too", name)
		}
	}
	for _, stop := range []func(){stopA, stopTwin, stopStr, stopOther, stopNone} {
		stop()
	}
	if n := calls.Len(); n != 0 {
		t.Errorf("%d calls left", n)
	}
	if n := calls.Cancel("s1", []byte("1")); n != 0 {
		t.Errorf("a finished call was cancelled")
	}
}
