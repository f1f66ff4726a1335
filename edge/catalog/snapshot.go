package catalog

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yosida95/uritemplate/v3"

	"github.com/millrace/millrace/edge/mcp"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
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
	// Definition is the tool as its worker announced it, a JSON object.
	Definition []byte
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
	Scopes     []string
}

// Template is one resource template.
type Template struct {
	URITemplate string
	Pool        string
	Definition  []byte
	// Completed are the variables whose values the pool can complete.
	Completed []string
	Scopes    []string
}

// Prompt is one prompt.
type Prompt struct {
	Name       string
	Pool       string
	Definition []byte
	// Completed are the arguments whose values the pool can complete.
	Completed []string
	Scopes    []string
}

// Problem is an item that a pool announces and the catalog does not offer.
type Problem struct {
	// Pool announces the item.
	Pool string
	// Item is the tool's name, the URI or the URI template.
	Item string
	// Reason says why it is not offered.
	Reason string
	// Conflict: another pool announces it too, and keeps it.
	Conflict bool
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
			if _, ok := s.templates[m.template.URITemplate]; !ok {
				return "", "", false
			}
			return m.template.Pool, m.template.URITemplate, true
		}
	}
	return "", "", false
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

// pool is the contribution of one pool to a snapshot.
type poolManifests struct {
	name      string
	manifests []*millracev1.Manifest
}

// newSnapshot merges the manifests of all pools. The outcome depends only on
// the set of manifests: a name that two pools announce belongs to the pool
// whose name sorts lower, whoever came first.
func newSnapshot(pools []poolManifests) *Snapshot {
	s := &Snapshot{}
	pools = slices.Clone(pools)
	slices.SortFunc(pools, func(a, b poolManifests) int { return cmp.Compare(a.name, b.name) })

	owners := map[string]string{}
	// claim reports whether the item may be offered by the pool.
	claim := func(kind, item, pool string, definition []byte) bool {
		reason := ""
		owner, taken := owners[kind+item]
		switch {
		case item == "":
			reason = "it has no name"
		case taken && owner == pool:
			reason = "the pool announces it twice"
		case taken:
			reason = fmt.Sprintf("the pool %q announces it too and sorts first", owner)
		case !isObject(definition):
			reason = "its definition is not a JSON object"
		}
		if reason != "" {
			s.Problems = append(s.Problems, Problem{Pool: pool, Item: item, Reason: reason, Conflict: taken && owner != pool})
			return false
		}
		owners[kind+item] = pool
		return true
	}
	for _, p := range pools {
		for _, m := range p.manifests {
			if m.GetInstructions() != "" {
				s.instructions = append(s.instructions, poolInstructions{p.name, m.GetInstructions()})
			}
			for _, t := range m.GetTools() {
				if claim("tool ", t.GetName(), p.name, t.GetDefinition()) {
					headers, err := toolHeaders(t.GetDefinition())
					if err != nil {
						// Shown, it would break every client that keeps to the rules.
						s.Problems = append(s.Problems, Problem{Pool: p.name, Item: t.GetName(), Reason: err.Error()})
						continue
					}
					s.Tools = append(s.Tools, Tool{
						Name: t.GetName(), Pool: p.name, Definition: t.GetDefinition(),
						ReadOnly: t.GetReadOnly(), Idempotent: t.GetIdempotent(),
						Timeout: time.Duration(t.GetTimeoutUs()) * time.Microsecond,
						Headers: headers, Scopes: scopesOf(t),
					})
				}
			}
			for _, problem := range m.GetProblems() {
				s.Problems = append(s.Problems, Problem{Pool: p.name, Item: problem.GetItem(), Reason: problem.GetReason()})
			}
			for _, r := range m.GetResources() {
				if claim("resource ", r.GetUri(), p.name, r.GetDefinition()) {
					s.Resources = append(s.Resources, Resource{URI: r.GetUri(), Pool: p.name, Definition: r.GetDefinition(), Scopes: scopesOf(r)})
				}
			}
			for _, t := range m.GetPrompts() {
				if claim("prompt ", t.GetName(), p.name, t.GetDefinition()) {
					s.Prompts = append(s.Prompts, Prompt{Name: t.GetName(), Pool: p.name, Definition: t.GetDefinition(), Completed: t.GetCompleted(), Scopes: scopesOf(t)})
				}
			}
			for _, t := range m.GetResourceTemplates() {
				parsed, err := uritemplate.New(t.GetUriTemplate())
				if err != nil {
					s.Problems = append(s.Problems, Problem{Pool: p.name, Item: t.GetUriTemplate(), Reason: "it is no URI template: " + err.Error()})
					continue
				}
				if claim("template ", t.GetUriTemplate(), p.name, t.GetDefinition()) {
					s.Templates = append(s.Templates, Template{URITemplate: t.GetUriTemplate(), Pool: p.name, Definition: t.GetDefinition(), Completed: t.GetCompleted(), Scopes: scopesOf(t)})
					s.matchers = append(s.matchers, matcher{parsed: parsed, literal: literalLength(parsed), template: &Template{URITemplate: t.GetUriTemplate(), Pool: p.name}})
				}
			}
		}
	}
	slices.SortFunc(s.Tools, func(a, b Tool) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Resources, func(a, b Resource) int { return cmp.Compare(a.URI, b.URI) })
	slices.SortFunc(s.Templates, func(a, b Template) int { return cmp.Compare(a.URITemplate, b.URITemplate) })
	slices.SortFunc(s.matchers, func(a, b matcher) int {
		return cmp.Or(-cmp.Compare(a.literal, b.literal), cmp.Compare(a.template.URITemplate, b.template.URITemplate))
	})
	slices.SortFunc(s.Prompts, func(a, b Prompt) int { return cmp.Compare(a.Name, b.Name) })
	s.collectScopes()
	s.finish()
	return s
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

// isObject reports whether raw is one JSON object.
func isObject(raw []byte) bool {
	return json.Valid(raw) && strings.HasPrefix(strings.TrimLeft(string(raw), " \t\r\n"), "{")
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
