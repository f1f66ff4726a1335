package render

import (
	"github.com/millrace/millrace/edge/backend"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
)

// ResourceNotFound is the error for a URI that nothing serves.
func ResourceNotFound(rev *mcp.Revision, uri string) *jsonrpc.Error {
	data := newObject(16 + len(uri))
	data.string("uri", uri)
	f := backend.Failure{Kind: backend.ResourceNotFound, Subject: uri}
	return &jsonrpc.Error{Code: rev.ResourceNotFound, Message: f.Text(), Data: data.end()}
}

// Failure turns a failure into what the revision says about it: a result that
// a model should see, where the request was for a tool, or a JSON-RPC error.
// Exactly one of the two is set. This is the only place where the backend's
// terms become codes.
//
// Faults of ours are all -32603, with data.reason for programs: the range
// -32020 to -32099 belongs to the specification.
func (r *Renderer) Failure(rev *mcp.Revision, tool bool, f *backend.Failure) (result jsonrpc.Pieces, err *jsonrpc.Error) {
	e := &jsonrpc.Error{Code: jsonrpc.CodeInternal, Message: f.Text()}
	data := newObject(64 + len(f.Detail) + len(f.Subject))
	switch f.Kind {
	case backend.UnknownTool, backend.UnknownPrompt, backend.UnknownTemplate:
		e.Code = jsonrpc.CodeInvalidParams
	case backend.InvalidArguments:
		if tool && rev.ArgumentErrorsAreResults {
			return r.ToolError(rev, f.Text()), nil
		}
		e.Code = jsonrpc.CodeInvalidParams
		data.string("detail", f.Detail)
	case backend.MissingCapability:
		if rev.Modern {
			e.Code = mcp.CodeMissingCapability
			data.raw("requiredCapabilities", f.Data)
			break
		}
		if tool {
			// Before, no code says so: the model is told.
			return r.ToolError(rev, f.Text()), nil
		}
	case backend.ResourceNotFound:
		e.Code = rev.ResourceNotFound
		data.string("uri", f.Subject)
	case backend.URLRequired:
		if e.Data = urlRequired(f.Input); rev.ElicitationIDs && e.Data != nil {
			e.Code = mcp.CodeURLRequired
			return nil, e
		}
		// Who lets it come here has not asked for the visits instead.
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternal, Message: "internal error"}
	case backend.Custom:
		e.Code, e.Data = rev.FitCode(f.Code), f.Data
		return nil, e
	default:
		if reason := f.Reason(); reason != "" {
			data.string("reason", reason)
		}
		if f.Limit != "" {
			data.string("limit", string(f.Limit))
		}
		if after := f.RetryAfter(); after > 0 {
			data.int("retryAfterMs", after.Milliseconds())
		}
	}
	if data.begun {
		e.Data = data.end()
	}
	return nil, e
}
