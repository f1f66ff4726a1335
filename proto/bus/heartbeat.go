package bus

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

const (
	// heartbeatEvery is the mean time between heartbeats.
	heartbeatEvery = time.Second
	// helloJitter spreads the answers to a hello.
	helloJitter = 250 * time.Millisecond
)

// jitter returns d with up to a tenth added or taken off.
func jitter(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5) }

// Hash names a manifest: the first 16 bytes of its SHA-256.
type Hash [16]byte

// HashOf returns the hash of a manifest.
func HashOf(manifest []byte) Hash {
	sum := sha256.Sum256(manifest)
	return Hash(sum[:16])
}

// String returns the hash in hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// servedManifest is a manifest that this instance answers for.
type servedManifest struct {
	hash Hash
	data []byte
	sub  *nats.Subscription
	// calls takes those that are meant for instances that offer this; nil until
	// the instance takes calls.
	calls *nats.Subscription
	// demand is for instances that have it.
	demand *demand
}

func (m *servedManifest) unsubscribe() {
	unsubscribe(m.sub)
	if m.calls != nil {
		unsubscribe(m.calls)
	}
}

// keptManifests is how many manifests an instance serves: the current one and
// the one before, which somebody may be fetching.
const keptManifests = 2

// SetManifest sets what the instance announces, at any time; Run says so at
// once. The bus does not look into it. The caller must not change b afterwards.
func (s *Server) SetManifest(b []byte) {
	s.mu.Lock()
	s.manifest = b
	s.mu.Unlock()
	notify(s.poke)
}

// serveManifest makes sure that the current manifest can be fetched before it
// is announced.
func (r *serverRun) serveManifest() error {
	s := r.s
	s.mu.Lock()
	data, served := s.manifest, s.manifests
	s.mu.Unlock()
	if data == nil {
		return nil
	}
	hash := HashOf(data)
	next := make([]servedManifest, 0, len(served)+1)
	var current servedManifest
	for _, m := range served {
		if m.hash == hash {
			current = m
		} else {
			next = append(next, m)
		}
	}
	if current.sub == nil {
		sub, err := s.conn.nc.QueueSubscribe(s.conn.manifestSubject(hash), "m", func(m *nats.Msg) { s.onFetch(m, hash, data) })
		if err != nil {
			return fmt.Errorf("bus: subscribe: %w", err)
		}
		current = servedManifest{hash: hash, data: data, sub: sub, demand: &demand{manifest: hash.String()}}
	}
	next = append(next, current)
	for len(next) > keptManifests {
		next[0].unsubscribe()
		next = next[1:]
	}
	s.mu.Lock()
	s.manifests = next
	s.mu.Unlock()
	return nil
}

// serveCalls takes calls that are meant for what this instance offers.
func (r *serverRun) serveCalls() error {
	s := r.s
	s.mu.Lock()
	served := slices.Clone(s.manifests)
	s.mu.Unlock()
	for i := range served {
		if served[i].calls != nil {
			continue
		}
		var err error
		if served[i].calls, err = s.subscribePool(served[i].demand); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.manifests = served
	s.mu.Unlock()
	return nil
}

func (c *Conn) manifestSubject(h Hash) string { return c.prefix + "man." + h.String() }

// onFetch answers with the part of a manifest from an offset on.
func (s *Server) onFetch(m *nats.Msg, hash Hash, data []byte) {
	var req busv1.FetchRequest
	if err := proto.Unmarshal(m.Data, &req); err != nil || m.Reply == "" || string(req.GetHash()) != string(hash[:]) {
		return
	}
	from := min(req.GetOffset(), uint64(len(data)))
	to := min(from+uint64(chunkSize(s.conn.nc, s.cfg.Chunk)), uint64(len(data)))
	b, err := proto.Marshal(&busv1.FetchResponse{Total: uint64(len(data)), Data: data[from:to]})
	if err != nil {
		return
	}
	_ = s.conn.nc.Publish(m.Reply, b)
}

// beat publishes a heartbeat; when it is lost the next one tells.
func (r *serverRun) beat(state busv1.Heartbeat_State) {
	s := r.s
	r.seq++
	s.mu.Lock()
	var manifests [][]byte
	if n := len(s.manifests); n > 0 {
		h := s.manifests[n-1].hash
		manifests = [][]byte{h[:]}
	}
	s.mu.Unlock()
	b, err := proto.Marshal(&busv1.Heartbeat{
		Instance:  s.cfg.ID,
		Pool:      s.cfg.Pool,
		Version:   s.cfg.Version,
		Epoch:     s.epoch.Load(),
		Seq:       r.seq,
		State:     state,
		Slots:     uint32(s.cfg.Slots),
		Used:      s.load(),
		Stalled:   uint32(s.stalledCalls(time.Now())),
		Manifests: manifests,
	})
	if err != nil {
		s.logger.Error("heartbeat not sent", "error", err)
		return
	}
	_ = s.conn.nc.Publish(s.conn.prefix+"hb."+s.cfg.ID, b)
}
