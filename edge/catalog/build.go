package catalog

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yosida95/uritemplate/v3"

	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// poolManifests is the contribution of one pool to a snapshot.
type poolManifests struct {
	name string
	// listed is what its items are listed from, manifests the content.
	listed    bus.Hash
	manifests []*millracev1.Manifest
	// others are the versions that take calls besides.
	others []other
}

// other is a version that is not listed.
type other struct {
	hash     bus.Hash
	manifest *millracev1.Manifest // nil: not known yet
}

// builder makes a snapshot.
type builder struct {
	s         *Snapshot
	namespace bool
	// owners are the pools that have an item, by its kind and name.
	owners map[string]string
	// losers are what is left to be renamed when all have their own names.
	losers []func()
}

// newSnapshot merges the manifests of all pools. The outcome depends only on
// the set of manifests: a name that two pools announce belongs to the pool
// whose name sorts lower, whoever came first.
func newSnapshot(pools []poolManifests, namespace bool) *Snapshot {
	b := &builder{s: &Snapshot{}, namespace: namespace, owners: map[string]string{}}
	s := b.s
	pools = slices.Clone(pools)
	slices.SortFunc(pools, func(a, b poolManifests) int { return cmp.Compare(a.name, b.name) })
	for i := range pools {
		b.add(&pools[i])
	}
	// Nobody loses a name of its own to one that was made here.
	for _, rename := range b.losers {
		rename()
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

// add takes what a pool announces.
func (b *builder) add(p *poolManifests) {
	s := b.s
	for _, m := range p.manifests {
		if m.GetInstructions() != "" {
			s.instructions = append(s.instructions, poolInstructions{p.name, m.GetInstructions()})
		}
		others := indexed(p.others)
		for _, t := range m.GetTools() {
			b.claim("tool ", t.GetName(), p.name, t.GetDefinition(), func(name string, definition []byte) string {
				headers, err := toolHeaders(definition)
				if err != nil {
					// Shown, it would break every client that keeps to the rules.
					return err.Error()
				}
				s.Tools = append(s.Tools, Tool{
					Name: name, Pool: p.name, Origin: t.GetName(), Definition: definition,
					Contract: t.GetContract(), Offers: p.offers(others, "tool ", t.GetName(), contractOf(t)),
					ReadOnly: t.GetReadOnly(), Idempotent: t.GetIdempotent(),
					Timeout: time.Duration(t.GetTimeoutUs()) * time.Microsecond,
					Headers: headers, Scopes: scopesOf(t),
				})
				return ""
			})
		}
		for _, problem := range m.GetProblems() {
			s.Problems = append(s.Problems, Problem{Pool: p.name, Item: problem.GetItem(), Reason: problem.GetReason()})
		}
		for _, r := range m.GetResources() {
			b.claim("resource ", r.GetUri(), p.name, r.GetDefinition(), func(_ string, definition []byte) string {
				s.Resources = append(s.Resources, Resource{
					URI: r.GetUri(), Pool: p.name, Definition: definition, Scopes: scopesOf(r),
					Offers: p.offers(others, "resource ", r.GetUri(), digest(definition)),
				})
				return ""
			})
		}
		for _, t := range m.GetPrompts() {
			b.claim("prompt ", t.GetName(), p.name, t.GetDefinition(), func(name string, definition []byte) string {
				s.Prompts = append(s.Prompts, Prompt{
					Name: name, Pool: p.name, Origin: t.GetName(), Definition: definition,
					Offers:    p.offers(others, "prompt ", t.GetName(), digest(t.GetDefinition())),
					Completed: t.GetCompleted(), Scopes: scopesOf(t),
				})
				return ""
			})
		}
		for _, t := range m.GetResourceTemplates() {
			parsed, err := uritemplate.New(t.GetUriTemplate())
			if err != nil {
				s.Problems = append(s.Problems, Problem{Pool: p.name, Item: t.GetUriTemplate(), Reason: "it is no URI template: " + err.Error()})
				continue
			}
			b.claim("template ", t.GetUriTemplate(), p.name, t.GetDefinition(), func(_ string, definition []byte) string {
				s.Templates = append(s.Templates, Template{
					URITemplate: t.GetUriTemplate(), Pool: p.name, Definition: definition, Completed: t.GetCompleted(), Scopes: scopesOf(t),
					Offers: p.offers(others, "template ", t.GetUriTemplate(), digest(definition)),
				})
				s.matchers = append(s.matchers, matcher{parsed: parsed, literal: literalLength(parsed), template: &Template{URITemplate: t.GetUriTemplate(), Pool: p.name}})
				return ""
			})
		}
	}
}

// claim offers an item of a pool by its own name, by another one, or not at all.
// offer adds it to the lists, or says why it cannot be offered.
func (b *builder) claim(kind, item, pool string, definition []byte, offer func(name string, definition []byte) (reason string)) {
	problem := func(p Problem) {
		p.Pool, p.Item = pool, item
		b.s.Problems = append(b.s.Problems, p)
	}
	owner, taken := b.owners[kind+item]
	switch {
	case item == "":
		problem(Problem{Reason: "it has no name"})
	case taken && owner == pool:
		problem(Problem{Reason: "the pool announces it twice"})
	case !isObject(definition):
		problem(Problem{Reason: "its definition is not a JSON object"})
	case taken:
		p := Problem{Conflict: true, Reason: fmt.Sprintf("the pool %q announces it too and sorts first", owner)}
		if !b.namespace || kind != "tool " && kind != "prompt " {
			problem(p)
			return
		}
		b.losers = append(b.losers, func() { problem(b.rename(kind, item, pool, definition, p, offer)) })
	default:
		b.owners[kind+item] = pool
		if reason := offer(item, definition); reason != "" {
			problem(Problem{Reason: reason})
		}
	}
}

// longestName is the longest name of a tool that the specification has.
const longestName = 128

// rename offers an item as POOL.NAME, and returns what there is to say of it.
func (b *builder) rename(kind, item, pool string, definition []byte, p Problem, offer func(string, []byte) string) Problem {
	name := pool + "." + item
	owner, taken := b.owners[kind+name]
	if taken {
		p.Reason += fmt.Sprintf("; %q, by which it would be offered, is taken by the pool %q", name, owner)
		return p
	}
	if len(name) > longestName {
		p.Reason += fmt.Sprintf("; %q, by which it would be offered, is longer than the %d characters that a name may have", name, longestName)
		return p
	}
	renamed, err := withName(definition, name)
	if err != nil {
		p.Reason += "; its definition cannot be given another name: " + err.Error()
		return p
	}
	if reason := offer(name, renamed); reason != "" {
		p.Reason = reason
		return p
	}
	b.owners[kind+name] = pool
	p.As = name
	return p
}

// withName returns a definition with another name and the same bytes otherwise.
func withName(definition []byte, name string) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(definition))
	if _, err := d.Token(); err != nil { // the brace
		return nil, err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		if key != "name" {
			continue
		}
		quoted, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		end := int(d.InputOffset())
		return slices.Concat(definition[:end-len(value)], quoted, definition[end:]), nil
	}
	return nil, fmt.Errorf("it has no member %q", "name")
}

// indexed are the versions that are not listed, by what they say of each item;
// nil of one that is not known yet.
func indexed(others []other) []map[string]string {
	indexes := make([]map[string]string, len(others))
	for i, o := range others {
		if o.manifest == nil {
			continue
		}
		index := map[string]string{}
		for _, t := range o.manifest.GetTools() {
			index["tool "+t.GetName()] = contractOf(t)
		}
		for _, r := range o.manifest.GetResources() {
			index["resource "+r.GetUri()] = digest(r.GetDefinition())
		}
		for _, t := range o.manifest.GetResourceTemplates() {
			index["template "+t.GetUriTemplate()] = digest(t.GetDefinition())
		}
		for _, t := range o.manifest.GetPrompts() {
			index["prompt "+t.GetName()] = digest(t.GetDefinition())
		}
		indexes[i] = index
	}
	return indexes
}

// offers are the versions that have an item with the same contract.
func (p *poolManifests) offers(others []map[string]string, kind, item, contract string) Offers {
	o := Offers{Listed: p.listed, Only: []bus.Hash{p.listed}}
	for i, index := range others {
		if index[kind+item] == contract {
			o.Only = append(o.Only, p.others[i].hash)
		}
	}
	if len(o.Only) == len(others)+1 {
		o.Only = nil
	}
	return o
}

// contractOf is the contract of a tool. Where its worker says none, every change
// is another one.
func contractOf(t *millracev1.Tool) string {
	if c := t.GetContract(); len(c) > 0 {
		return "c" + string(c)
	}
	return digest(t.GetDefinition())
}

func digest(definition []byte) string {
	sum := sha256.Sum256(definition)
	return "d" + string(sum[:])
}

// isObject reports whether raw is one JSON object.
func isObject(raw []byte) bool {
	return json.Valid(raw) && strings.HasPrefix(strings.TrimLeft(string(raw), " \t\r\n"), "{")
}
