package edge

import (
	"net/http"
	"strconv"
	"strings"
)

// accepted is what a client takes as the answer to a POST.
type accepted struct {
	json, stream bool
	// named: the client lists text/event-stream by name, and not only by a
	// wildcard or by saying nothing.
	named bool
}

// parseAccept reads the Accept headers (RFC 9110, section 12.5.1: several
// lines are one list, an absent header accepts everything, a more specific
// range overrules a wider one, q=0 excludes). MCP obliges clients to list both
// types; those that do not are answered in what they take.
func parseAccept(h http.Header) accepted {
	values := h["Accept"]
	switch {
	case len(values) == 0:
		return accepted{json: true, stream: true}
	case len(values) == 1 && values[0] == "application/json, text/event-stream":
		return accepted{json: true, stream: true, named: true}
	}
	// How specific the range was that decided: 0 none, 1 */*, 2 type/*, 3 type.
	var jsonBy, streamBy int
	var a accepted
	for _, value := range values {
		for element := range strings.SplitSeq(value, ",") {
			mediaType, params, _ := strings.Cut(element, ";")
			mediaType = strings.ToLower(strings.TrimSpace(mediaType))
			if mediaType == "" {
				continue
			}
			takes := quality(params) > 0
			decide := func(exact, family string, by *int, target *bool) bool {
				specificity := 0
				switch mediaType {
				case exact:
					specificity = 3
				case family:
					specificity = 2
				case "*/*":
					specificity = 1
				}
				if specificity > *by {
					*by, *target = specificity, takes
				}
				return specificity == 3
			}
			decide("application/json", "application/*", &jsonBy, &a.json)
			if decide("text/event-stream", "text/*", &streamBy, &a.stream) && takes {
				a.named = true
			}
		}
	}
	return a
}

// quality reads the weight among the parameters of a media range; 1 when there
// is none or it is no number.
func quality(params string) float64 {
	for param := range strings.SplitSeq(params, ";") {
		key, value, ok := strings.Cut(strings.TrimSpace(param), "=")
		if !ok || !strings.EqualFold(key, "q") {
			continue
		}
		if q, err := strconv.ParseFloat(value, 64); err == nil {
			return q
		}
	}
	return 1
}
