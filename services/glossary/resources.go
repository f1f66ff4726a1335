package glossary

import (
	"context"
	"strings"

	"github.com/millrace/millrace/services/glossary/folder"
	"github.com/millrace/millrace/services/glossary/library"
	"github.com/millrace/millrace/worker"
)

// The URIs of documents. A language other than the default one of a term is
// asked for with a query, so that term://{slug} stays the plain form.
const (
	termScheme = "term://"
	noteScheme = "memo://notes/"
	langQuery  = "?lang="
	markdown   = "text/markdown"
)

// maxListed is how many terms are listed as resources: a longer list would
// only fill the context of a model. The templates reach all terms.
const maxListed = 500

// termURI returns the shortest URI that is read as this text of a term.
func termURI(view *library.View, slug, lang string) string {
	if view.Languages(folder.Term, slug)[0] == lang {
		return termScheme + slug
	}
	return termScheme + slug + langQuery + lang
}

// resources keeps the resources of the worker equal to the library.
type resources struct {
	library *library.Library
	worker  *worker.Worker
	// listed are the resources that were added. It belongs to the owner of the
	// library, which calls update.
	listed map[string]listing
}

// listing is what a list shows of a resource; it is comparable.
type listing struct{ uri, name, title, description string }

func newResources(l *library.Library, w *worker.Worker) *resources {
	r := &resources{library: l, worker: w, listed: map[string]listing{}}
	w.AddResourceTemplate(worker.ResourceTemplate{
		URITemplate: termScheme + "{slug}",
		Name:        "term",
		Title:       "Term",
		Description: "A term of the glossary, in English if there is an English text.",
		MIMEType:    markdown,
	}, r.read)
	w.AddResourceTemplate(worker.ResourceTemplate{
		URITemplate: termScheme + "{slug}" + langQuery + "{lang}",
		Name:        "term-in-language",
		Title:       "Term in a language",
		Description: "A term of the glossary in the language en or pl.",
		MIMEType:    markdown,
	}, r.read)
	w.AddResourceTemplate(worker.ResourceTemplate{
		URITemplate: noteScheme + "{name}",
		Name:        "note",
		Title:       "Note",
		Description: "A note that belongs to the glossary.",
		MIMEType:    markdown,
	}, r.read)
	return r
}

// update lists what the view has and unlists what it has not.
func (r *resources) update(view *library.View) {
	wanted := map[string]listing{}
	for _, slug := range view.Notes() {
		entry, _ := view.Entry(folder.Note, slug, "")
		uri := noteScheme + slug
		wanted[uri] = listing{uri, slug, entry.Title, "A note (" + entry.Lang + ")."}
	}
	terms := view.Terms()
	for _, slug := range terms[:min(len(terms), maxListed)] {
		entry, _ := view.Entry(folder.Term, slug, "")
		uri := termScheme + slug
		languages := strings.Join(view.Languages(folder.Term, slug), ", ")
		wanted[uri] = listing{uri, slug, entry.Title, "A term of the glossary (" + languages + ")."}
	}
	for uri := range r.listed {
		if _, kept := wanted[uri]; !kept {
			r.worker.RemoveResource(uri)
		}
	}
	for uri, entry := range wanted {
		if r.listed[uri] != entry {
			r.worker.AddResource(worker.Resource{
				URI:         uri,
				Name:        entry.name,
				Title:       entry.title,
				Description: entry.description,
				MIMEType:    markdown,
			}, r.read)
		}
	}
	r.listed = wanted
}

// read serves listed resources and templates alike: the URI says it all.
func (r *resources) read(_ context.Context, _ *worker.Call, req worker.ReadRequest) (*worker.Contents, error) {
	view := r.library.View()
	var entry folder.Entry
	var ok bool
	if name, isNote := strings.CutPrefix(req.URI, noteScheme); isNote {
		entry, ok = view.Entry(folder.Note, name, "")
	} else if name, isTerm := strings.CutPrefix(req.URI, termScheme); isTerm {
		slug, lang, named := strings.Cut(name, langQuery)
		ok = !named || lang != ""
		if ok {
			entry, ok = view.Entry(folder.Term, slug, lang)
		}
	}
	if !ok {
		return nil, worker.ErrResourceNotFound
	}
	contents := worker.TextContents(markdown, page(entry))
	// Everybody gets the same; but no TTL, for an edit shows within a second.
	contents.Public = true
	return contents, nil
}

// page returns a document as Markdown for people and models.
func page(entry folder.Entry) string {
	var b strings.Builder
	if !strings.HasPrefix(entry.Body, "# ") { // notes may bring their own heading
		b.WriteString("# " + entry.Title + "\n\n")
	}
	b.WriteString(entry.Body + "\n")
	label := labels(entry.Lang)
	var footer []string
	if len(entry.Aliases) > 0 && entry.Kind == folder.Term {
		footer = append(footer, label.aliases+strings.Join(entry.Aliases, ", "))
	}
	if len(entry.Related) > 0 {
		footer = append(footer, label.related+strings.Join(entry.Related, ", "))
	}
	if entry.Source != "" {
		footer = append(footer, label.source+entry.Source)
	}
	if len(footer) > 0 {
		b.WriteString("\n- " + strings.Join(footer, "\n- ") + "\n")
	}
	return b.String()
}

// label holds the words of a page that are not in the files.
type label struct{ aliases, related, source string }

func labels(lang string) label {
	if lang == folder.Polish {
		return label{"Inaczej: ", "Zobacz też: ", "Źródło: "}
	}
	return label{"Also: ", "See also: ", "Source: "}
}
