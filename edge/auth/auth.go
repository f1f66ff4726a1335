// Package auth decides at the door who calls: an Authenticator reads the
// credentials of an HTTP request and returns its principal, or the refusal that
// the client is sent. What a principal may see and do is decided further in, by
// its scopes; this package knows neither the protocol behind the door nor the
// workers.
package auth

import (
	"net/http"
	"slices"
	"strings"

	"github.com/millrace/millrace/edge/exchange"
)

// Authenticator finds out who makes a request.
type Authenticator interface {
	// Authenticate returns either the caller or why there is none; a caller
	// with neither name nor scopes is anonymous and sees only what needs no
	// scope. It is called for every request, by many goroutines at once, and
	// must not read the body.
	Authenticate(r *http.Request) (*exchange.Principal, *Refusal)
}

// Refusal is the answer to a request that is not let in.
type Refusal struct {
	// Status is 401, or 403 for a caller who is known and lacks a scope.
	Status int
	// Challenge is the value of WWW-Authenticate.
	Challenge string
	// Message says what to do, for people. It is shown to the client.
	Message string
}

// challenge writes a challenge of RFC 6750, section 3, with pairs of a parameter
// and its value. Values are ours: none has a quotation mark or a backslash.
func challenge(pairs ...string) string {
	var b strings.Builder
	b.WriteString(`Bearer realm="millrace"`)
	for pair := range slices.Chunk(pairs, 2) {
		b.WriteString(", " + pair[0] + `="` + pair[1] + `"`)
	}
	return b.String()
}

// missing refuses a request without a bearer token. Such a challenge carries no
// error code (RFC 6750, section 3.1).
func missing() *Refusal {
	return &Refusal{
		Status: http.StatusUnauthorized, Challenge: challenge(),
		Message: "authentication is needed: send the header Authorization: Bearer <token>",
	}
}

// invalid refuses a token. Every fault of a token gives the same description
// but for its form, which the client knows anyway.
func invalid(description string) *Refusal {
	return &Refusal{
		Status:    http.StatusUnauthorized,
		Challenge: challenge("error", "invalid_token", "error_description", description),
		Message:   description,
	}
}

// bearer returns the token of a request (RFC 6750, section 2.1). Tokens in the
// query or the body are not looked at: they end up in logs.
func bearer(r *http.Request) (token string, refusal *Refusal) {
	values := r.Header.Values("Authorization")
	switch len(values) {
	case 0:
		return "", missing()
	case 1:
	default:
		return "", invalid("there is more than one Authorization header")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.Trim(token, " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", missing()
	}
	if !wellFormed(token) {
		return "", invalid("the Authorization header carries no well-formed bearer token")
	}
	return token, nil
}

// wellFormed reports whether a token can stand in a header: b64token of RFC
// 6750, section 2.1.
func wellFormed(token string) bool {
	body := strings.TrimRight(token, "=")
	return body != "" && strings.Trim(body, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/") == ""
}

// Require lets only those callers of an authenticator in who have all of the
// scopes.
func Require(a Authenticator, scopes ...string) Authenticator {
	if len(scopes) == 0 {
		return a
	}
	return &required{next: a, scopes: slices.Clone(scopes)}
}

type required struct {
	next   Authenticator
	scopes []string
}

// Authenticate implements Authenticator.
func (q *required) Authenticate(r *http.Request) (*exchange.Principal, *Refusal) {
	p, refusal := q.next.Authenticate(r)
	if p == nil {
		return nil, refusal
	}
	for _, scope := range q.scopes {
		if !slices.Contains(p.Scopes, scope) {
			needed := strings.Join(q.scopes, " ")
			return nil, &Refusal{
				Status:    http.StatusForbidden,
				Challenge: challenge("error", "insufficient_scope", "scope", needed),
				Message:   "the token lacks a scope that this server needs: " + needed,
			}
		}
	}
	return p, nil
}

// IsScope reports whether s can be a scope: visible ASCII characters without
// the quotation mark and the backslash (RFC 6749, section 3.3).
func IsScope(s string) bool {
	return s != "" && strings.IndexFunc(s, func(c rune) bool { return c < '!' || c > '~' || c == '"' || c == '\\' }) < 0
}
