package stateless

import (
	"bytes"
	"crypto/rand"
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
// the expiry, the nonce of a state that counts once, the instance that must
// serve the next round, and the worker's own state.

// sealState makes the requestState of an input_required result.
func (e *Era) sealState(req *exchange.Request, needs *millracev1.NeedsInput) (string, error) {
	payload := binary.BigEndian.AppendUint64(nil, uint64(time.Now().Add(stateAge).Unix()))
	var nonce string
	if needs.GetOnceOnly() {
		nonce = rand.Text()
	}
	payload = append(append(payload, byte(len(nonce))), nonce...)
	payload = binary.BigEndian.AppendUint16(payload, uint16(len(needs.GetInstance())))
	payload = append(payload, needs.GetInstance()...)
	payload = append(payload, needs.GetState()...)
	return e.States.Encrypt(statePurpose(req), payload)
}

// openState takes apart what sealState has put together; ok is false when the
// state is good for nothing any more.
func openState(payload []byte) (round *methods.Round, once *ticket, ok bool) {
	if len(payload) < 9 {
		return nil, nil, false
	}
	expiry := time.Unix(int64(binary.BigEndian.Uint64(payload)), 0)
	n := int(payload[8])
	if payload = payload[9:]; len(payload) < n+2 || time.Now().After(expiry) {
		return nil, nil, false
	}
	if n > 0 {
		once = &ticket{name: string(payload[:n]), expiry: expiry}
	}
	payload = payload[n:]
	n = int(binary.BigEndian.Uint16(payload))
	if payload = payload[2:]; len(payload) < n {
		return nil, nil, false
	}
	return &methods.Round{Instance: string(payload[:n]), Resume: &millracev1.Resume{State: payload[n:]}}, once, true
}

// round reads the answers of a request that is made again; nil when it is the
// first time. once is set when they count once: it must be taken before
// anything runs.
func (e *Era) round(req *exchange.Request) (_ *methods.Round, once *ticket, _ *jsonrpc.Error) {
	m := &req.Message
	switch m.Method {
	case mcp.MethodToolsCall, mcp.MethodResourcesRead, mcp.MethodPromptsGet:
	default:
		return nil, nil, nil
	}
	rawResponses, rawState := m.Params.Get("inputResponses"), m.Params.Get("requestState")
	if rawResponses == nil && rawState == nil {
		return nil, nil, nil
	}
	round := &methods.Round{Resume: &millracev1.Resume{}}
	if rawState != nil {
		token, ok := jsonrpc.String(rawState)
		if !ok {
			return nil, nil, invalidState()
		}
		payload, err := e.States.Decrypt(statePurpose(req), token)
		if err != nil {
			return nil, nil, invalidState()
		}
		if round, once, ok = openState(payload); !ok {
			return nil, nil, invalidState()
		}
	}
	round.Resume.Responses = map[string][]byte{}
	if rawResponses != nil {
		responses, err := jsonrpc.ParseObject(rawResponses)
		if err != nil {
			return nil, nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "params.inputResponses must be an object: the answers by the keys of inputRequests"}
		}
		for _, r := range responses.Members {
			round.Resume.Responses[r.Key] = r.Value
		}
	}
	return round, once, nil
}

// invalidState refuses a state: one message for every fault, so that it is no
// oracle.
func invalidState() *jsonrpc.Error {
	return &jsonrpc.Error{
		Code:    jsonrpc.CodeInvalidParams,
		Message: "params.requestState is not valid for this request, or has expired: send the request again without requestState and inputResponses",
	}
}

// usedState refuses a state that counts once. Only who could use it learns so.
func usedState() *jsonrpc.Error {
	return &jsonrpc.Error{
		Code:    jsonrpc.CodeInvalidParams,
		Message: "params.requestState was used before, and counts once: send the request again without requestState and inputResponses",
	}
}

// statePurpose is what a request state is bound to.
func statePurpose(req *exchange.Request) string {
	m := &req.Message
	parts := []string{"request-state/2", "", "", m.Method}
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
