package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/yosida95/uritemplate/v3"

	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// Resource describes a listed resource. URI and Name are required.
type Resource struct {
	// URI of the resource: at most 8 KiB, without control characters. It should
	// be absolute and percent-encoded (RFC 3986), as some clients demand, but it
	// need not: URIs are compared byte for byte and never normalised, and the
	// client must send exactly this one.
	URI string
	// Name is the name for programs, Title the one for people.
	Name, Title string
	// Description tells a model what is there.
	Description string
	// MIMEType of the contents, if it is always the same.
	MIMEType string
	// Size of the contents in bytes, before base64; nil when not known.
	Size *int64
	// Annotations is a JSON object with audience, priority or lastModified; see
	// [ContentAnnotations.JSON].
	Annotations json.RawMessage
	// Icons of the resource.
	Icons []Icon
	// Meta is the _meta of the definition, a JSON object.
	Meta json.RawMessage
	// Scopes that an authenticated caller must have been granted; see
	// [Tool].Scopes. A URI that is hidden so is not read through a template
	// that matches it too.
	Scopes []string
}

// ResourceTemplate describes resources that share a form of URI. URITemplate
// and Name are required.
type ResourceTemplate struct {
	// URITemplate is a URI template of RFC 6570, such as "term://{slug}". A
	// variable matches what it could expand to, so {slug} takes no "/" but
	// {+path} does. A URI of more than 8 KiB matches no template.
	URITemplate string
	// Name is the name for programs, Title the one for people.
	Name, Title string
	// Description tells a model what is there.
	Description string
	// MIMEType of the contents, if it is the same for all.
	MIMEType string
	// Annotations is a JSON object with audience, priority or lastModified; see
	// [ContentAnnotations.JSON].
	Annotations json.RawMessage
	// Icons of the resources.
	Icons []Icon
	// Meta is the _meta of the definition, a JSON object.
	Meta json.RawMessage
	// Scopes that an authenticated caller must have been granted; see
	// [Tool].Scopes. They guard every URI for which the edge chooses this
	// template, even one that a less specific template would match as well.
	Scopes []string
	// Complete suggests values of variables of the template, by their names.
	Complete map[string]CompleteFunc
}

// ReadRequest asks for the contents of a resource.
type ReadRequest struct {
	// URI as the client sent it, byte for byte.
	URI string
	// Vars are the variables of the template that matched, percent-decoded;
	// the items of a list are joined by commas. A variable the URI does not
	// have is not in the map. Nil for a listed resource.
	Vars map[string]string
}

// Contents is what was read.
type Contents struct {
	// Items is usually one; a resource that is a folder may have several.
	Items []ResourceContents
	// Meta is _meta, a JSON object; nil leaves it out.
	Meta json.RawMessage
	// TTL is how long a client may keep the contents; 0: not at all.
	TTL time.Duration
	// Public says that the contents are the same for every caller, so that a
	// shared cache may keep them.
	Public bool
}

// ResourceContents is one text or one piece of binary data.
type ResourceContents struct {
	// URI of this piece; empty: the URI of the request.
	URI string
	// MIMEType of this piece; empty: the one of the resource or template.
	MIMEType string
	// Text is the contents, unless Blob is not nil.
	Text string
	// Blob is binary contents; an empty slice that is not nil is an empty blob.
	Blob []byte
	// Meta is the _meta of this piece, a JSON object.
	Meta json.RawMessage
}

// TextContents returns contents of one text.
func TextContents(mimeType, text string) *Contents {
	return &Contents{Items: []ResourceContents{{MIMEType: mimeType, Text: text}}}
}

// BlobContents returns contents of one piece of binary data.
func BlobContents(mimeType string, data []byte) *Contents {
	if data == nil {
		data = []byte{}
	}
	return &Contents{Items: []ResourceContents{{MIMEType: mimeType, Blob: data}}}
}

// ReadFunc reads a resource. It is called by many goroutines at once; see
// [AddTool] for its context. [ErrResourceNotFound] says there is none; a
// [*ProtocolError] is shown to the client; any other error is an internal
// error, which only the log explains.
type ReadFunc func(ctx context.Context, call *Call, req ReadRequest) (*Contents, error)

type resource struct {
	entry    *millracev1.Resource
	mimeType string
	read     ReadFunc
}

type template struct {
	entry    *millracev1.ResourceTemplate
	mimeType string
	match    *uritemplate.Template
	read     ReadFunc
	complete map[string]CompleteFunc // nil where a variable has none
}

// AddResource adds a listed resource, or replaces the one with the same URI.
// While the worker runs, the change is announced at once; a mistake is logged
// then, and the resource is not added.
func (w *Worker) AddResource(r Resource, read ReadFunc) {
	w.register(func() error {
		added, err := r.build(read)
		if err != nil {
			return fmt.Errorf("worker: resource %q: %w", r.URI, err)
		}
		w.resources[r.URI] = added
		return nil
	})
}

// RemoveResource removes a listed resource; a URI that is not listed is not an
// error. While the worker runs, the change is announced at once; calls that
// read the resource go on.
func (w *Worker) RemoveResource(uri string) { remove(w, w.resources, uri) }

// ResourceUpdated tells all who have subscribed to the resource that its
// contents have changed, so that they read it again. The resource need not be
// listed: it may be one of a template. It never waits, and does nothing unless
// the worker runs; who is not connected at that moment does not hear of it.
func (w *Worker) ResourceUpdated(uri string) {
	w.mu.RLock()
	server := w.server
	w.mu.RUnlock()
	if server == nil {
		return
	}
	if err := server.Broadcast(bus.TopicResourceUpdated, uri); err != nil {
		w.log.Warn("an update of a resource was not announced", "pool", w.cfg.Pool, "resource", uri, "error", err)
	}
}

// AddResourceTemplate adds a template. Where a URI is a listed resource too,
// that one is read; where it matches several templates, the edge chooses.
func (w *Worker) AddResourceTemplate(t ResourceTemplate, read ReadFunc) {
	w.register(func() error {
		added, err := t.build(read)
		if err == nil && w.templates[t.URITemplate] != nil {
			err = errors.New("this template was added before")
		}
		if err != nil {
			return fmt.Errorf("worker: resource template %q: %w", t.URITemplate, err)
		}
		w.templates[t.URITemplate] = added
		return nil
	})
}

// RemoveResourceTemplate removes a template; one that is not there is not an
// error. While the worker runs, the change is announced at once; calls that
// are running go on.
func (w *Worker) RemoveResourceTemplate(uriTemplate string) { remove(w, w.templates, uriTemplate) }

func (r Resource) check() error {
	switch {
	case r.URI == "":
		return errors.New("the URI is empty")
	case len(r.URI) > longestURI:
		return fmt.Errorf("the URI has %d bytes, and %d at most may be", len(r.URI), longestURI)
	case !utf8.ValidString(r.URI) || strings.ContainsFunc(r.URI, unicode.IsControl):
		return errors.New("the URI is no text without control characters")
	case r.Name == "":
		return errors.New("the name is empty")
	case r.Size != nil && *r.Size < 0:
		return errors.New("a negative Size")
	}
	return nil
}

// write adds the members that a listed resource and a link share.
func (r Resource) write(o *object) {
	o.value("uri", r.URI)
	o.value("name", r.Name)
	o.text("title", r.Title)
	o.text("description", r.Description)
	o.text("mimeType", r.MIMEType)
	if r.Size != nil {
		o.value("size", *r.Size)
	}
	encodeRawObject(o, "annotations", r.Annotations)
	encodeIcons(o, r.Icons)
	encodeMeta(o, r.Meta)
}

func (r Resource) build(read ReadFunc) (*resource, error) {
	scopes, err := scopesOf(r.Scopes)
	err = errors.Join(r.check(), err)
	if read == nil {
		err = errors.Join(err, errors.New("the handler is nil"))
	}
	if err != nil {
		return nil, err
	}
	var o object
	r.write(&o)
	definition, err := o.bytes()
	if err != nil {
		return nil, err
	}
	return &resource{
		entry:    &millracev1.Resource{Uri: r.URI, Definition: definition, Scopes: scopes},
		mimeType: r.MIMEType,
		read:     read,
	}, nil
}

func (t ResourceTemplate) build(read ReadFunc) (*template, error) {
	var mistakes []error
	scopes, err := scopesOf(t.Scopes)
	if err != nil {
		mistakes = append(mistakes, err)
	}
	match, err := uritemplate.New(t.URITemplate)
	if err != nil {
		mistakes = append(mistakes, errors.New("it is no URI template of RFC 6570"))
	}
	if t.URITemplate == "" {
		mistakes = append(mistakes, errors.New("URITemplate is empty"))
	}
	if !utf8.ValidString(t.URITemplate) {
		mistakes = append(mistakes, errors.New("URITemplate is no UTF-8"))
	}
	if t.Name == "" {
		mistakes = append(mistakes, errors.New("the name is empty"))
	}
	if read == nil {
		mistakes = append(mistakes, errors.New("the handler is nil"))
	}
	complete := map[string]CompleteFunc{}
	if match != nil {
		for _, name := range match.Varnames() {
			complete[name] = t.Complete[name]
		}
	}
	var completed []string
	for _, name := range slices.Sorted(maps.Keys(t.Complete)) {
		if _, ok := complete[name]; !ok {
			mistakes = append(mistakes, fmt.Errorf("Complete has %q, which is no variable of the template", name))
		}
		if t.Complete[name] != nil {
			completed = append(completed, name)
		}
	}
	if err := errors.Join(mistakes...); err != nil {
		return nil, err
	}
	var o object
	o.value("uriTemplate", t.URITemplate)
	o.value("name", t.Name)
	o.text("title", t.Title)
	o.text("description", t.Description)
	o.text("mimeType", t.MIMEType)
	encodeRawObject(&o, "annotations", t.Annotations)
	encodeIcons(&o, t.Icons)
	encodeMeta(&o, t.Meta)
	definition, err := o.bytes()
	if err != nil {
		return nil, err
	}
	return &template{
		entry:    &millracev1.ResourceTemplate{UriTemplate: t.URITemplate, Definition: definition, Completed: completed, Scopes: scopes},
		mimeType: t.MIMEType,
		match:    match,
		read:     read,
		complete: complete,
	}, nil
}

// longestURI bounds the work of matching, which grows with the URI times the
// template.
const longestURI = 8 << 10

// vars matches uri; ok is false when it does not fit.
func (t *template) vars(uri string) (vars map[string]string, ok bool) {
	if len(uri) > longestURI {
		return nil, false
	}
	values := t.match.Match(uri)
	if values == nil {
		return nil, false
	}
	vars = make(map[string]string, len(values))
	for name, value := range values {
		name, _, _ = strings.Cut(name, ":") // {name:3} is called "name:3"
		vars[name] = strings.Join(value.V, ",")
	}
	return vars, true
}

// encode writes the array of contents, with the URI and type of the request
// where an item has none of its own.
func (c *Contents) encode(uri, mimeType string) (*millracev1.ResourceResult, error) {
	if c == nil {
		return nil, internalf("the handler returned neither contents nor an error")
	}
	out := []byte{'['}
	for i, item := range c.Items {
		raw, err := item.encode(uri, mimeType)
		if err != nil {
			return nil, internalf("the contents cannot be written: %v", err)
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, raw...)
	}
	if err := checkObject("_meta", c.Meta); err != nil {
		return nil, internalf("the contents cannot be written: %v", err)
	}
	return &millracev1.ResourceResult{
		Contents: append(out, ']'),
		Meta:     c.Meta,
		TtlMs:    uint64(max(c.TTL, 0).Milliseconds()),
		Public:   c.Public,
	}, nil
}

func (c ResourceContents) encode(uri, mimeType string) ([]byte, error) {
	if c.URI != "" {
		uri = c.URI
	}
	if c.MIMEType != "" {
		mimeType = c.MIMEType
	}
	var o object
	o.value("uri", uri)
	o.text("mimeType", mimeType)
	if c.Blob != nil {
		o.value("blob", c.Blob)
	} else {
		o.value("text", c.Text)
	}
	encodeMeta(&o, c.Meta)
	return o.bytes()
}
