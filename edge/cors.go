package edge

import (
	"net/http"
	"strings"

	"github.com/millrace/millrace/edge/mcp"
)

// exposed are the response headers that a page may read: a client that cannot
// read its session id fails at its second request.
const exposed = mcp.HeaderSessionID + ", WWW-Authenticate, Retry-After, " + mcp.HeaderProtocolVersion

// preflightAge is how long a browser may keep the answer to a preflight, in
// seconds; browsers cap it themselves.
const preflightAge = "7200"

// cors adds the headers that let a web page of an allowed origin use the edge
// (the Fetch standard, "CORS protocol"), to refusals too, and reports whether
// the request is only a browser's question whether it may ask. The origin was
// checked before; without one there is no browser. methods are those of the
// path.
func cors(h http.Header, r *http.Request, methods string) (preflight bool) {
	h.Add("Vary", "Origin")
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", exposed)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", methods)
	if asked := strings.Join(r.Header.Values("Access-Control-Request-Headers"), ", "); asked != "" {
		// A list instead of "*", which would not cover Authorization.
		h.Set("Access-Control-Allow-Headers", asked)
	}
	h.Set("Access-Control-Max-Age", preflightAge)
	return true
}
