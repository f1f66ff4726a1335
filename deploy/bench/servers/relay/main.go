// Command relay is the limit that Millrace is compared with: requests that are
// carried from HTTP over NATS to a worker, and nothing else. The body is not
// looked at, the answer is fixed. Its roles are
//
//	relay worker -nats URL    answers
//	relay edge -nats URL      takes requests
//	relay up                  both, and NATS, in one process
//	relay fixed               answers requests itself, without NATS
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/deploy/bench/servers/payload"
	"github.com/millrace/millrace/proto/localnats"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	if len(os.Args) < 2 {
		return errors.New("which role?")
	}
	role := os.Args[1]
	flags := flag.NewFlagSet(role, flag.ContinueOnError)
	url := flags.String("nats", "", "where NATS is")
	if err := flags.Parse(os.Args[2:]); err != nil {
		return err
	}
	switch role {
	case "fixed":
		return payload.Serve(fixed())
	case "worker":
		conn, err := nats.Connect(*url)
		if err != nil {
			return err
		}
		if err := answer(conn); err != nil {
			return err
		}
		if err := payload.Announce(""); err != nil {
			return err
		}
		select {} // until it is ended
	case "edge":
		conn, err := nats.Connect(*url)
		if err != nil {
			return err
		}
		return payload.Serve(&edge{conn})
	case "up":
		server, err := localnats.Start(localnats.Config{})
		if err != nil {
			return err
		}
		var conns [2]*nats.Conn
		for i := range conns {
			if conns[i], err = nats.Connect("", nats.InProcessServer(server)); err != nil {
				return err
			}
		}
		if err := answer(conns[0]); err != nil {
			return err
		}
		return payload.Serve(&edge{conns[1]})
	}
	return fmt.Errorf("there is no role %q", role)
}

// subject is where workers take requests of a kind.
func subject(kind string) string { return "relay." + kind }

// answer answers what comes over a connection.
func answer(conn *nats.Conn) error {
	for kind, answer := range payload.Fixed() {
		if _, err := conn.QueueSubscribe(subject(kind), "workers", func(m *nats.Msg) {
			_ = m.Respond(answer) // the client sees that none comes
		}); err != nil {
			return err
		}
	}
	// Each report is a message of its own, sent at once.
	events := events()
	if _, err := conn.QueueSubscribe(subject(payload.Count), "workers", func(m *nats.Msg) {
		for _, event := range events {
			_ = m.Respond(event) // as above
		}
	}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return conn.FlushWithContext(ctx)
}

// events are those of a call with progress.
func events() [][]byte {
	var events [][]byte
	for i := range payload.Steps {
		events = append(events, payload.Event(payload.Progress(i+1)))
	}
	return append(events, payload.Event(payload.Counted()))
}

// patience is how long an answer may take.
const patience = 10 * time.Second

// edge takes requests.
type edge struct{ conn *nats.Conn }

func (e *edge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	kind := path.Base(r.URL.Path)
	if kind == payload.Count {
		e.stream(ctx, w, body)
		return
	}
	answer, err := e.conn.RequestWithContext(ctx, subject(kind), body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	send(w, answer.Data)
}

// stream passes events on as they come.
func (e *edge) stream(ctx context.Context, w http.ResponseWriter, body []byte) {
	inbox := e.conn.NewInbox()
	sub, err := e.conn.SubscribeSync(inbox)
	if err == nil {
		defer sub.Unsubscribe() //nolint:errcheck // the connection is gone then
		err = e.conn.PublishRequest(subject(payload.Count), inbox, body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	flusher := begin(w)
	for range payload.Steps + 1 {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return // the client misses events
		}
		if err := write(w, flusher, m.Data); err != nil {
			return
		}
	}
}

// fixed answers without asking anybody.
func fixed() http.Handler {
	answers, events := payload.Fixed(), events()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet { // an idle stream
			_ = write(w, begin(w), nil) // it is only held open
			<-r.Context().Done()
			return
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		kind := path.Base(r.URL.Path)
		if kind != payload.Count {
			send(w, answers[kind])
			return
		}
		flusher := begin(w)
		for _, event := range events {
			if err := write(w, flusher, event); err != nil {
				return
			}
		}
	})
}

func send(w http.ResponseWriter, answer []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	_, _ = w.Write(answer) //nolint:gosec // fixed; the client sees when it is short
}

func begin(w http.ResponseWriter) *http.ResponseController {
	w.Header().Set("Content-Type", "text/event-stream")
	return http.NewResponseController(w)
}

func write(w io.Writer, flusher *http.ResponseController, event []byte) error {
	if _, err := w.Write(event); err != nil {
		return err
	}
	return flusher.Flush()
}
