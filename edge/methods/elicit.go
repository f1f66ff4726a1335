package methods

import (
	"github.com/millrace/millrace/edge/backend"
	"github.com/millrace/millrace/edge/jsonrpc"
)

// urlRequired is the reply to a request that needs its user to visit pages
// first. A client that opens pages is refused with them, in the revision that
// has an error for that, and else is asked to have them visited; no other client
// is told to (client/elicitation, "Capabilities").
func (r *request) urlRequired(f *backend.Failure) Reply {
	switch rev := r.client.Revision; {
	case !r.client.opensPages():
		return r.Failed(r.client, r.m, &backend.Failure{
			Kind: backend.MissingCapability, Data: []byte(`{"elicitation":{"url":{}}}`),
			Message: f.Message + ": the client opens no pages (it does not declare elicitation.url)",
		})
	case rev.Modern:
		return Reply{NeedsInput: f.Input}
	default:
		return r.Failed(r.client, r.m, f)
	}
}

// opensPages reports whether the client has declared that it sends its user to
// pages, in a revision where it can.
func (c *Client) opensPages() bool {
	if !c.Revision.ElicitationModes {
		return false
	}
	capabilities, err := jsonrpc.ParseObject(c.Capabilities)
	if err != nil {
		return false
	}
	elicitation, err := jsonrpc.ParseObject(capabilities.Get("elicitation"))
	if err != nil {
		return false
	}
	url := elicitation.Get("url")
	return len(url) > 0 && url[0] == '{'
}
