package auth

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/millrace/millrace/edge/exchange"
)

const (
	// minToken is the shortest token in characters: 96 bits in Base64.
	minToken = 16
	// maxFile keeps a wrong path from filling the memory.
	maxFile = 16 << 20
)

// entry is one token of a file. Only its digest is kept.
type entry struct {
	digest    [sha256.Size]byte
	principal exchange.Principal
	line      int
}

// parse reads a token file. It returns all faults at once, each with its line.
// No text of the file is ever part of an error: what stands in the wrong place
// may be a token.
func parse(data []byte) ([]entry, error) {
	var root, more yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	switch err := decoder.Decode(&root); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("line 1: the file is empty: write [] if nobody is to be let in")
	case err != nil:
		return nil, yamlError(err)
	}
	if err := decoder.Decode(&more); err == nil {
		return nil, fmt.Errorf("line %d: the file must hold one document", more.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, yamlError(err)
	}
	p := &parser{}
	list := root.Content[0]
	if list.Kind != yaml.SequenceNode {
		p.fault(list, "the file must be a list, one item a token")
	} else {
		for _, item := range list.Content {
			p.item(item)
		}
	}
	p.twice()
	if err := errors.Join(p.faults...); err != nil {
		return nil, err
	}
	return p.entries, nil
}

// yamlError keeps of the library's error only the line: the rest may quote the
// file.
func yamlError(err error) error {
	const what = "the YAML cannot be read: look for wrong indentation, a missing space after a colon, or missing quotes"
	if m := regexp.MustCompile(`line (\d+)`).FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("line %s: %s", m[1], what)
	}
	return errors.New(what)
}

type parser struct {
	entries []entry
	faults  []error
}

func (p *parser) fault(at *yaml.Node, text string) {
	p.faults = append(p.faults, errors.New("line "+strconv.Itoa(at.Line)+": "+text))
}

// members are what an item may have.
const members = "token or token_sha256, subject, issuer and scopes"

// item reads one token.
func (p *parser) item(item *yaml.Node) {
	if item.Kind != yaml.MappingNode {
		p.fault(item, "an item must have members: "+members)
		return
	}
	before := len(p.faults)
	e := entry{line: item.Line}
	seen := map[string]bool{}
	for pair := range slices.Chunk(item.Content, 2) {
		key, value := pair[0], pair[1]
		if key.Kind == yaml.ScalarNode && seen[key.Value] {
			p.fault(key, "a member occurs twice")
			continue
		}
		seen[key.Value] = true
		switch key.Value {
		case "token":
			token, ok := p.text(value, "token")
			switch {
			case !ok:
			case len(token) < minToken:
				p.fault(value, fmt.Sprintf("token has fewer than %d characters: make one with openssl rand -hex 32", minToken))
			case !wellFormed(token):
				p.fault(value, "token may have letters, digits and -._~+/ and = at its end, nothing else")
			default:
				e.digest = sha256.Sum256([]byte(token))
			}
		case "token_sha256":
			text, ok := p.text(value, "token_sha256")
			digest, err := hex.DecodeString(text)
			switch {
			case !ok:
			case err != nil || len(digest) != sha256.Size:
				p.fault(value, "token_sha256 must be 64 hexadecimal digits: the SHA-256 of the token without a line end")
			default:
				e.digest = [sha256.Size]byte(digest)
			}
		case "subject":
			if e.principal.Subject, _ = p.text(value, "subject"); value.Kind == yaml.ScalarNode && value.Value == "" {
				p.fault(value, "subject is empty")
			}
		case "issuer":
			e.principal.Issuer, _ = p.text(value, "issuer")
		case "scopes":
			e.principal.Scopes = p.scopes(value)
		default:
			p.fault(key, "an item has members that are not known: it has "+members)
		}
	}
	if seen["token"] == seen["token_sha256"] {
		p.fault(item, "an item must have either token or token_sha256")
	}
	if !seen["subject"] {
		p.fault(item, "an item has no subject: whose token is it?")
	}
	if len(p.faults) == before {
		p.entries = append(p.entries, e)
	}
}

// text reads a string. Numbers and the like are refused rather than read as
// text: 1e10 and 0x1f would not be what the author sees.
func (p *parser) text(value *yaml.Node, name string) (text string, ok bool) {
	if value.Kind != yaml.ScalarNode || value.Tag != "!!str" {
		p.fault(value, name+" must be a string: put it in quotes")
		return "", false
	}
	return value.Value, true
}

// scopes reads the list of scopes.
func (p *parser) scopes(value *yaml.Node) []string {
	if value.Kind != yaml.SequenceNode {
		p.fault(value, "scopes must be a list")
		return nil
	}
	var scopes []string
	for _, item := range value.Content {
		scope, ok := p.text(item, "a scope")
		if ok && !IsScope(scope) {
			p.fault(item, `a scope must be visible ASCII characters without space, " and \`)
		}
		scopes = append(scopes, scope)
	}
	return slices.Compact(slices.Sorted(slices.Values(scopes)))
}

// twice finds tokens that occur more than once: it would be left to chance whose
// they are.
func (p *parser) twice() {
	first := map[[sha256.Size]byte]int{}
	for _, e := range p.entries {
		if line, ok := first[e.digest]; ok {
			p.faults = append(p.faults, fmt.Errorf("line %d: the token is that of line %d again", e.line, line))
			continue
		}
		first[e.digest] = e.line
	}
}

// oneLine shows several faults in one line of the log.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
