package worker

import (
	"encoding/json"
	"slices"
)

// Capability is something that not every client can do for a handler.
type Capability int

// The capabilities a handler can ask for.
const (
	// CapabilityElicitation: show the user a form, see [Elicit].
	CapabilityElicitation Capability = iota
	// CapabilityElicitationURL: open a page for the user, see [ElicitURL].
	CapabilityElicitationURL
	// CapabilitySampling: ask a model, see [CreateMessage].
	CapabilitySampling
	// CapabilitySamplingTools: let that model use tools.
	CapabilitySamplingTools
	// CapabilitySamplingContext: give that model context of MCP servers.
	CapabilitySamplingContext
	// CapabilityRoots: name the folders it works in, see [ListRoots].
	CapabilityRoots
)

// String returns the path of the capability in the capabilities of a client.
func (c Capability) String() string {
	switch c {
	case CapabilityElicitation:
		return "elicitation"
	case CapabilityElicitationURL:
		return "elicitation.url"
	case CapabilitySampling:
		return "sampling"
	case CapabilitySamplingTools:
		return "sampling.tools"
	case CapabilitySamplingContext:
		return "sampling.context"
	case CapabilityRoots:
		return "roots"
	default:
		return "unknown capability"
	}
}

// clientCapabilities are those that a client has declared. What is no object
// is not declared.
type clientCapabilities struct {
	elicitation, sampling, roots map[string]json.RawMessage
}

func (c *clientCapabilities) has(one Capability) bool {
	switch one {
	case CapabilityElicitation:
		// An empty object stands for forms alone.
		return c.elicitation != nil && (isObject(c.elicitation["form"]) || !isObject(c.elicitation["url"]))
	case CapabilityElicitationURL:
		return isObject(c.elicitation["url"])
	case CapabilitySampling:
		return c.sampling != nil
	case CapabilitySamplingTools:
		return isObject(c.sampling["tools"])
	case CapabilitySamplingContext:
		return isObject(c.sampling["context"])
	case CapabilityRoots:
		return c.roots != nil
	default:
		return false
	}
}

func isObject(raw json.RawMessage) bool {
	return len(raw) > 0 && checkObject("", raw) == nil
}

// declared reads the capabilities of the client.
func (c *Call) declared() *clientCapabilities {
	members := func(raw json.RawMessage) (all map[string]json.RawMessage) {
		if !isObject(raw) || c.w.codec.unmarshal(raw, &all) != nil {
			return nil
		}
		return all
	}
	top := members(c.from.GetClientCapabilities())
	return &clientCapabilities{
		elicitation: members(top["elicitation"]),
		sampling:    members(top["sampling"]),
		roots:       members(top["roots"]),
	}
}

// Capabilities returns the capabilities the client has declared, a JSON
// object; nil when it has declared none. [Call.Can] answers the usual
// questions about them.
func (c *Call) Capabilities() json.RawMessage { return rawOrNil(c.from.GetClientCapabilities()) }

// Can reports whether the client has all of the capabilities.
func (c *Call) Can(all ...Capability) bool { return len(c.missing(all)) == 0 }

// Require returns nil if the client has all of the capabilities, and
// otherwise a [*MissingCapabilityError], which the handler should return.
// [Call.Ask] does so by itself; Require is for handlers that want to know
// before they begin.
func (c *Call) Require(all ...Capability) error {
	if missing := c.missing(all); len(missing) > 0 {
		return &MissingCapabilityError{Missing: missing}
	}
	return nil
}

func (c *Call) missing(all []Capability) []Capability {
	if len(all) == 0 {
		return nil
	}
	declared := c.declared()
	var missing []Capability
	for _, one := range all {
		if !declared.has(one) && !slices.Contains(missing, one) {
			missing = append(missing, one)
		}
	}
	return missing
}

// requiredCapabilities writes the capabilities as a client declares them.
func requiredCapabilities(all []Capability) []byte {
	has := func(c Capability) bool { return slices.Contains(all, c) }
	var o object
	if form, url := has(CapabilityElicitation), has(CapabilityElicitationURL); form || url {
		var modes object
		if url { // without it, {} says form
			if form {
				modes.raw("form", []byte("{}"))
			}
			modes.raw("url", []byte("{}"))
		}
		o.object("elicitation", &modes)
	}
	if tools, context := has(CapabilitySamplingTools), has(CapabilitySamplingContext); tools || context || has(CapabilitySampling) {
		var parts object
		if tools {
			parts.raw("tools", []byte("{}"))
		}
		if context {
			parts.raw("context", []byte("{}"))
		}
		o.object("sampling", &parts)
	}
	if has(CapabilityRoots) {
		o.raw("roots", []byte("{}"))
	}
	raw, err := o.bytes()
	if err != nil {
		return []byte("{}") // not reached: nothing in it can fail
	}
	return raw
}
