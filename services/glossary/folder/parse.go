package folder

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Kind tells terms and notes apart.
type Kind int

// The kinds of documents.
const (
	Term Kind = iota
	Note
)

// Languages a document can be written in.
const (
	English = "en"
	Polish  = "pl"
)

// Document is the content of one file. It is never changed after Parse.
type Document struct {
	Kind  Kind
	Slug  string
	Title string
	// Lang is English or Polish.
	Lang    string
	Aliases []string
	// Related holds slugs of terms; Resolve tells which of them exist.
	Related []string
	// Source names where the facts can be checked; notes may lack it.
	Source string
	// Body is Markdown without the front matter and surrounding blank lines.
	Body string

	slugLine     int
	relatedLines []int
}

// maxSlug keeps slugs usable in URIs and messages.
const maxSlug = 80

// byteOrderMark is what some editors put before UTF-8.
const byteOrderMark = "\xef\xbb\xbf"

// IsSlug reports whether s can be a slug: lower-case ASCII words and digits
// joined by single hyphens, at most 80 bytes.
func IsSlug(s string) bool {
	if len(s) > maxSlug {
		return false
	}
	for word := range strings.SplitSeq(s, "-") {
		if word == "" || strings.Trim(word, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
			return false
		}
	}
	return true
}

// Parse reads the content of the file called name (relative, with slashes). It
// returns either a document or all problems found.
func Parse(name string, data []byte) (*Document, []Problem) {
	p := &parser{name: name, document: &Document{}}
	if strings.HasPrefix(name, "notes/") {
		p.document.Kind = Note
	}
	p.parse(bytes.TrimPrefix(data, []byte(byteOrderMark)))
	if len(p.problems) > 0 {
		slices.SortStableFunc(p.problems, func(a, b Problem) int { return a.Line - b.Line })
		return nil, p.problems
	}
	return p.document, nil
}

type parser struct {
	name     string
	document *Document
	problems []Problem
}

func (p *parser) fail(line int, format string, args ...any) {
	p.problems = append(p.problems, Problem{p.name, line, fmt.Sprintf(format, args...)})
}

func (p *parser) parse(data []byte) {
	if line, ok := invalidLine(data); ok {
		p.fail(line, "is not valid UTF-8")
		return
	}
	text := strings.ReplaceAll(string(data), "\r\n", "\n")
	header, body, end, ok := p.split(text)
	if !ok {
		return
	}
	p.frontMatter(header, end)
	p.document.Body = strings.Trim(body, "\n\t ")
	if p.document.Body == "" {
		p.fail(end, "has no text after the front matter")
	}
}

// invalidLine finds the first line that is not UTF-8.
func invalidLine(data []byte) (line int, found bool) {
	for line = 1; len(data) > 0; line++ {
		head, tail, _ := bytes.Cut(data, []byte("\n"))
		if !utf8.Valid(head) {
			return line, true
		}
		data = tail
	}
	return 0, false
}

// split returns the YAML between the two lines "---", the rest, and the number
// of the closing line.
func (p *parser) split(text string) (header, body string, end int, ok bool) {
	first, rest, _ := strings.Cut(text, "\n")
	if strings.TrimRight(first, " \t") != "---" {
		p.fail(1, `has no front matter: the first line must be "---"`)
		return "", "", 0, false
	}
	for offset, line := 0, 2; offset < len(rest); line++ {
		length := strings.IndexByte(rest[offset:], '\n') + 1
		if length == 0 {
			length = len(rest) - offset
		}
		if strings.TrimRight(rest[offset:offset+length], " \t\n") == "---" {
			return rest[:offset], rest[offset+length:], line, true
		}
		offset += length
	}
	p.fail(1, `the front matter is never closed: a second line "---" is missing`)
	return "", "", 0, false
}

// frontMatter reads the fields by hand from the YAML nodes, because only nodes
// know their lines, and decoding into a struct would accept a number as a title.
func (p *parser) frontMatter(header string, end int) {
	var root, more yaml.Node
	decoder := yaml.NewDecoder(strings.NewReader(header))
	if err := decoder.Decode(&root); err != nil && !errors.Is(err, io.EOF) {
		p.yamlError(err)
		return
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		p.fail(2, "the front matter goes on after the end of its YAML document")
		return
	}
	if len(root.Content) != 1 || root.Content[0].Kind != yaml.MappingNode {
		p.fail(2, "the front matter must be a mapping of fields such as slug, title and lang")
		return
	}
	// Lines of the YAML text begin one line below the opening "---".
	seen := map[string]bool{}
	fields := root.Content[0].Content
	for i := 0; i+1 < len(fields); i += 2 {
		key, value := fields[i], fields[i+1]
		if seen[key.Value] {
			p.fail(key.Line+1, "the field %q is given twice", key.Value)
			continue
		}
		seen[key.Value] = true
		p.field(key, value)
	}
	required := []string{"slug", "title", "lang"}
	if p.document.Kind == Term {
		required = append(required, "source")
	}
	for _, name := range required {
		if !seen[name] {
			p.fail(end, "the field %q is missing", name)
		}
	}
}

// yamlError reports err at the line it names. The library has it as text only,
// and counts from 0 in the errors of its parser, which all begin alike, but from
// 1 in those of its scanner.
func (p *parser) yamlError(err error) {
	message, line := strings.TrimPrefix(err.Error(), "yaml: "), 1
	if rest, ok := strings.CutPrefix(message, "line "); ok {
		number, text, _ := strings.Cut(rest, ": ")
		if n, err := strconv.Atoi(number); err == nil {
			line, message = n, text
		}
		if strings.HasPrefix(message, "did not find expected") {
			line++
		}
	}
	p.fail(line+1, "the front matter is not valid YAML: %s", message)
}

func (p *parser) field(key, value *yaml.Node) {
	doc := p.document
	switch key.Value {
	case "slug":
		doc.slugLine = key.Line + 1
		doc.Slug = p.text(key, value)
		if doc.Slug != "" && !IsSlug(doc.Slug) {
			p.fail(value.Line+1, "the slug %q must be lower-case letters a to z and digits, in words joined by single hyphens, %d bytes at most", doc.Slug, maxSlug)
		}
	case "title":
		doc.Title = p.text(key, value)
	case "lang":
		doc.Lang = p.text(key, value)
		if doc.Lang != "" && doc.Lang != English && doc.Lang != Polish {
			p.fail(value.Line+1, "the lang %q must be %q or %q", doc.Lang, English, Polish)
		}
	case "source":
		doc.Source = p.text(key, value)
	case "aliases":
		doc.Aliases, _ = p.list(key, value)
	case "related":
		doc.Related, doc.relatedLines = p.list(key, value)
	default:
		p.fail(key.Line+1, "the field %q is unknown: the fields are slug, title, lang, aliases, related and source", key.Value)
	}
}

// text returns a non-empty single line, or "" after a report.
func (p *parser) text(key, value *yaml.Node) string {
	if value.Kind == yaml.ScalarNode && value.Tag == "!!null" {
		p.fail(value.Line+1, "%q is empty", key.Value)
		return ""
	}
	if value.Kind != yaml.ScalarNode || value.Tag != "!!str" {
		p.fail(value.Line+1, "%q must be a text; put it in quotes if YAML takes it for something else", key.Value)
		return ""
	}
	text := strings.TrimSpace(value.Value)
	switch {
	case text == "":
		p.fail(value.Line+1, "%q is empty", key.Value)
	case strings.ContainsAny(text, "\n\r"):
		p.fail(value.Line+1, "%q must be one line", key.Value)
		return ""
	}
	return text
}

// list returns the non-empty texts of a list and their lines in the file.
func (p *parser) list(key, value *yaml.Node) (texts []string, lines []int) {
	if value.Kind != yaml.SequenceNode {
		p.fail(value.Line+1, "%q must be a list, for example [one, two]", key.Value)
		return nil, nil
	}
	for _, item := range value.Content {
		text := p.text(key, item)
		if slices.Contains(texts, text) {
			p.fail(item.Line+1, "%q is listed twice in %q", text, key.Value)
			continue
		}
		texts, lines = append(texts, text), append(lines, item.Line+1)
	}
	return texts, lines
}
