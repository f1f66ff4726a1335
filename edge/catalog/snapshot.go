package catalog

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/yosida95/uritemplate/v3"

	"github.com/millrace/millrace/edge/mcp"
)

// Snapshot is the catalog at one moment. It is immutable and safe for
// concurrent use; its slices must not be changed.
type Snapshot struct {
	// Tools, Resources, Templates and Prompts are sorted bytewise by name, URI
	// or URI template.
	Tools     []Tool
	Resources []Resource
	Templates []Template
	Prompts   []Prompt
	// Problems names what is announced but not offered, and why.
	Problems []Problem
	// Instructions are those of all pools, in the order of their names.
	Instructions string
	// Private: it is what some callers see (see For); nobody else may be shown
	// what is derived from it.
	Private bool
	// ToolsDigest, PromptsDigest and ResourcesDigest are equal in two
	// snapshots whose lists are; resources include the templates.
	ToolsDigest, PromptsDigest, ResourcesDigest [32]byte

	tools     map[string]*Tool
	resources map[string]*Resource
	templates map[string]*Template
	prompts   map[string]*Prompt
	matchers  []matcher
	// whole is the catalog of which this is a view; nil: it is one itself.
	// Hidden items take part in the choice of who serves a URI.
	whole        *Snapshot
	scopeSets    [][]string
	instructions []poolInstructions
	// pools and signature tell what the snapshot was made of.
	pools     map[string]bool
	signature string

	memo sync.Map
}

// Tool is one tool and the pool that runs it.
type Tool struct {
	Name string
	Pool string
	// Origin is the name by which its pool knows it. It differs from Name where
	// another pool keeps that name (see Config.Namespace).
	Origin string
	// Definition is the tool as its worker announced it, but for the name; a JSON
	// object.
	Definition []byte
	// Contract is what the instance that runs the tool must have it with; opaque,
	// empty: anything.
	Contract []byte
	// Offers are the versions of the pool that have it as it is listed; so below.
	Offers Offers
	// ReadOnly and Idempotent are the author's hints about repeating a call.
	ReadOnly, Idempotent bool
	// Timeout is the author's limit for one call; 0: the edge's default.
	Timeout time.Duration
	// Headers are the arguments that clients mirror into HTTP headers.
	Headers []mcp.ParamHeader
	// Scopes are what an authenticated caller needs, sorted; so below.
	Scopes []string
}

// Resource is one listed resource.
type Resource struct {
	URI        string
	Pool       string
	Definition []byte
	Offers     Offers
	Scopes     []string
}

// Template is one resource template.
type Template struct {
	URITemplate string
	Pool        string
	Definition  []byte
	Offers      Offers
	// Completed are the variables whose values the pool can complete.
	Completed []string
	Scopes    []string
}

// Prompt is one prompt. Origin is as with Tool.
type Prompt struct {
	Name       string
	Pool       string
	Origin     string
	Definition []byte
	Offers     Offers
	// Completed are the arguments whose values the pool can complete.
	Completed []string
	Scopes    []string
}

// Problem is an item that a pool announces and the catalog does not offer, or not
// under its own name.
type Problem struct {
	// Pool announces the item.
	Pool string
	// Item is the tool's name, the URI or the URI template.
	Item string
	// Reason says why it is not offered.
	Reason string
	// Conflict: another pool announces it too, and keeps it.
	Conflict bool
	// As is the name it is offered by instead; empty: it is not offered.
	As string
}

// matcher finds the template of a URI.
type matcher struct {
	template *Template
	parsed   *uritemplate.Template
	literal  int
}

// Tool finds a tool by its exact name.
func (s *Snapshot) Tool(name string) (*Tool, bool) {
	t, ok := s.tools[name]
	return t, ok
}

// Prompt finds a prompt by its exact name.
func (s *Snapshot) Prompt(name string) (*Prompt, bool) {
	p, ok := s.prompts[name]
	return p, ok
}

// Template finds a template by its exact text.
func (s *Snapshot) Template(uriTemplate string) (*Template, bool) {
	t, ok := s.templates[uriTemplate]
	return t, ok
}

// Resource finds who serves a URI, compared byte for byte: a listed resource
// first, else the template with the longest literal text that matches.
// uriTemplate is empty for a listed resource. Where that is hidden, nobody
// serves the URI: a less specific template must not open what its author has
// closed.
func (s *Snapshot) Resource(uri string) (pool, uriTemplate string, ok bool) {
	if r, ok := s.resources[uri]; ok {
		return r.Pool, "", true
	}
	if s.whole != nil && s.whole.resources[uri] != nil {
		return "", "", false
	}
	for _, m := range s.matchers {
		if m.parsed.Match(uri) != nil {
			t, ok := s.templates[m.template.URITemplate]
			if !ok {
				return "", "", false
			}
			return t.Pool, t.URITemplate, true
		}
	}
	return "", "", false
}

// ResourceOffers returns the versions that can serve what Resource has found.
func (s *Snapshot) ResourceOffers(uri, uriTemplate string) Offers {
	if uriTemplate == "" {
		if r := s.resources[uri]; r != nil {
			return r.Offers
		}
	} else if t := s.templates[uriTemplate]; t != nil {
		return t.Offers
	}
	return Offers{}
}

// Memo returns what build returned for the key, building it at most a few
// times: what is derived from a snapshot lives exactly as long as it.
func (s *Snapshot) Memo(key any, build func() any) any {
	if v, ok := s.memo.Load(key); ok {
		return v
	}
	v, _ := s.memo.LoadOrStore(key, build())
	return v
}

// finish fills in what follows from the lists.
func (s *Snapshot) finish() {
	var instructions []string
	for _, i := range s.instructions {
		if s.shows(i.pool) {
			instructions = append(instructions, i.text)
		}
	}
	s.Instructions = strings.Join(instructions, "\n\n")
	s.tools, s.resources = map[string]*Tool{}, map[string]*Resource{}
	s.templates, s.prompts = map[string]*Template{}, map[string]*Prompt{}
	for i := range s.Prompts {
		s.prompts[s.Prompts[i].Name] = &s.Prompts[i]
	}
	for i := range s.Templates {
		s.templates[s.Templates[i].URITemplate] = &s.Templates[i]
	}
	for i := range s.Tools {
		s.tools[s.Tools[i].Name] = &s.Tools[i]
	}
	for i := range s.Resources {
		s.resources[s.Resources[i].URI] = &s.Resources[i]
	}
	s.digests()
}

// digests sums up the lists.
func (s *Snapshot) digests() {
	h := sha256.New()
	sum := func(of *[32]byte) {
		h.Sum(of[:0])
		h.Reset()
	}
	add := func(definition []byte) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(definition))))
		h.Write(definition)
	}
	for i := range s.Tools {
		add(s.Tools[i].Definition)
	}
	sum(&s.ToolsDigest)
	for i := range s.Prompts {
		add(s.Prompts[i].Definition)
	}
	sum(&s.PromptsDigest)
	for i := range s.Resources {
		add(s.Resources[i].Definition)
	}
	add(nil) // ends the one list and begins the other
	for i := range s.Templates {
		add(s.Templates[i].Definition)
	}
	sum(&s.ResourcesDigest)
}

// toolHeaders finds the mirrored arguments of a tool's definition.
func toolHeaders(definition []byte) ([]mcp.ParamHeader, error) {
	var tool struct {
		InputSchema json.RawMessage `json:"inputSchema"`
	}
	if err := json.Unmarshal(definition, &tool); err != nil {
		return nil, fmt.Errorf("its definition cannot be read: %w", err)
	}
	return mcp.ParamHeaders(tool.InputSchema)
}

// literalLength is the length of a template outside its expressions.
func literalLength(t *uritemplate.Template) int {
	n, depth := 0, 0
	for _, c := range t.Raw() {
		switch c {
		case '{':
			depth++
		case '}':
			depth--
		default:
			if depth == 0 {
				n++
			}
		}
	}
	return n
}
