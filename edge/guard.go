package edge

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// guard refuses requests that a web page made somebody's browser send: those
// with a foreign Origin, and those to a name that was bound to this address
// behind the user's back (transports, "Security Warning": DNS rebinding).
type guard struct {
	hosts, origins     []string
	anyHost, anyOrigin bool
}

func newGuard(hosts, origins []string) (guard, error) {
	g := guard{anyHost: slices.Contains(hosts, "*"), anyOrigin: slices.Contains(origins, "*")}
	for _, h := range hosts {
		if h != "*" {
			g.hosts = append(g.hosts, hostname(h))
		}
	}
	for _, o := range origins {
		if o == "*" {
			continue
		}
		normal, _, ok := parseOrigin(o)
		if !ok {
			return guard{}, fmt.Errorf("%q is no web origin: write it as https://app.example", o)
		}
		g.origins = append(g.origins, normal)
	}
	return g, nil
}

// check says why a request is refused; empty when it is not.
func (g *guard) check(r *http.Request) string {
	if !g.anyHost {
		if host := hostname(r.Host); !isLoopback(host) && !slices.Contains(g.hosts, host) {
			return fmt.Sprintf("host %q is not served here: add it to the allowed hosts of the edge", r.Host)
		}
	}
	origins := r.Header.Values("Origin")
	switch {
	case len(origins) == 0 || g.anyOrigin:
		return ""
	case len(origins) > 1:
		return "more than one Origin header"
	}
	normal, host, ok := parseOrigin(origins[0])
	if ok && (isLoopback(host) || slices.Contains(g.origins, normal)) {
		return ""
	}
	return fmt.Sprintf("origin %q is not allowed: add it to the allowed origins of the edge", origins[0])
}

// hostname is the name in a Host header: lower case, without port, brackets
// and the dot of a fully qualified name.
func hostname(hostport string) string {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// parseOrigin brings an origin to the form browsers send (RFC 6454, section
// 6.2): lower case, without the default port.
func parseOrigin(origin string) (normal, host string, ok bool) {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", "", false
	}
	defaultPort, known := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	if !known {
		return "", "", false
	}
	host = hostname(u.Host)
	normal = u.Scheme + "://" + host
	if p := u.Port(); p != "" && p != defaultPort {
		normal += ":" + p
	}
	return normal, host, true
}
