package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// URLElicitation is a page that a user is to visit.
type URLElicitation struct {
	// URL of the page, absolute. It must not carry a secret: clients and models
	// may see it, and whoever opens it may be somebody else than the user, so
	// the page has to find out who that is.
	URL string
	// Message tells the user why.
	Message string
	// ID names the visit for [Worker.ElicitationComplete]: not guessable, and
	// used for one visit only. Empty: nobody will be told that it is over.
	ID string
}

// URLElicitationRequiredError says that the user has to visit pages before the
// call can succeed, to sign in somewhere or to pay, say. A handler that returns
// it ends the call, having done nothing; when it is called again, it looks
// whether the visit is over (what happened on the page does not pass through
// the client), and goes on or returns the error again. It is for what the
// worker remembers by the caller; for a question within a call there is
// [ElicitURL].
//
// What the client sees depends on what it speaks: the error of the protocol
// for this, after which the client makes the call again by itself or when its
// user says so; or the same as for a question, so that the call goes on in a
// further round. If the user declines there, the handler is run again, and
// when it returns the error once more, the call fails, as for a model to read,
// and nothing is asked. A client that cannot open pages gets what it gets for
// a [*MissingCapabilityError].
type URLElicitationRequiredError struct {
	// Message for the client; empty: a standard text.
	Message string
	// Pages to visit, at least one.
	Pages []URLElicitation
}

// Error implements error.
func (e *URLElicitationRequiredError) Error() string {
	if e.Message != "" {
		return e.Message
	}
	return "the user has to visit a page first"
}

// topicEdge is what all edges hear.
const topicEdge bus.Topic = "edge"

// pageKey is the key of a page among the questions of a round. Keys of authors
// do not look like it.
func pageKey(i int) string { return fmt.Sprintf("millrace/page/%d", i+1) }

// declined makes another error of one that asks for pages, if the user has just
// declined to visit them: who says no is not asked the same again.
func (c *Call) declined(err error) error {
	required, ok := errors.AsType[*URLElicitationRequiredError](err)
	if !ok {
		return err
	}
	for i := range required.Pages {
		action := Answers{codec: c.w.codec, raw: c.fresh()}.Elicited(pageKey(i)).Action
		if action != ActionDecline && action != ActionCancel {
			continue
		}
		text := "the user did not agree to visit the page that is needed first: " + required.Error()
		if c.method == MethodCallTool {
			return errors.New(text)
		}
		return &ProtocolError{Code: internalCode, Message: text}
	}
	return err
}

// fresh are the answers that came with this round.
func (c *Call) fresh() map[string]json.RawMessage {
	all := map[string]json.RawMessage{}
	for key, raw := range c.resume.GetResponses() {
		all[key] = raw
	}
	return all
}

func needsPages(err error) bool {
	_, ok := errors.AsType[*URLElicitationRequiredError](err)
	return ok
}

// encode writes the outcome. The call has ended, so nothing else uses it any
// more.
func (e *URLElicitationRequiredError) encode(c *Call) (*millracev1.Error, error) {
	if len(e.Pages) == 0 {
		return nil, internalf("a URLElicitationRequiredError names no page")
	}
	requests := map[string][]byte{}
	for i, page := range e.Pages {
		if u, err := url.Parse(page.URL); err != nil || u.Scheme == "" {
			return nil, internalf("page %d of a URLElicitationRequiredError has no absolute URL", i+1)
		}
		message := page.Message
		if message == "" {
			message = e.Error()
		}
		q := ElicitURL(pageKey(i), message, page.URL, page.ID)
		if q.err != nil {
			return nil, internalf("page %d of a URLElicitationRequiredError: %v", i+1, q.err)
		}
		requests[q.key] = q.encode()
	}
	input, err := c.nextRound(requests)
	if err != nil {
		return nil, err
	}
	return &millracev1.Error{
		Kind: millracev1.Error_KIND_URL_ELICITATION_REQUIRED, Message: validText(e.Error()), Input: input,
	}, nil
}

// ElicitationComplete tells a client that what its user was sent to a page for
// is over, where the client's revision of the protocol has that and a stream
// of it is open; then it may make the call again by itself. scope is the
// [Call.Scope] of the call that named the page, and id the one it gave it: no
// other client is told. Nothing is kept for a client that comes later, so tools
// must not depend on it. An error means that nobody was told; a scope that is
// empty, as where the protocol has no such notion, is none.
func (w *Worker) ElicitationComplete(scope, id string) error {
	if id == "" {
		return errors.New("worker: an elicitation without an ID cannot be completed")
	}
	if scope == "" {
		return nil
	}
	news, err := proto.Marshal(&millracev1.Announcement{News: &millracev1.Announcement_ElicitationComplete{
		ElicitationComplete: &millracev1.ElicitationComplete{Scope: scope, ElicitationId: validText(id)},
	}})
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	w.mu.RLock()
	server := w.server
	w.mu.RUnlock()
	if server == nil {
		return errors.New("worker: an elicitation is completed while Run runs")
	}
	return server.Announce(topicEdge, news)
}
