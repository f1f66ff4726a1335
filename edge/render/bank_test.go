package render

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/edge/mcp"
)

// TestB42DefinitionsKeepWhatNobodyKnows is a report from the field: a relay with
// typed structs dropped the members of a tool that it did not know. No worker
// of ours writes such members; a bridge to another server does.
func TestB42DefinitionsKeepWhatNobodyKnows(t *testing.T) {
	t.Parallel()
	const unknown = `"execution":{"taskSupport":"optional"},"x-foo":{"n":1.10,"deep":[1,null,{}]}`
	const definition = `{"name":"t","inputSchema":{"type":"object","x-bar":0},` + unknown + `}`
	for _, date := range mcp.Supported() {
		if got := string(Tools.fit(revision(t, date), []byte(definition))); !strings.Contains(got, unknown) || !strings.Contains(got, `"x-bar":0`) {
			t.Errorf("%s: %s", date, got)
		}
	}
}
