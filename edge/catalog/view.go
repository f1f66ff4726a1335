package catalog

import (
	"slices"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// For returns the catalog as a caller sees it: without the items whose scopes
// the caller lacks, so that one of those is like one that does not exist,
// whatever is asked. nil is the caller of an edge that authenticates nobody,
// who sees everything. Callers with equal views share one, and with it all that
// is derived from it.
func (s *Snapshot) For(p *millracev1.Principal) *Snapshot {
	if p == nil {
		return s
	}
	// The view depends on which sets of scopes the caller has, not on the
	// scopes themselves: tokens may carry any number that nobody asks for.
	granted := make([]byte, len(s.scopeSets))
	for i, set := range s.scopeSets {
		if hasAll(p.GetScopes(), set) {
			granted[i] = 1
		}
	}
	v, _ := s.Memo(viewKey(granted), func() any { return s.view(p.GetScopes()) }).(*Snapshot)
	return v
}

// viewKey names a view by the sets of scopes that its callers have.
type viewKey string

// hasAll reports whether all of the scopes were granted.
func hasAll(granted, scopes []string) bool {
	for _, s := range scopes {
		if !slices.Contains(granted, s) {
			return false
		}
	}
	return true
}

// view builds the catalog for callers who have been granted scopes.
func (s *Snapshot) view(granted []string) *Snapshot {
	v := &Snapshot{
		Private: true, Problems: s.Problems,
		whole: s, matchers: s.matchers,
		instructions: s.instructions,
	}
	v.Tools = visible(s.Tools, func(t Tool) bool { return hasAll(granted, t.Scopes) })
	v.Resources = visible(s.Resources, func(r Resource) bool { return hasAll(granted, r.Scopes) })
	v.Templates = visible(s.Templates, func(t Template) bool { return hasAll(granted, t.Scopes) })
	v.Prompts = visible(s.Prompts, func(p Prompt) bool { return hasAll(granted, p.Scopes) })
	v.finish()
	return v
}

func visible[T any](items []T, keep func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(items), func(item T) bool { return !keep(item) })
}

// collectScopes finds the different sets of scopes that items need.
func (s *Snapshot) collectScopes() {
	add := func(set []string) {
		if len(set) > 0 && !slices.ContainsFunc(s.scopeSets, func(have []string) bool { return slices.Equal(have, set) }) {
			s.scopeSets = append(s.scopeSets, set)
		}
	}
	for i := range s.Tools {
		add(s.Tools[i].Scopes)
	}
	for i := range s.Resources {
		add(s.Resources[i].Scopes)
	}
	for i := range s.Templates {
		add(s.Templates[i].Scopes)
	}
	for i := range s.Prompts {
		add(s.Prompts[i].Scopes)
	}
}

// scopesOf is what an item needs, in an order that does not depend on who wrote
// its manifest.
func scopesOf(item interface{ GetScopes() []string }) []string {
	if len(item.GetScopes()) == 0 {
		return nil
	}
	return slices.Compact(slices.Sorted(slices.Values(item.GetScopes())))
}

// poolInstructions are the instructions of one manifest.
type poolInstructions struct{ pool, text string }

// shows reports whether the instructions of a pool are for whoever sees s: all
// that they could be about may be hidden.
func (s *Snapshot) shows(pool string) bool {
	return s.whole == nil || s.has(pool) || !s.whole.has(pool)
}

// has reports whether any item is the pool's.
func (s *Snapshot) has(pool string) bool {
	return slices.ContainsFunc(s.Tools, func(t Tool) bool { return t.Pool == pool }) ||
		slices.ContainsFunc(s.Resources, func(r Resource) bool { return r.Pool == pool }) ||
		slices.ContainsFunc(s.Templates, func(t Template) bool { return t.Pool == pool }) ||
		slices.ContainsFunc(s.Prompts, func(p Prompt) bool { return p.Pool == pool })
}
