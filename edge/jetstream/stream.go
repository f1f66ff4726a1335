package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/edge/session"
)

const (
	// pauseAfterFailure is how long a stream is left alone after a request
	// failed.
	pauseAfterFailure = time.Second
	// firstPause and longestPause bound the pauses between attempts to find or
	// make a stream.
	firstPause   = 100 * time.Millisecond
	longestPause = 2 * time.Second
	// checkEvery is how often a stream that works is looked at: somebody may
	// have removed it, and nothing that is published to nowhere fails.
	checkEvery = 30 * time.Second
	// quietAttempts are those that may fail before the log is told, when the
	// stream was never seen: a cluster that starts has no leader yet.
	quietAttempts = 6
)

// stream is one stream of JetStream, and whether it can be used.
type stream struct {
	nc  *nats.Conn
	js  natsjs.JetStream
	cfg natsjs.StreamConfig
	// replicas as configured; 0: as many as there are.
	replicas int
	timeout  time.Duration // of a request
	log      *slog.Logger
	news     news
	// quiet: that there is no JetStream at all is told for another stream.
	quiet bool

	// state is odd while the stream can be used. It only grows, so that a
	// request that fails late does not spoil what has recovered meanwhile.
	state atomic.Uint64
	// failure wakes keep; capacity 1, never closed, one signal is enough.
	failure chan struct{}
}

func newStream(nc *nats.Conn, js natsjs.JetStream, stored natsjs.StreamConfig, cfg Config) *stream {
	log := cfg.Logger.With("stream", stored.Name)
	return &stream{
		nc: nc, js: js, cfg: stored, replicas: cfg.Replicas, timeout: cfg.RequestTimeout,
		log: log, news: news{log: log}, failure: make(chan struct{}, 1),
	}
}

func (s *stream) available() bool { return s.state.Load()&1 == 1 }

// do makes one request that a client may wait for. Its errors are those of a
// session.Store.
func (s *stream) do(ctx context.Context, request func(ctx context.Context) error) error {
	state := s.state.Load()
	if state&1 == 0 {
		return session.ErrUnavailable
	}
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := translate(request(limited))
	if errors.Is(err, session.ErrUnavailable) && ctx.Err() == nil && !full(err) {
		s.failed(state, err)
	}
	return err
}

// failed makes the stream unavailable, if it has not been judged anew since.
func (s *stream) failed(state uint64, err error) {
	if !s.state.CompareAndSwap(state, state+1) {
		return
	}
	s.news.fail(err)
	select {
	case s.failure <- struct{}{}:
	default:
	}
}

// translate turns an error of JetStream into one of session.Store.
func translate(err error) error {
	if err == nil || errors.Is(err, session.ErrNotFound) {
		return err
	}
	switch {
	case hasCode(err, natsjs.JSErrCodeMessageNotFound):
		return session.ErrNotFound
	case hasCode(err, natsjs.JSErrCodeStreamWrongLastSequence, natsjs.JSErrCodeStreamWrongLastSequenceConstant):
		return session.ErrConflict
	case hasCode(err, natsjs.JSErrCodeStreamMessageExceedsMaximum), errors.Is(err, nats.ErrMaxPayload):
		return session.ErrTooLarge
	}
	return unavailable(err)
}

// full reports whether a server refused a write for want of room. It can still
// be read then.
func full(err error) bool { return hasCode(err, codeStoreFailed) }

// keep makes the stream and looks after it until ctx ends.
func (s *stream) keep(ctx context.Context) error {
	restored := s.nc.StatusChanged(nats.CONNECTED)
	defer s.nc.RemoveStatusListener(restored)
	pause, failures, seen := firstPause, 0, false
	for {
		err := s.ensure(ctx)
		if ctx.Err() != nil {
			return nil
		}
		wait := checkEvery
		switch {
		case err == nil:
			if !s.available() {
				level := slog.LevelDebug
				if seen || failures >= quietAttempts {
					level = slog.LevelInfo
				}
				s.news.recover(!seen, level)
				s.state.Add(1)
			}
			pause, failures, seen = firstPause, 0, true
		case s.available():
			s.failed(s.state.Load(), err)
			wait = pauseAfterFailure
		default:
			if failures++; failures == quietAttempts && !seen {
				level := slog.LevelWarn
				if s.quiet && errors.Is(err, ErrNoJetStream) {
					level = slog.LevelDebug
				}
				s.log.Log(ctx, level, "JetStream is not available: sessions keep to their defaults and calls cannot be resumed", "error", err)
			}
			s.news.still(err)
			wait, pause = pause, min(2*pause, longestPause)
		}
		if !s.pause(ctx, wait, restored) {
			return nil
		}
	}
}

// pause waits until the stream is to be looked at, or reports that ctx ended.
func (s *stream) pause(ctx context.Context, wait time.Duration, restored <-chan nats.Status) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case _, open := <-restored:
			if open {
				// Another server, or the same one without what was in its
				// memory.
				return true
			}
			restored = nil // the connection has ended for good
		case <-s.failure:
			timer.Reset(pauseAfterFailure)
		case <-ctx.Done():
			return false
		}
	}
}

// get reads a message from the leader of the stream: the last one of a subject,
// or the next one.
func (s *stream) get(ctx context.Context, query getQuery) (*storedMessage, error) {
	request, err := json.Marshal(query)
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	answer, err := s.nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+s.cfg.Name, request)
	if err != nil {
		return nil, err
	}
	var found struct {
		Error   *natsjs.APIError `json:"error"`
		Message *storedMessage   `json:"message"`
	}
	if err := json.Unmarshal(answer.Data, &found); err != nil {
		return nil, fmt.Errorf("jetstream: answer that cannot be read: %w", err)
	}
	switch {
	case found.Error != nil:
		return nil, found.Error
	case found.Message == nil:
		return nil, errors.New("jetstream: answer without a message")
	}
	return found.Message, nil
}

// subjects returns the subjects of a pattern of which there are messages, and how
// many, as the leader knows them. Whoever reads has to know them: to read by a
// pattern the server goes through all that is stored, and meanwhile it reads
// nothing else from the connection of the edge that has asked.
func (s *stream) subjects(ctx context.Context, pattern string) (map[string]uint64, error) {
	request, err := json.Marshal(struct {
		Pattern string `json:"subjects_filter"`
	}{pattern})
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	answer, err := s.nc.RequestWithContext(ctx, "$JS.API.STREAM.INFO."+s.cfg.Name, request)
	if err != nil {
		return nil, err
	}
	var found struct {
		Error *natsjs.APIError `json:"error"`
		State struct {
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
	}
	if err := json.Unmarshal(answer.Data, &found); err != nil {
		return nil, fmt.Errorf("jetstream: answer that cannot be read: %w", err)
	}
	if found.Error != nil {
		return nil, found.Error
	}
	return found.State.Subjects, nil
}

// getQuery asks for a stored message, in the form of the JetStream API.
type getQuery struct {
	Sequence uint64 `json:"seq,omitempty"`
	Last     string `json:"last_by_subj,omitempty"`
	Next     string `json:"next_by_subj,omitempty"`
	Batch    int    `json:"batch,omitempty"`
	MaxBytes int    `json:"max_bytes,omitempty"`
}

// storedMessage is a message of a stream, in the form of the JetStream API.
type storedMessage struct {
	Subject  string `json:"subject"`
	Sequence uint64 `json:"seq"`
	Header   []byte `json:"hdrs"`
	Data     []byte `json:"data"`
}

// publish writes a message and waits until it is kept. revision is that of the
// last message of the subject, which the server compares.
func (s *stream) publish(ctx context.Context, msg *nats.Msg, revision uint64, ttl time.Duration) (uint64, error) {
	opts := []natsjs.PublishOpt{
		natsjs.WithExpectLastSequencePerSubject(revision),
		// A leader that hands over is away for a moment; the answer says
		// that nothing was written, so trying again is safe.
		natsjs.WithRetryWait(100 * time.Millisecond), natsjs.WithRetryAttempts(3),
	}
	if ttl > 0 {
		// The time to live is a matter of each message: a later one without
		// it would live for ever.
		opts = append(opts, natsjs.WithMsgTTL(ttl))
	}
	ack, err := s.js.PublishMsg(ctx, msg, opts...)
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}
