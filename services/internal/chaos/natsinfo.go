package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// streams are what the edges keep in JetStream.
var streams = []string{"KV_mr_main_sessions", "KV_mr_main_keys", "mr_main_events", "mr_main_calls"} //nolint:gochecknoglobals // a table

// streamInfo is what JetStream says about a stream.
type streamInfo struct {
	Error *struct {
		Description string `json:"description"`
	} `json:"error"`
	Cluster struct {
		Leader   string `json:"leader"`
		Replicas []struct {
			Name    string `json:"name"`
			Current bool   `json:"current"`
			Offline bool   `json:"offline"`
		} `json:"replicas"`
	} `json:"cluster"`
}

// whole says what a stream lacks; nil: nothing.
func (s *streamInfo) whole(nodes int) error {
	switch {
	case s.Error != nil:
		return errors.New(s.Error.Description)
	case s.Cluster.Leader == "":
		return errors.New("no leader")
	case len(s.Cluster.Replicas) != nodes-1:
		return fmt.Errorf("%d replicas besides the leader", len(s.Cluster.Replicas))
	}
	for _, r := range s.Cluster.Replicas {
		if r.Offline || !r.Current {
			return fmt.Errorf("%s is not current", r.Name)
		}
	}
	return nil
}

// stream asks the node at an address about a stream.
func stream(address, name string) (*streamInfo, error) {
	raw, err := request(address, "$JS.API.STREAM.INFO."+name)
	if err != nil {
		return nil, err
	}
	info := new(streamInfo)
	return info, json.Unmarshal(raw, info)
}

// request asks one NATS node a question over a connection of its own. The few
// lines are written here because only the bus may use the client library.
func request(address, subject string) ([]byte, error) {
	conn, err := (&net.Dialer{Timeout: time.Second}).Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()                                    //nolint:errcheck // it has been read
	_ = conn.SetDeadline(time.Now().Add(3 * time.Second)) // fails on a connection that has ended
	const inbox = "_INBOX.chaos"
	if _, err := fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true,\"protocol\":1}\r\nSUB %s.%d 1\r\nPING\r\n", inbox, conn.LocalAddr().(*net.TCPAddr).Port); err != nil {
		return nil, err
	}
	r := bufio.NewReader(conn)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil, err
		}
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case words[0] == "PING":
			_, err = fmt.Fprint(conn, "PONG\r\n")
		case words[0] == "PONG": // the subscription is there
			_, err = fmt.Fprintf(conn, "PUB %s %s.%d 0\r\n\r\n", subject, inbox, conn.LocalAddr().(*net.TCPAddr).Port)
		case words[0] == "MSG":
			n, _ := strconv.Atoi(words[len(words)-1]) // a broken one is no JSON
			raw := make([]byte, n)
			_, err = io.ReadFull(r, raw)
			return raw, err
		case words[0] == "HMSG":
			return nil, errors.New("no JetStream answers")
		case words[0] == "-ERR":
			return nil, errors.New(strings.TrimSpace(line))
		}
		if err != nil {
			return nil, err
		}
	}
}
