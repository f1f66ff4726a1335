package jetstream

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/edge/session"
)

const (
	// lookTimeout and setupTimeout bound requests that no client waits for:
	// servers of a cluster agree before they answer the latter.
	lookTimeout  = 2 * time.Second
	setupTimeout = 5 * time.Second

	// mostReplicas is how many replicas a stream gets at most by itself.
	mostReplicas = 3
	// leastBytes is the smallest stream worth having.
	leastBytes = 4 << 20

	// eventAge is how long the events of a call are kept, and what is needed to
	// read them once it has ended.
	eventAge = 5 * time.Minute
	// eventCount is how many messages are kept of a round of a call.
	eventCount = 512
	// callAge is how long a call can be carried on: the longest one, and then
	// some.
	callAge = 65 * time.Minute

	// layout is the version of the streams' configuration. An edge changes
	// streams of an older one and leaves those of a newer one alone.
	layout    = 1
	layoutKey = "millrace.layout"
)

// Codes of errors for which the library has no names.
const (
	codeNoPeers          = 10005
	codeNoResources      = 10023
	codeMemoryExceeded   = 10028
	codeStorageExceeded  = 10047
	codeNotClustered     = 10074
	codeStoreFailed      = 10077
	codeOverMaximumBytes = 10122
)

// valuesConfig is the bucket of the values of session.Store. Old values make
// room for new ones: a client that made too many sessions must not keep others
// from changing theirs.
func valuesConfig(tenant string) natsjs.StreamConfig {
	cfg := bucketConfig("mr_" + tenant + "_sessions")
	cfg.MaxBytes = 256 << 20
	cfg.MaxMsgSize = session.MaxValue + 4096
	return cfg
}

// keysConfig is the bucket of Key. It is apart from the values because it must
// not make room, and so that access to it can be limited.
func keysConfig(tenant string) natsjs.StreamConfig {
	cfg := bucketConfig("mr_" + tenant + "_keys")
	cfg.MaxBytes = leastBytes
	cfg.Discard = natsjs.DiscardNew
	return cfg
}

// bucketConfig is a stream that the tools of NATS know as a key-value bucket. It
// has no direct reads: they ask any replica, which may be behind.
func bucketConfig(bucket string) natsjs.StreamConfig {
	return natsjs.StreamConfig{
		Name:              "KV_" + bucket,
		Subjects:          []string{"$KV." + bucket + ".>"},
		Storage:           natsjs.FileStorage,
		MaxMsgsPerSubject: 1,
		AllowMsgTTL:       true,
		AllowRollup:       true,
		DenyDelete:        true,
	}
}

// eventsConfig captures what workers send to the events subjects of calls. It
// acknowledges nothing: the messages carry the reply subject of their call.
func eventsConfig(tenant string) natsjs.StreamConfig {
	return natsjs.StreamConfig{
		Name:              "mr_" + tenant + "_events",
		Subjects:          []string{eventsPrefix(tenant) + "*.ev.>"},
		Storage:           natsjs.MemoryStorage,
		NoAck:             true,
		AllowDirect:       true,
		MaxAge:            eventAge,
		MaxMsgsPerSubject: eventCount,
		MaxBytes:          256 << 20,
	}
}

// callsConfig keeps what is needed to go on with a call.
func callsConfig(tenant string) natsjs.StreamConfig {
	return natsjs.StreamConfig{
		Name:              "mr_" + tenant + "_calls",
		Subjects:          []string{callsPrefix(tenant) + ">"},
		Storage:           natsjs.MemoryStorage,
		AllowMsgTTL:       true,
		MaxAge:            callAge,
		MaxMsgsPerSubject: 1,
		MaxBytes:          128 << 20,
	}
}

// ensure makes the stream if it is not there. Any number of edges may do so at
// once: the first one makes it, and the others find it or have made the same.
func (s *stream) ensure(ctx context.Context) error {
	found, err := s.look(ctx)
	if errors.Is(err, natsjs.ErrStreamNotFound) {
		if err = s.create(ctx); errors.Is(err, natsjs.ErrStreamNameAlreadyInUse) {
			_, err = s.look(ctx)
		}
		return err
	}
	if err != nil {
		return err
	}
	s.adapt(ctx, found.CachedInfo())
	return nil
}

func (s *stream) look(ctx context.Context) (natsjs.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	found, err := s.js.Stream(ctx, s.cfg.Name)
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, natsjs.ErrJetStreamNotEnabled) || errors.Is(err, natsjs.ErrJetStreamNotEnabledForAccount) {
		return nil, ErrNoJetStream
	}
	return found, err
}

// create makes the stream as large and as safe as the servers allow.
func (s *stream) create(ctx context.Context) error {
	err := s.createSized(ctx, s.cfg.Storage)
	if s.cfg.Storage == natsjs.FileStorage && lacks(err) {
		// A server without files: what it knows ends with it.
		err = s.createSized(ctx, natsjs.MemoryStorage)
	}
	return err
}

func (s *stream) createSized(ctx context.Context, storage natsjs.StorageType) error {
	cfg := s.cfg
	cfg.Storage = storage
	cfg.Metadata = map[string]string{layoutKey: strconv.Itoa(layout)}
	for {
		err := s.createReplicated(ctx, cfg)
		// Servers set MaxBytes aside, so that a small one may have too little
		// for all, with nothing stored yet.
		if !lacks(err) || cfg.MaxBytes/2 < leastBytes {
			return err
		}
		cfg.MaxBytes /= 2
	}
}

func (s *stream) createReplicated(ctx context.Context, cfg natsjs.StreamConfig) error {
	cfg.Replicas = s.wanted()
	for {
		err := s.change(ctx, cfg, s.js.CreateStream)
		switch {
		case hasCode(err, codeNotClustered) && cfg.Replicas > 1:
			cfg.Replicas = 1
		case s.replicas == 0 && hasCode(err, codeNoPeers) && cfg.Replicas > 1:
			cfg.Replicas--
		default:
			return err
		}
	}
}

// wanted is how many replicas the stream is to have.
func (s *stream) wanted() int {
	if s.replicas > 0 {
		return s.replicas
	}
	return mostReplicas
}

// adapt brings a stream that was found up to date, as far as the servers allow:
// what was made by an older edge, and what was made before the cluster was
// complete. That it cannot be done now is no reason not to use it as it is.
func (s *stream) adapt(ctx context.Context, info *natsjs.StreamInfo) {
	found, _ := strconv.Atoi(info.Config.Metadata[layoutKey])
	clustered := info.Cluster != nil && info.Cluster.Name != ""
	grow := clustered && info.Config.Replicas < s.wanted()
	if found > layout || found == layout && !grow {
		return
	}
	cfg := s.cfg
	cfg.Metadata = map[string]string{layoutKey: strconv.Itoa(layout)}
	// These three are what the servers had room for.
	cfg.Storage, cfg.MaxBytes, cfg.Replicas = info.Config.Storage, info.Config.MaxBytes, info.Config.Replicas
	if grow {
		cfg.Replicas = s.wanted()
	}
	if err := s.change(ctx, cfg, s.js.UpdateStream); err != nil {
		s.log.Debug("the stream stays as it is", "replicas", info.Config.Replicas, "error", err)
	}
}

func (s *stream) change(ctx context.Context, cfg natsjs.StreamConfig, how func(context.Context, natsjs.StreamConfig) (natsjs.Stream, error)) error {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	_, err := how(ctx, cfg)
	return err
}

// lacks reports whether the servers have not enough room for a stream.
func lacks(err error) bool {
	return hasCode(err, codeNoPeers, codeNoResources, codeMemoryExceeded, codeStorageExceeded, codeOverMaximumBytes)
}

func hasCode(err error, codes ...natsjs.ErrorCode) bool {
	api, ok := errors.AsType[*natsjs.APIError](err)
	return ok && slices.Contains(codes, api.ErrorCode)
}
