package bus

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
)

// Topic is a kind of news that instances broadcast to whoever listens.
type Topic string

// TopicResourceUpdated is the news that the contents of a resource have
// changed; the key is its URI.
const TopicResourceUpdated Topic = "res"

// pendingNews bounds how much news waits in this process for one listener. News
// says "look again": what is dropped past the bound is said by what waits.
const pendingNews = 1024

// Broadcast tells every client that listens for the news at this moment. It
// does not wait and nothing is kept for those who come later: an error means
// that nobody was told. The key may be any text; it does not become part of a
// subject.
func (s *Server) Broadcast(topic Topic, key string) error {
	if !validToken(string(topic)) {
		return fmt.Errorf("bus: topic %q is not a subject token", topic)
	}
	if err := s.conn.publish(s.conn.news(topic, key), "", []byte(key)); err != nil {
		return fmt.Errorf("bus: broadcast: %w", err)
	}
	return nil
}

// Listen calls heard for each broadcast of the topic and key, one after
// another on a goroutine of their own, until stop is called; heard is not
// called any more once a call that is running has returned. It needs no Run.
// While the connection is lost, news is lost too: [Client.Lost] and the
// watcher tell about that.
func (c *Client) Listen(topic Topic, key string, heard func()) (stop func(), err error) {
	if !validToken(string(topic)) {
		return nil, fmt.Errorf("bus: topic %q is not a subject token", topic)
	}
	if heard == nil {
		return nil, errors.New("bus: nobody listens")
	}
	sub, err := c.conn.nc.Subscribe(c.conn.news(topic, key), func(m *nats.Msg) {
		if string(m.Data) == key { // and not another key of the same hash
			heard()
		}
	})
	if err != nil {
		return nil, fmt.Errorf("bus: listen: %w", err)
	}
	if err := sub.SetPendingLimits(pendingNews, -1); err != nil {
		unsubscribe(sub)
		return nil, fmt.Errorf("bus: listen: %w", err)
	}
	return func() { unsubscribe(sub) }, nil
}

// Sync returns when the NATS server this client is connected to knows of all
// that the client listens to, or with the context's error. The context must
// have a deadline.
func (c *Client) Sync(ctx context.Context) error {
	if err := c.conn.nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("bus: sync: %w", err)
	}
	return nil
}

// news is the subject of a topic and key.
func (c *Conn) news(topic Topic, key string) string {
	hash := HashOf([]byte(key))
	return c.prefix + string(topic) + "." + hex.EncodeToString(hash[:])
}
