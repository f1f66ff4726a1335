package edge

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/edge/seal"
	"github.com/millrace/millrace/edge/sse"
	"github.com/millrace/millrace/proto/bus"
)

// twin starts another edge of the deployment of s. What leaves it is checked
// together with what leaves s.
func (s *system) twin(cfg Config) (twin *system, conn *bus.Conn) {
	s.t.Helper()
	cfg.Logger = s.edge.log
	conn = s.conn("twin")
	e, err := New(conn, cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	run(s.t, "twin", func(ctx context.Context) error {
		if err := e.Run(ctx); err != nil && conn.Connected() {
			return err
		}
		return nil // as a killed one ends
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := e.WaitReady(ctx, "fixture"); err != nil {
		s.t.Fatal(err)
	}
	twin = &system{t: s.t, edge: e, wire: s.wire}
	twin.serveHTTP()
	return twin, conn
}

func sharedKeys() Config {
	return Config{Keys: []seal.Key{{ID: 1, Secret: []byte("0123456789abcdef")}}}
}

// TestHTTPSSEPostToAnyEdge: the GET is at one edge and each POST at the next one
// of three.
func TestHTTPSSEPostToAnyEdge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, sharedKeys())
		second, _ := s.twin(sharedKeys())
		third, _ := s.twin(sharedKeys())
		c := s.openSSE()
		turn := 0
		take := func(text string) (int, string) {
			turn++
			resp := []*system{second, third, s}[turn%3].postTo(c.endpoint, text)
			return resp.StatusCode, body(t, resp)
		}
		send := func(text string) {
			t.Helper()
			if status, reply := take(text); status != http.StatusAccepted || reply != "" {
				t.Fatalf("%.200s: %d %s", text, status, reply)
			}
		}
		// What comes after the handshake is read as it says, on every edge.
		send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"elicitation":{},"roots":{}}}}`)
		for i := range 3 {
			send(fmt.Sprintf(`{"jsonrpc":"2.0","id":"list-%d","method":"tools/list"}`, i))
		}
		got := c.waiting()
		if len(got) != 4 || !strings.Contains(got[0], `"2025-06-18"`) {
			t.Fatalf("after the handshake: %.500q", got)
		}
		for _, list := range got[1:] {
			if !strings.Contains(list, `"outputSchema"`) {
				t.Errorf("read as before the handshake: %.300s", list)
			}
		}
		// Asked, answered and cancelled anywhere.
		for range 3 {
			send(toolCall("1", `{"name":"ask"}`))
			id, _ := request(t, c.next(), "elicitation/create")
			send(`{"jsonrpc":"2.0","id":"` + id + `","result":{"action":"accept","content":{"name":"Ala"}}}`)
			id, _ = request(t, c.next(), "roots/list")
			send(`{"jsonrpc":"2.0","id":"` + id + `","result":{"roots":[]}}`)
			if got := c.next(); !strings.Contains(got, `"text":"Ala with 0 roots"`) {
				t.Errorf("result: %s", got)
			}
			before := s.ran.value()
			send(toolCall("2", `{"name":"hang"}`))
			time.Sleep(time.Second) // it runs: before that nobody would see its end
			send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
			time.Sleep(time.Second)
			if n := s.ran.value() - before; n != 1 {
				t.Errorf("%d handlers saw their context end, want 1", n)
			}
		}
		// Of any size, and refused alike.
		large := strings.Repeat("Q", 3<<19)
		want := sha256.Sum256([]byte(`{"x":"` + large + `"}`))
		for range 3 {
			send(toolCall("3", `{"name":"echo","arguments":{"x":"`+large+`"}}`))
			_, rest, _ := strings.Cut(c.next(), `"structuredContent":`)
			if got, _, _ := strings.Cut(rest, `}`); sha256.Sum256([]byte(got+"}")) != want {
				t.Errorf("another echo: %.100s", got)
			}
			malformed := `{"jsonrpc":"2.0","id":8,"method":"ping","params":[1]}`
			if status, reply := take(malformed); status != http.StatusBadRequest || c.next() != reply {
				t.Errorf("malformed: %d %s", status, reply)
			}
			if status, reply := take(`{"jsonrpc"`); status != http.StatusBadRequest || replyCode(t, reply) != -32700 {
				t.Errorf("malformed: %d %s", status, reply)
			}
		}
		if got := c.waiting(); len(got) != 0 {
			t.Errorf("then %q", got)
		}
		c.hangUp()
		time.Sleep(time.Second)
		for range 3 {
			if status, reply := take(toolCall("4", `{"name":"danger"}`)); status != http.StatusNotFound {
				t.Errorf("POST to a connection that has ended: %d %s", status, reply)
			}
		}
	})
}

func TestHTTPSSEManyConnectionsOverEdges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, sharedKeys())
		second, _ := s.twin(sharedKeys())
		edges := []*system{s, second}
		var running sync.WaitGroup
		for i := range 40 {
			c := edges[i%2].openSSE()
			running.Go(func() {
				for n := range 10 {
					nonce := fmt.Sprintf("%d-%d", i, n)
					resp := edges[(i/2+n)%2].postTo(c.endpoint, toolCall("1", `{"name":"echo","arguments":{"nonce":"`+nonce+`"}}`))
					if reply := body(t, resp); resp.StatusCode != http.StatusAccepted {
						t.Errorf("%d %s", resp.StatusCode, reply)
					}
					if got := c.next(); !strings.Contains(got, `{\"nonce\":\"`+nonce+`\"}`) {
						t.Errorf("the call %s got %s", nonce, got)
					}
				}
			})
		}
		running.Wait()
	})
}

func TestHTTPSSEEdgeThatIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, sharedKeys())
		second, conn := s.twin(sharedKeys())
		stranger, _ := s.twin(Config{}) // with a key of its own
		c := second.openSSE()
		post := func(edge *system) int {
			resp := edge.postTo(c.endpoint, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
			body(t, resp)
			return resp.StatusCode
		}
		if status := post(s); status != http.StatusAccepted {
			t.Errorf("POST at another edge: %d", status)
		}
		if got := c.next(); got != `{"jsonrpc":"2.0","id":1,"result":{}}` {
			t.Errorf("ping: %s", got)
		}
		if status := post(stranger); status != http.StatusNotFound {
			t.Errorf("POST at an edge with another key: %d", status)
		}
		conn.Close() // as if the process had been killed
		eventually(t, "NATS has noticed it", func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			_, err := s.edge.conn.NATS().RequestWithContext(ctx, "mr.main.i."+second.edge.client.ID()+".ping", nil)
			return errors.Is(err, nats.ErrNoResponders)
		})
		begun := time.Now()
		if status := post(s); status != http.StatusNotFound || time.Since(begun) > time.Second {
			t.Errorf("POST for an edge that is gone: %d after %v", status, time.Since(begun))
		}
	})
}

// TestHTTPSSEPostForAClientThatDoesNotRead: the edge that takes the POST waits
// no longer than edges wait for each other.
func TestHTTPSSEPostForAClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, sharedKeys())
		second, _ := s.twin(sharedKeys())
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		c := &sseClient{t: t, client: s.client}
		resp := c.do(ctx, http.MethodGet, "http://localhost/sse", "")
		defer resp.Body.Close()
		first, err := sse.NewReader(resp.Body, 0).Next()
		if err != nil {
			t.Fatal(err)
		}
		if c.endpoint, err = resp.Request.URL.Parse(string(first.Data)); err != nil {
			t.Fatal(err)
		}
		post := func() (int, string) {
			resp := second.postTo(c.endpoint, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{}}}`)
			body(t, resp)
			return resp.StatusCode, resp.Header.Get("Retry-After")
		}
		if status, _ := post(); status != http.StatusAccepted {
			t.Errorf("the first: %d", status)
		}
		begun := time.Now()
		if status, after := post(); status != http.StatusServiceUnavailable || after == "" || time.Since(begun) > 5*time.Second {
			t.Errorf("while the stream is full: %d after %v", status, time.Since(begun))
		}
		time.Sleep(time.Minute)
		if status, _ := post(); status != http.StatusNotFound {
			t.Errorf("after it was cut off: %d", status)
		}
	})
}
