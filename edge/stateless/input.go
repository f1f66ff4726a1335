package stateless

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"strings"
	"time"

	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/methods"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// stateAge is how long a client may take to come back with its answers.
const stateAge = 15 * time.Minute

// Request state travels through the client, so it is encrypted and bound to
// what it belongs to: the principal, the method, what the request is about and
// its arguments (basic/patterns/mrtr, "Server Requirements"). The payload is
// the expiry, the instance that must serve the next round, and the worker's
// own state.

// sealState makes the requestState of an input_required result.
func (e *Era) sealState(req *exchange.Request, needs *millracev1.NeedsInput) (string, error) {
	payload := binary.BigEndian.AppendUint64(nil, uint64(time.Now().Add(stateAge).Unix()))
	payload = binary.BigEndian.AppendUint16(payload, uint16(len(needs.GetInstance())))
	payload = append(payload, needs.GetInstance()...)
	payload = append(payload, needs.GetState()...)
	return e.States.Encrypt(statePurpose(req), payload)
}

// round reads the answers of a request that is made again; nil when it is the
// first time.
func (e *Era) round(req *exchange.Request) (*methods.Round, *jsonrpc.Error) {
	m := &req.Message
	switch m.Method {
	case mcp.MethodToolsCall, mcp.MethodResourcesRead, mcp.MethodPromptsGet:
	default:
		return nil, nil
	}
	rawResponses, rawState := m.Params.Get("inputResponses"), m.Params.Get("requestState")
	if rawResponses == nil && rawState == nil {
		return nil, nil
	}
	round := &methods.Round{Resume: &millracev1.Resume{Responses: map[string][]byte{}}}
	if rawResponses != nil {
		responses, err := jsonrpc.ParseObject(rawResponses)
		if err != nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "params.inputResponses must be an object: the answers by the keys of inputRequests"}
		}
		for _, r := range responses.Members {
			round.Resume.Responses[r.Key] = r.Value
		}
	}
	if rawState != nil {
		// One message for every fault, so that it is no oracle.
		invalid := &jsonrpc.Error{
			Code:    jsonrpc.CodeInvalidParams,
			Message: "params.requestState is not valid for this request, or has expired: send the request again without requestState and inputResponses",
		}
		token, ok := jsonrpc.String(rawState)
		if !ok {
			return nil, invalid
		}
		payload, err := e.States.Decrypt(statePurpose(req), token)
		if err != nil || len(payload) < 10 {
			return nil, invalid
		}
		expiry := time.Unix(int64(binary.BigEndian.Uint64(payload)), 0)
		n := int(binary.BigEndian.Uint16(payload[8:]))
		if payload = payload[10:]; n > len(payload) || time.Now().After(expiry) {
			return nil, invalid
		}
		round.Instance, round.Resume.State = string(payload[:n]), payload[n:]
	}
	return round, nil
}

// statePurpose is what a request state is bound to.
func statePurpose(req *exchange.Request) string {
	m := &req.Message
	parts := []string{"request-state/1", "", "", m.Method}
	if p := req.Principal; p != nil {
		parts[1], parts[2] = p.Issuer, p.Subject
	}
	for _, key := range []string{"name", "uri"} {
		name, _ := jsonrpc.String(m.Params.Get(key))
		parts = append(parts, name)
	}
	var arguments bytes.Buffer
	if raw := m.Params.Get("arguments"); raw != nil {
		if err := json.Compact(&arguments, raw); err != nil {
			arguments.Write(raw)
		}
	}
	digest := sha256.Sum256(arguments.Bytes())
	parts = append(parts, string(digest[:]))
	// Lengths keep two different lists from running together.
	var purpose strings.Builder
	for _, p := range parts {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(p)))
		purpose.Write(n[:])
		purpose.WriteString(p)
	}
	return purpose.String()
}
