package worker

import (
	"fmt"
	"slices"
	"strings"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// scopesOf checks the scopes of an item and brings them to the form of the
// manifest, which is the same in whatever order they were written.
func scopesOf(scopes []string) ([]string, error) {
	if len(scopes) == 0 {
		return nil, nil
	}
	for _, s := range scopes {
		// What RFC 6749, section 3.3, lets a scope be.
		if s == "" || strings.IndexFunc(s, func(c rune) bool { return c < '!' || c > '~' || c == '"' || c == '\\' }) >= 0 {
			return nil, fmt.Errorf("the scope %q must be visible ASCII characters without space, quotation mark and backslash", s)
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(scopes))), nil
}

// admits reports whether the caller may use what needs the scopes. The edge has
// decided that already; it may have done so by an older manifest, in which the
// scopes were others. Where edges authenticate nobody, everybody may.
func admits(from *millracev1.CallContext, scopes []string) bool {
	p := from.GetPrincipal()
	if p == nil {
		return true
	}
	for _, s := range scopes {
		if !slices.Contains(p.GetScopes(), s) {
			return false
		}
	}
	return true
}
