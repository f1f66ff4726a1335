package edge

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/millrace/millrace/edge/auth"
	"github.com/millrace/millrace/edge/exchange"
)

// authenticator is what asks callers for their credentials; nil when nobody
// does.
func (cfg *Config) authenticator() (auth.Authenticator, error) {
	if cfg.Authenticator == nil {
		if len(cfg.RequiredScopes) > 0 {
			return nil, errors.New("scopes are required of callers, but nothing authenticates them")
		}
		return nil, nil
	}
	for _, scope := range cfg.RequiredScopes {
		if !auth.IsScope(scope) {
			return nil, fmt.Errorf("%q is no scope: it must be visible ASCII characters without space, quotation mark and backslash", scope)
		}
	}
	return auth.Require(cfg.Authenticator, cfg.RequiredScopes...), nil
}

// caller finds out who sends a request, or answers it and reports false. The
// principal is nil only where nothing authenticates callers.
func (e *Edge) caller(w http.ResponseWriter, r *http.Request) (*exchange.Principal, bool) {
	if e.auth == nil || r.Method == http.MethodOptions { // browsers send preflights without credentials
		return nil, true
	}
	principal, refusal := e.auth.Authenticate(r)
	switch {
	case refusal != nil:
		w.Header().Set("WWW-Authenticate", refusal.Challenge)
		e.reject(w, r, refusal.Status, refusal.Message)
		return nil, false
	case principal == nil:
		// Passed on, it would be a caller who sees everything.
		e.log.Error("the authenticator returned neither a principal nor a refusal")
		e.reject(w, r, http.StatusInternalServerError, "internal error")
		return nil, false
	}
	return principal, true
}
