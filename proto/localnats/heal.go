package localnats

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// healEvery is how often it is looked whether JetStream runs.
	healEvery = 2 * time.Second
	// healPause is how long JetStream is left alone once it has begun again.
	healPause = time.Minute
	// healRoom is how much must fit on the disk before JetStream is begun again.
	healRoom = 4 << 20
)

// healer begins JetStream again when the server has given it up, or a part of it,
// because its disk was full: by itself the server does without until it is started
// anew.
type healer struct {
	s    *Server
	log  *serverLog
	cfg  server.JetStreamConfig
	stop chan struct{} // closed by close
	done chan struct{} // closed by run
}

// heal starts a healer for a server whose JetStream stores in dir.
func (s *Server) heal(dir string, log *serverLog) {
	cfg := s.ns.JetStreamConfig()
	if cfg == nil {
		return // it did not begin, and the log says why
	}
	s.healer = &healer{s: s, log: log, cfg: *cfg, stop: make(chan struct{}), done: make(chan struct{})}
	s.healer.cfg.StoreDir = dir
	go s.healer.run()
}

// close ends run and returns when it has ended.
func (h *healer) close() {
	if h == nil {
		return
	}
	close(h.stop)
	<-h.done
}

func (h *healer) run() {
	defer close(h.done)
	tick := time.NewTicker(healEvery)
	defer tick.Stop()
	stopped := false // and has been for a while: what it leaves behind is closed
	var began time.Time
	for {
		select {
		case <-tick.C:
		case <-h.stop:
			return
		}
		ns := h.s.ns
		switch {
		case !ns.Running():
			return
		case ns.JetStreamEnabled() && h.log.broken.Load() && time.Since(began) > healPause && h.hasRoom():
			// What cannot be written any more stays so until it is opened anew.
			h.log.broken.Store(false)
			_ = ns.ShutdownJetStream() // it has no errors, and is looked at again
			stopped = false
		case ns.JetStreamConfig() != nil:
			stopped = false
		case !stopped:
			stopped = true
		case h.hasRoom():
			h.log.broken.Store(false)
			began = time.Now()
			cfg := h.cfg
			if err := ns.EnableJetStream(&cfg); err != nil {
				h.log.logger.Error("JetStream does not begin again", "error", err)
				continue
			}
			h.log.logger.Warn("JetStream has begun again: its disk was full")
		}
	}
}

// hasRoom reports whether the disk takes something.
func (h *healer) hasRoom() bool {
	path := filepath.Join(h.cfg.StoreDir, "room")
	defer os.Remove(path) //nolint:errcheck // it is written over the next time
	return os.WriteFile(path, make([]byte, healRoom), 0o600) == nil
}

// saysFull reports whether a message of the server's log says that something could
// not be written and will not be any more. Nothing else tells.
func saysFull(msg string) bool {
	return strings.Contains(strings.ToLower(msg), "critical write error")
}
