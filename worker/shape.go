package worker

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Limits of a schema and of the work to check a value against it. The library
// that does the checking has none: a schema that refers to itself at the same
// place would end the process, and one that doubles at each level would keep
// it busy for ever. The limits are far above what people and generators write.
const (
	// maxSchemaBytes and maxSchemaDepth bound the text of a schema.
	maxSchemaBytes = 1 << 20
	maxSchemaDepth = 256
	// maxApplied is how many schemas may apply to one value at once.
	maxApplied = 10_000
	// maxChecks is how many schemas may be applied to all parts of a value
	// together; the library does about a million a second.
	maxChecks = 2_000_000
)

// shape is a schema as a graph: what is applied where. It does not change.
type shape struct {
	root *part
	// total is the number of parts if every reference were written out, which
	// is a bound for the checks of one place of a value; infinite when the
	// schema is recursive.
	total int
	// cleaned: names that only look like keywords were taken out of the tree.
	cleaned bool
}

// part is one schema within another.
type part struct {
	// same are the parts that apply to the same value.
	same []*part
	// properties and prefix apply to one member or item, members and items to
	// any.
	properties     map[string]*part
	prefix         []*part
	members, items []*part
}

// infinite is the total of a recursive schema.
const infinite = math.MaxInt

// shapeOf reads the shape of a schema, a JSON value as decodeTree returns it.
// It refuses what the library could not finish, or what nobody could, and takes
// out of the tree what the library would misread.
func shapeOf(tree any, draft7 bool) (*shape, error) {
	r := &shapeReader{draft7: draft7, parts: map[uintptr]*part{}, resources: map[string]map[string]any{}, anchors: map[string]*part{}, dynamic: map[string][]*part{}}
	root, err := r.read(tree, &url.URL{})
	if err != nil {
		return nil, err
	}
	for _, ref := range r.references {
		target, err := r.follow(ref)
		if err != nil {
			return nil, err
		}
		ref.from.same = append(ref.from.same, target)
		if _, name, ok := strings.Cut(ref.text, "#"); ok && ref.dynamic {
			// Which one it is depends on the way there.
			ref.from.same = append(ref.from.same, r.dynamic[name]...)
		}
	}
	// Each part is the first to be applied to something, or is not used.
	counts := map[*part]int{}
	for _, p := range r.parts {
		if _, err := p.applied(counts, maxApplied); err != nil {
			return nil, err
		}
	}
	return &shape{root: root, total: root.size(map[*part]int{}), cleaned: r.cleaned}, nil
}

// allows reports whether raw, whose tree is value, can be checked within the
// limit.
func (s *shape) allows(value any, raw []byte) bool {
	if s.total < maxChecks/(len(raw)+1) {
		return true // there are no more places than bytes
	}
	left := maxChecks
	s.root.spend(value, &left)
	return left > 0
}

// spend counts the checks of a value down, at most to zero.
func (p *part) spend(value any, left *int) {
	if *left--; *left <= 0 {
		return
	}
	for _, q := range p.same {
		q.spend(value, left)
	}
	switch v := value.(type) {
	case map[string]any:
		for name, member := range v {
			if q := p.properties[name]; q != nil {
				q.spend(member, left)
			}
			for _, q := range p.members {
				q.spend(member, left)
			}
		}
	case []any:
		for i, item := range v {
			if i < len(p.prefix) {
				p.prefix[i].spend(item, left)
			}
			for _, q := range p.items {
				q.spend(item, left)
			}
		}
	}
}

// applied counts the parts that apply to a value with p. It is an error if that
// has no end, or is too often. known has the counts so far; -1 marks a part
// that is being counted.
func (p *part) applied(known map[*part]int, limit int) (int, error) {
	switch n, seen := known[p]; {
	case n < 0:
		return 0, errEndless
	case seen:
		return n, nil
	}
	known[p] = -1
	n := 1
	for _, q := range p.same {
		more, err := q.applied(known, limit)
		if err != nil {
			return 0, err
		}
		if n += more; n > limit {
			return 0, fmt.Errorf("it applies more than %d schemas to one value", limit)
		}
	}
	known[p] = n
	return n, nil
}

var errEndless = errors.New("a $ref leads back to itself without going deeper into the value, so that checking would not end")

// size is the number of parts, references written out.
func (p *part) size(known map[*part]int) int {
	switch n, seen := known[p]; {
	case n < 0:
		return infinite
	case seen:
		return n
	}
	known[p] = -1
	n := 1
	for _, list := range [][]*part{p.same, p.prefix, p.members, p.items} {
		for _, q := range list {
			n = add(n, q.size(known))
		}
	}
	for _, q := range p.properties {
		n = add(n, q.size(known))
	}
	known[p] = n
	return n
}

// add adds two counts; what is too large is infinite.
func add(a, b int) int {
	if a > infinite-b {
		return infinite
	}
	return a + b
}

// shapeReader reads one schema.
type shapeReader struct {
	draft7 bool
	// parts finds the part of an object of the tree.
	parts map[uintptr]*part
	// resources are the objects that a $id names, and the root.
	resources map[string]map[string]any
	// anchors are named parts, by URI and fragment; dynamic are those that a
	// $dynamicRef may find anywhere, by name.
	anchors    map[string]*part
	dynamic    map[string][]*part
	references []reference
	cleaned    bool
}

// reference is a $ref that is not followed yet.
type reference struct {
	from    *part
	text    string
	base    *url.URL
	dynamic bool
}

// Keywords whose value is a schema, a list of them, or an object of them.
const (
	schemaKeywords = " not if then else additionalProperties propertyNames unevaluatedProperties items additionalItems contains unevaluatedItems "
	listKeywords   = " allOf anyOf oneOf prefixItems items "
	objectKeywords = " properties patternProperties dependentSchemas dependencies $defs definitions "
)

// read reads the schema node, whose resource has the URI base.
func (r *shapeReader) read(node any, base *url.URL) (*part, error) {
	p := &part{properties: map[string]*part{}}
	object, ok := node.(map[string]any)
	if !ok {
		if _, ok := node.(bool); !ok {
			return nil, errors.New("a schema in it is neither an object nor true or false")
		}
		return p, nil
	}
	r.parts[reflect.ValueOf(object).Pointer()] = p
	r.clean(object)
	r.split(object)
	if err := checkKeywords(object); err != nil {
		return nil, err
	}
	ref, isRef := object["$ref"].(string)
	void := r.draft7 && isRef // there, all that stands beside a reference is void
	if id, ok := object["$id"].(string); ok && !void {
		uri, err := url.Parse(id)
		if err != nil {
			return nil, fmt.Errorf("its $id %q is no URI", shorten(id))
		}
		if fragment := uri.Fragment; fragment != "" {
			r.anchors[withFragment(base, fragment)] = p
		}
		if uri.Fragment = ""; uri.String() != "" {
			base = base.ResolveReference(uri)
		}
	}
	if _, there := r.resources[base.String()]; !there {
		r.resources[base.String()] = object
	}
	for _, keyword := range []string{"$anchor", "$dynamicAnchor"} {
		if name, ok := object[keyword].(string); ok {
			r.anchors[withFragment(base, name)] = p
			if keyword == "$dynamicAnchor" {
				r.dynamic[name] = append(r.dynamic[name], p)
			}
		}
	}
	if isRef {
		r.references = append(r.references, reference{p, ref, base, false})
	}
	if dynamic, ok := object["$dynamicRef"].(string); ok {
		r.references = append(r.references, reference{p, dynamic, base, true})
	}
	q := p
	if void {
		q = &part{properties: map[string]*part{}} // read for its definitions only
	}
	return p, r.readKeywords(q, object, base)
}

func withFragment(base *url.URL, fragment string) string { return base.String() + "#" + fragment }

// readKeywords reads the schemas within a schema.
func (r *shapeReader) readKeywords(p *part, object map[string]any, base *url.URL) error {
	for keyword, value := range object {
		name := " " + keyword + " "
		switch v := value.(type) {
		case map[string]any:
			if strings.Contains(objectKeywords, name) {
				for key, sub := range v {
					if _, isList := sub.([]any); isList && keyword == "dependencies" {
						continue // names, not a schema
					}
					if err := r.attach(p, keyword, key, sub, base); err != nil {
						return err
					}
				}
				continue
			}
			if strings.Contains(schemaKeywords, name) {
				if err := r.attach(p, keyword, "", v, base); err != nil {
					return err
				}
			}
		case bool:
			if strings.Contains(schemaKeywords, name) {
				if err := r.attach(p, keyword, "", v, base); err != nil {
					return err
				}
			}
		case []any:
			if !strings.Contains(listKeywords, name) {
				continue
			}
			for i, sub := range v {
				if err := r.attach(p, keyword, strconv.Itoa(i), sub, base); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// attach reads a schema and puts it where its keyword applies it; key is the
// name or number under the keyword.
func (r *shapeReader) attach(p *part, keyword, key string, node any, base *url.URL) error {
	q, err := r.read(node, base)
	if err != nil {
		return err
	}
	switch keyword {
	case "properties":
		p.properties[key] = q
	case "patternProperties", "additionalProperties", "propertyNames", "unevaluatedProperties":
		p.members = append(p.members, q)
	case "prefixItems":
		p.addPrefix(key, q)
	case "items":
		if key != "" {
			p.addPrefix(key, q)
			break
		}
		p.items = append(p.items, q)
	case "additionalItems", "contains", "unevaluatedItems":
		p.items = append(p.items, q)
	case "$defs", "definitions": // applied by references only
	default:
		p.same = append(p.same, q)
	}
	return nil
}

// addPrefix adds a part for one item; they come in order.
func (p *part) addPrefix(key string, q *part) {
	if n, err := strconv.Atoi(key); err == nil && n == len(p.prefix) {
		p.prefix = append(p.prefix, q)
	}
}

// follow finds what a reference points to.
func (r *shapeReader) follow(ref reference) (*part, error) {
	uri, err := url.Parse(ref.text)
	if err != nil {
		return nil, fmt.Errorf("its $ref %q is no URI", shorten(ref.text))
	}
	uri = ref.base.ResolveReference(uri)
	fragment := uri.Fragment
	uri.Fragment = ""
	resource, ok := r.resources[uri.String()]
	if !ok {
		return nil, fmt.Errorf("its $ref %q leads out of the schema: other documents are never fetched, so copy it into $defs", shorten(ref.text))
	}
	if fragment != "" && !strings.HasPrefix(fragment, "/") {
		if p := r.anchors[withFragment(uri, fragment)]; p != nil {
			return p, nil
		}
		return nil, fmt.Errorf("its $ref %q points to an anchor that is not there", shorten(ref.text))
	}
	node := any(resource)
	for token := range strings.SplitSeq(strings.TrimPrefix(fragment, "/"), "/") {
		if fragment == "" {
			break
		}
		token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
		switch v := node.(type) {
		case map[string]any:
			node = v[token]
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(v) {
				node = nil
				break
			}
			node = v[i]
		default:
			node = nil
		}
	}
	switch v := node.(type) {
	case map[string]any:
		if p := r.parts[reflect.ValueOf(v).Pointer()]; p != nil {
			return p, nil
		}
	case bool:
		return &part{}, nil
	}
	return nil, fmt.Errorf("its $ref %q points to nothing that is a schema", shorten(ref.text))
}

// clean takes out the names that differ from a keyword in case only: they are
// unknown keywords, but the library takes them for the known ones.
func (r *shapeReader) clean(object map[string]any) {
	for name := range object {
		for _, keyword := range keywords {
			if name != keyword && strings.EqualFold(name, keyword) {
				delete(object, name)
				r.cleaned = true
			}
		}
	}
}

// split puts what the library can check in the place of a pattern that Go does
// not have, where that can be said.
func (r *shapeReader) split(object map[string]any) {
	pattern, ok := object["pattern"].(string)
	if !ok {
		return
	}
	if _, err := regexp.Compile(pattern); err == nil {
		return
	}
	all, ok := splitPattern(pattern)
	if !ok {
		return // checkKeywords says so
	}
	list, ok := object["allOf"].([]any)
	if !ok && object["allOf"] != nil {
		return
	}
	delete(object, "pattern")
	object["allOf"] = append(slices.Clip(list), all.schema(pattern))
	r.cleaned = true
}

// keywords are those the library knows.
//
//nolint:gochecknoglobals // a table
var keywords = []string{
	"$id", "$schema", "$ref", "$comment", "$defs", "definitions", "$anchor", "$dynamicAnchor", "$dynamicRef", "$vocabulary",
	"title", "description", "default", "deprecated", "readOnly", "writeOnly", "examples", "type", "enum", "const",
	"multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern",
	"prefixItems", "items", "minItems", "maxItems", "additionalItems", "uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems",
	"minProperties", "maxProperties", "required", "dependentRequired", "properties", "patternProperties", "additionalProperties",
	"propertyNames", "unevaluatedProperties", "dependencies", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas",
	"contentEncoding", "contentMediaType", "contentSchema", "format",
}

// checkKeywords refuses values of keywords that the library takes and that mean
// nothing.
func checkKeywords(object map[string]any) error {
	types := []any{object["type"]}
	if list, ok := object["type"].([]any); ok {
		types = list
	}
	for _, t := range types {
		switch t {
		case nil, "object", "array", "string", "number", "integer", "boolean", "null":
		default:
			return fmt.Errorf("it has a type %s, which there is not", show(t))
		}
	}
	if m, ok := object["multipleOf"]; ok && compare(m, 0) <= 0 {
		return errors.New("multipleOf must be more than 0")
	}
	var patterns []string
	if p, ok := object["pattern"].(string); ok { // one that was not taken apart
		patterns = append(patterns, p)
	}
	if properties, ok := object["patternProperties"].(map[string]any); ok {
		patterns = append(patterns, slices.Collect(maps.Keys(properties))...)
	}
	for _, p := range patterns {
		if _, err := regexp.Compile(p); err != nil {
			return fmt.Errorf("its pattern %s cannot be used here: %w", quote(p), err)
		}
	}
	return nil
}
