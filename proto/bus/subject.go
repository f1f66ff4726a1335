package bus

// maxToken bounds the tokens of subjects that come from configuration.
const maxToken = 64

// validToken reports whether s may stand in a subject. Names from outside
// (tools, URIs) never do; these are the names of pools, tenants and instances.
func validToken(s string) bool {
	if s == "" || len(s) > maxToken {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
