// Package peer is how the edges of a deployment speak to each other. A client's
// message reaches any edge, and what it belongs to (a call that runs, a question
// that waits, an open stream) may live on another one.
//
// Each edge serves PeerService as an instance of the pool [Pool], under the id
// of its bus client, and hears what edges and workers announce to all edges.
// Nobody keeps a table of who has what: what must be found is named by an id
// that says where it is, or everybody is told.
package peer

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// Pool is the pool of the edges. It is no pool of workers: it offers nothing to
// clients.
const Pool = "_edge"

// Topic is the topic of announcements to all edges; each is a
// millracev1.Announcement.
const Topic bus.Topic = "edge"

const (
	// tellTimeout is the default of Config.TellTimeout.
	tellTimeout = 150 * time.Millisecond
	// callTimeout bounds what is passed on to one edge.
	callTimeout = 2 * time.Second
	// slots is how many calls of other edges an edge serves at a time. They are
	// short: this is a bound, and no share of work.
	slots = 4096
	// grace is short for the same reason, and since the edge that stops has
	// waited for its clients already.
	grace = 50 * time.Millisecond
)

// Config says what an edge does with what the others tell it. The functions are
// called concurrently. Nil: what comes reaches nobody.
type Config struct {
	// Deliver takes a client's answer to a request of this edge and reports
	// whether somebody waited for it.
	Deliver func(*millracev1.DeliverRequest) bool
	// Post takes a message of a client for a connection of this edge and
	// reports whether the connection is open. It does not wait for the message
	// to be served: the context ends when it returns.
	Post func(context.Context, *millracev1.PostRequest) bool
	// Heard acts on an announcement of another edge or of a worker. wait: the
	// other edge waits until it has taken effect; otherwise it must not wait
	// for anything. The same one may come twice.
	Heard func(ctx context.Context, a *millracev1.Announcement, wait bool)
	// TellTimeout is the longest that a client waits until other edges have acted
	// on what it did: one that is dead holds nobody up for longer. 0 means 150 ms.
	TellTimeout time.Duration
	// StatsHandlers hear of the calls of other edges, see bus.ServerConfig.
	StatsHandlers []stats.Handler
	// Logger reports faults of peers; nil discards.
	Logger *slog.Logger
}

// Peers are the other edges. Run must be running. Its methods may be called
// concurrently.
type Peers struct {
	cfg     Config
	log     *slog.Logger
	client  *bus.Client
	server  *bus.Server
	members func() []bus.Member
	ready   chan struct{} // closed by Run when announcements are heard
}

// New returns the peers of the edge whose bus client is given; members returns
// the instances that the edge sees at the moment, those of other pools too.
func New(conn *bus.Conn, client *bus.Client, members func() []bus.Member, cfg Config) *Peers {
	p := &Peers{cfg: cfg, log: cfg.Logger, client: client, members: members, ready: make(chan struct{})}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.cfg.TellTimeout = cmp.Or(p.cfg.TellTimeout, tellTimeout)
	p.server = bus.NewServer(conn, bus.ServerConfig{
		Pool: Pool, ID: client.ID(), Slots: slots, Grace: grace, Logger: cfg.Logger,
		StatsHandlers: cfg.StatsHandlers,
	})
	millracev1.RegisterPeerServiceServer(p.server, server{peers: p})
	return p
}

// ID is the address of this edge among its peers.
func (p *Peers) ID() string { return p.client.ID() }

// Ready is closed when other edges reach this one.
func (p *Peers) Ready() <-chan struct{} { return p.ready }

// Run serves the other edges until the context ends.
func (p *Peers) Run(ctx context.Context) error {
	stop, err := p.client.Hear(Topic, func(payload []byte) { p.heard(ctx, payload) })
	if err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	defer stop()
	g, running := errgroup.WithContext(ctx) // not ctx: who hears reads that already
	g.Go(func() error { return p.server.Run(running) })
	g.Go(func() error {
		// The server's subscription is the later one, on the same connection,
		// and it waits until NATS has it.
		select {
		case <-p.server.Ready():
			close(p.ready)
		case <-running.Done():
		}
		return nil
	})
	return g.Wait()
}

// Announce tells all edges something, and waits for none. An error means that
// nobody was told.
func (p *Peers) Announce(a *millracev1.Announcement) error {
	a.Edge = p.ID()
	payload, err := proto.Marshal(a)
	if err != nil {
		return fmt.Errorf("peer: announcement: %w", err)
	}
	return p.client.Announce(Topic, payload)
}

// Tell tells all edges something and returns when those that this edge knows
// have acted on it, at the latest after Config.TellTimeout. An announcement says who
// these are, and when they are fewer than it said before, it comes again: so every
// other edge knows that nobody waits for it. An error means that this edge is not
// connected, and that others may not know.
func (p *Peers) Tell(ctx context.Context, a *millracev1.Announcement) error {
	a.Told = nil
	for _, m := range p.members() {
		if m.Pool == Pool && m.Instance != p.ID() {
			a.Told = append(a.Told, m.Instance)
		}
	}
	// Also to those that this edge does not see, for whatever reason.
	if err := p.Announce(a); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.TellTimeout)
	defer cancel()
	var asking sync.WaitGroup
	acted := make([]bool, len(a.GetTold()))
	for i, id := range a.GetTold() {
		asking.Go(func() {
			_, err := p.edge(id).Tell(ctx, &millracev1.TellRequest{Announcement: a})
			if acted[i] = err == nil; err != nil {
				p.log.Debug("an edge has not answered", "edge", id, "error", err)
			}
		})
	}
	asking.Wait()
	if !slices.Contains(acted, false) {
		return nil
	}
	var told []string
	for i, id := range a.GetTold() {
		if acted[i] {
			told = append(told, id)
		}
	}
	a.Told = told
	return p.Announce(a)
}

// Deliver passes a client's answer on to the edge that asked and reports
// whether anybody waited for it there. An error means that the edge was not
// reached: it is gone, or will be taken for gone.
func (p *Peers) Deliver(ctx context.Context, edge string, req *millracev1.DeliverRequest) (taken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := p.edge(edge).Deliver(ctx, req)
	return resp.GetTaken(), err
}

// Post passes a client's message on to the edge that holds its connection and
// reports whether the connection is open. An error means that the edge was not
// reached.
func (p *Peers) Post(ctx context.Context, edge string, req *millracev1.PostRequest) (known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := p.edge(edge).Post(ctx, req)
	return resp.GetKnown(), err
}

func (p *Peers) edge(id string) millracev1.PeerServiceClient {
	return millracev1.NewPeerServiceClient(p.client.Instance(Pool, id))
}

// heard acts on a broadcast, unless it is this edge's own.
func (p *Peers) heard(ctx context.Context, payload []byte) {
	a := &millracev1.Announcement{}
	if err := proto.Unmarshal(payload, a); err != nil {
		p.log.Error("an announcement cannot be read", "error", err)
		return
	}
	if a.GetEdge() != p.ID() && p.cfg.Heard != nil {
		p.cfg.Heard(ctx, a, false)
	}
}

// server is the served side of Peers.
type server struct {
	millracev1.UnimplementedPeerServiceServer

	peers *Peers
}

// Deliver implements PeerService.
func (s server) Deliver(_ context.Context, req *millracev1.DeliverRequest) (*millracev1.DeliverResponse, error) {
	deliver := s.peers.cfg.Deliver
	return &millracev1.DeliverResponse{Taken: deliver != nil && deliver(req)}, nil
}

// Post implements PeerService.
func (s server) Post(ctx context.Context, req *millracev1.PostRequest) (*millracev1.PostResponse, error) {
	post := s.peers.cfg.Post
	return &millracev1.PostResponse{Known: post != nil && post(ctx, req)}, nil
}

// Tell implements PeerService.
func (s server) Tell(ctx context.Context, req *millracev1.TellRequest) (*millracev1.TellResponse, error) {
	if req.GetAnnouncement() == nil {
		return nil, status.Error(codes.InvalidArgument, "no announcement")
	}
	if heard := s.peers.cfg.Heard; heard != nil {
		heard(ctx, req.GetAnnouncement(), true)
	}
	return &millracev1.TellResponse{}, nil
}
