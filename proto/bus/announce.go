package bus

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
)

// announcedBytes bounds what waits in this process for one that hears; what
// comes beyond it is dropped, and the log says so.
const announcedBytes = 16 << 20

// Announce tells everybody who hears the topic at this moment, this process
// included. It does not wait, and nothing is kept for those who come later: an
// error means that nobody was told.
func (c *Client) Announce(topic Topic, payload []byte) error {
	return c.conn.announce(topic, payload)
}

// Announce is as [Client.Announce].
func (s *Server) Announce(topic Topic, payload []byte) error {
	return s.conn.announce(topic, payload)
}

// Hear calls heard for each announcement of the topic, one after another on a
// goroutine of their own, until stop is called; heard is not called any more
// once a call that is running has returned. payload belongs to heard. Hear needs no
// Run. While the connection is lost, announcements are lost too.
func (c *Client) Hear(topic Topic, heard func(payload []byte)) (stop func(), err error) {
	subject, err := c.conn.announced(topic)
	if err != nil {
		return nil, err
	}
	if heard == nil {
		return nil, errors.New("bus: nobody hears")
	}
	sub, err := c.conn.nc.Subscribe(subject, func(m *nats.Msg) { heard(m.Data) })
	if err != nil {
		return nil, fmt.Errorf("bus: hear: %w", err)
	}
	if err := sub.SetPendingLimits(-1, announcedBytes); err != nil {
		unsubscribe(sub)
		return nil, fmt.Errorf("bus: hear: %w", err)
	}
	return func() { unsubscribe(sub) }, nil
}

func (c *Conn) announce(topic Topic, payload []byte) error {
	subject, err := c.announced(topic)
	if err != nil {
		return err
	}
	if err := c.publish(subject, "", payload); err != nil {
		return fmt.Errorf("bus: announce: %w", err)
	}
	return nil
}

// announced is the subject of the announcements of a topic.
func (c *Conn) announced(topic Topic) (string, error) {
	if !validToken(string(topic)) {
		return "", fmt.Errorf("bus: topic %q is not a subject token", topic)
	}
	return c.prefix + "x." + string(topic), nil
}
