package render

import (
	"crypto/rand"
	"maps"
	"slices"

	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// keyElicitationID is the member that names a visit to a page, in the revision
// that has it (specification 2025-11-25, client/elicitation, "URL Mode").
const keyElicitationID = "elicitationId"

// WithElicitationID adds the id that a URL elicitation must have where the
// author gave none; params of other elicitations stay as they are.
func WithElicitationID(params []byte, id string) ([]byte, error) {
	o, err := jsonrpc.ParseObject(params)
	if err != nil {
		return nil, err
	}
	if mode, _ := jsonrpc.String(o.Get("mode")); mode != "url" || o.Get(keyElicitationID) != nil {
		return params, nil
	}
	members := slices.Concat(o.Members, []jsonrpc.Member{{Key: keyElicitationID, Value: jsonrpc.Quote(id)}})
	return jsonrpc.AppendObject(nil, members...), nil
}

// withoutElicitationID takes the id out of an input request, for revisions in
// which pages have none.
func withoutElicitationID(request []byte) []byte {
	o, err := jsonrpc.ParseObject(request)
	if err != nil {
		return request
	}
	if method, _ := jsonrpc.String(o.Get("method")); method != mcp.MethodElicit {
		return request
	}
	params, err := jsonrpc.Without(o.Get("params"), keyElicitationID)
	if err != nil {
		return request
	}
	members := slices.Clone(o.Members)
	for i := range members {
		if members[i].Key == "params" {
			members[i].Value = params
		}
	}
	return jsonrpc.AppendObject(nil, members...)
}

// urlRequired writes data of the error that says which pages have to be visited
// first (specification 2025-11-25, client/elicitation, "URL Elicitation Required
// Error"); nil when the input asks for anything else.
func urlRequired(input *millracev1.NeedsInput) []byte {
	list := []byte{'['}
	for _, key := range slices.Sorted(maps.Keys(input.GetRequests())) {
		o, err := jsonrpc.ParseObject(input.GetRequests()[key])
		if err != nil {
			return nil
		}
		params, err := WithElicitationID(o.Get("params"), rand.Text())
		if err != nil {
			return nil
		}
		page, err := jsonrpc.ParseObject(params)
		if err != nil || page.Get(keyElicitationID) == nil {
			return nil
		}
		if len(list) > 1 {
			list = append(list, ',')
		}
		list = append(list, params...)
	}
	if len(list) == 1 {
		return nil
	}
	data := newObject(32 + len(list))
	data.raw("elicitations", append(list, ']'))
	return data.end()
}
