package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Role is who says a message.
type Role string

// The roles. The zero Role stands for RoleUser.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
)

// CreateMessageParams are the parameters of [CreateMessage]. Messages and
// MaxTokens are required.
type CreateMessageParams struct {
	// Messages are the conversation so far.
	Messages []SamplingMessage
	// MaxTokens is the most the model may write.
	MaxTokens int
	// SystemPrompt for the model; the client may leave it out.
	SystemPrompt string
	// ModelPreferences say which model would be good; may be nil.
	ModelPreferences *ModelPreferences
	// Temperature of the model; nil: its default.
	Temperature *float64
	// StopSequences end the message.
	StopSequences []string
	// IncludeContext is "thisServer" or "allServers" to ask for context of MCP
	// servers, which few clients give; empty: none.
	IncludeContext string
	// Metadata is for the provider of the model, a JSON object.
	Metadata json.RawMessage
	// Tools that the model may use, which need not be tools of a worker: this
	// handler is told which the model wants to use ([CreateMessageResult]),
	// and answers with messages of its own.
	Tools []Tool
	// ToolChoice is "auto", "required" or "none"; empty: auto.
	ToolChoice string
}

// SamplingMessage is a message of a conversation with a model.
type SamplingMessage struct {
	// Role of who says it; empty: RoleUser.
	Role Role
	// Content is one block or several. A use of a tool and its result are
	// written with [RawContent].
	Content []Content
	// Meta is _meta, a JSON object; nil leaves it out.
	Meta json.RawMessage
}

// ModelPreferences are wishes about a model. The client decides.
type ModelPreferences struct {
	// Hints are names of models or parts of names, the best first.
	Hints []string
	// How much each matters, from 0 to 1; nil says nothing about it.
	CostPriority, SpeedPriority, IntelligencePriority *float64
}

// CreateMessageResult is the answer to [CreateMessage].
type CreateMessageResult struct {
	// Message is what the model wrote. It can be put behind the others in a
	// further question as it is.
	Message SamplingMessage
	// Model that wrote it.
	Model string
	// StopReason is "endTurn", "stopSequence", "maxTokens", "toolUse" or a word
	// of the provider; may be empty.
	StopReason string
}

// Text returns the blocks of text of the message, joined by line feeds.
func (r CreateMessageResult) Text() string {
	var texts []string
	for _, block := range r.Message.Content {
		var text struct {
			Type string `json:"type"`
			Text string `json:"text"`
		}
		if json.Unmarshal(block.raw, &text) == nil && text.Type == "text" {
			texts = append(texts, text.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// ToolUse is a model's wish to use a tool.
type ToolUse struct {
	// ID that the result has to name.
	ID string `json:"id"`
	// Name of the tool.
	Name string `json:"name"`
	// Input for the tool, a JSON object. Nothing has checked it.
	Input json.RawMessage `json:"input"`
}

// ToolUses returns the tools the model wants to use, if any.
func (r CreateMessageResult) ToolUses() []ToolUse {
	var uses []ToolUse
	for _, block := range r.Message.Content {
		var use struct {
			Type string `json:"type"`
			ToolUse
		}
		if json.Unmarshal(block.raw, &use) == nil && use.Type == "tool_use" {
			uses = append(uses, use.ToolUse)
		}
	}
	return uses
}

// UnmarshalJSON implements [json.Unmarshaler].
func (r *CreateMessageResult) UnmarshalJSON(data []byte) error {
	if err := checkCreateMessageResult(data); err != nil {
		return err
	}
	var wire struct {
		Role       Role            `json:"role"`
		Content    json.RawMessage `json:"content"`
		Model      string          `json:"model"`
		StopReason json.RawMessage `json:"stopReason"`
		Meta       json.RawMessage `json:"_meta"`
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return err
	}
	blocks, err := blocksOf(wire.Content)
	if err != nil {
		return err
	}
	*r = CreateMessageResult{Model: wire.Model, Message: SamplingMessage{Role: wire.Role}}
	if isObject(wire.Meta) {
		r.Message.Meta = wire.Meta
	}
	if reason, err := stringOf(wire.StopReason); err == nil {
		r.StopReason = reason
	}
	for _, block := range blocks {
		r.Message.Content = append(r.Message.Content, RawContent(block))
	}
	return nil
}

func (p *CreateMessageParams) encode() ([]byte, error) {
	if len(p.Messages) == 0 {
		return nil, errors.New("there is no message")
	}
	if p.MaxTokens <= 0 {
		return nil, errors.New("MaxTokens is not positive")
	}
	if err := checkToolResults(p.Messages); err != nil {
		return nil, err
	}
	var o object
	messages := make([]json.RawMessage, len(p.Messages))
	for i, m := range p.Messages {
		raw, err := m.encode()
		if err != nil {
			return nil, err
		}
		messages[i] = raw
	}
	o.value("messages", messages)
	if p.ModelPreferences != nil {
		o.raw("modelPreferences", p.ModelPreferences.encode(&o))
	}
	o.text("systemPrompt", p.SystemPrompt)
	o.text("includeContext", p.IncludeContext)
	if p.Temperature != nil {
		o.value("temperature", *p.Temperature)
	}
	o.value("maxTokens", p.MaxTokens)
	if len(p.StopSequences) > 0 {
		o.value("stopSequences", p.StopSequences)
	}
	encodeRawObject(&o, "metadata", p.Metadata)
	if len(p.Tools) > 0 {
		tools := make([]json.RawMessage, len(p.Tools))
		for i, t := range p.Tools {
			built, err := t.build(nil, nil)
			if err != nil {
				return nil, fmt.Errorf("tool %q: %w", t.Name, err)
			}
			tools[i] = built.entry.GetDefinition()
		}
		o.value("tools", tools)
	}
	if p.ToolChoice != "" {
		o.value("toolChoice", map[string]string{"mode": p.ToolChoice})
	}
	return o.bytes()
}

// checkToolResults sees to it that what a model has wanted of tools is answered
// as models have it (client/sampling, "Tool Use and Result Balance"): each use
// by one result, all in the next message, which has nothing else in it.
func checkToolResults(messages []SamplingMessage) error {
	type block struct {
		Type string `json:"type"`
		ID   string `json:"id"`
		For  string `json:"toolUseId"`
	}
	open := map[string]bool{} // uses of the message before
	for i, m := range messages {
		uses := map[string]bool{}
		results := 0
		for _, content := range m.Content {
			var b block
			if json.Unmarshal(content.raw, &b) != nil {
				continue // encode says what is wrong with it
			}
			switch b.Type {
			case "tool_use":
				uses[b.ID] = true
			case "tool_result":
				if results++; !open[b.For] {
					return fmt.Errorf("message %d has a tool_result for %q, which the message before has not asked for once", i+1, b.For)
				}
				delete(open, b.For)
			}
		}
		switch {
		case results > 0 && (results < len(m.Content) || m.Role == RoleAssistant):
			return fmt.Errorf("message %d has a tool_result, so it must be the user's and have nothing else in it", i+1)
		case len(open) > 0:
			return fmt.Errorf("message %d does not answer every tool_use of the message before", i+1)
		}
		open = uses
	}
	if len(open) > 0 {
		return errors.New("the last message has a tool_use without a tool_result")
	}
	return nil
}

func (m SamplingMessage) encode() ([]byte, error) {
	var o object
	o.role(m.Role)
	var content []byte
	var err error
	if len(m.Content) == 1 { // older revisions know nothing else
		content, err = m.Content[0].MarshalJSON()
	} else {
		content, err = encodeContent(m.Content)
	}
	o.err = errors.Join(o.err, err)
	o.raw("content", content)
	encodeMeta(&o, m.Meta)
	return o.bytes()
}

func (p *ModelPreferences) encode(outer *object) []byte {
	var o object
	if len(p.Hints) > 0 {
		hints := make([]map[string]string, len(p.Hints))
		for i, hint := range p.Hints {
			hints[i] = map[string]string{"name": hint}
		}
		o.value("hints", hints)
	}
	for name, priority := range map[string]*float64{
		"costPriority": p.CostPriority, "speedPriority": p.SpeedPriority, "intelligencePriority": p.IntelligencePriority,
	} {
		if priority == nil {
			continue
		}
		if !(*priority >= 0 && *priority <= 1) {
			o.err = errors.Join(o.err, fmt.Errorf("%s must be from 0 to 1", name))
		}
		o.value(name, *priority)
	}
	raw, err := o.bytes()
	outer.err = errors.Join(outer.err, err)
	return raw
}
