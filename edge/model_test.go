package edge

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/worker"
)

// The size of TestModel; the default is the short form. The full one:
//
//	go test -race -timeout 30m ./edge -run '^TestModel$' -model.ops 20000 -model.kills 200
var (
	modelOps     = flag.Int("model.ops", 600, "how many operations TestModel does")
	modelKills   = flag.Int("model.kills", 6, "how many edges TestModel kills")
	modelClients = flag.Int("model.clients", 10, "how many clients TestModel has")
	modelSeed    = flag.Uint64("model.seed", 0, "what TestModel chooses by; 0: by chance")
)

const (
	// modelPatience is how long a client waits for what takes much less than a
	// second, before it calls it a hang.
	modelPatience = 40 * time.Second
	// modelTold is how long a client waits to be told of a change; what edges look
	// for now and then, they find in that time or much later.
	modelTold = 5 * time.Second
	// modelFarewell is how long a client listens to a call that it has cancelled.
	modelFarewell = time.Second
	// modelRefusals is how often in a row a client may be told to try again.
	modelRefusals = 20
	// modelFaults is how many faults are enough.
	modelFaults = 5
)

// TestModel lets clients do what they like, at random and side by side, against
// three edges that are killed meanwhile, and holds what they get against a model
// of each call and each session (model_client_test.go): no result is lost, no
// message comes twice or to somebody else, nothing hangs.
//
// The seed determines what each client does and which edges are killed, but not
// how all that falls together in time: a failure may need several runs with its
// seed to be seen again.
func TestModel(t *testing.T) {
	t.Parallel()
	m := &model{
		cluster: startCluster(t, Config{TellTimeout: usualTellTimeout}), seed: *modelSeed,
		book: &modelBook{begun: map[string]int{}, over: map[string]int{}}, stats: map[string]int{}, names: map[*node]string{},
	}
	for i, n := range m.cluster.nodes {
		m.names[n] = fmt.Sprintf("edge %d", i)
	}
	if m.seed == 0 {
		m.seed = rand.Uint64()
	}
	t.Logf("to do this again: -model.seed %d -model.ops %d -model.kills %d -model.clients %d", m.seed, *modelOps, *modelKills, *modelClients)
	m.offer()
	var stop context.CancelFunc
	m.ctx, stop = context.WithCancel(t.Context())
	defer stop()
	m.stop = stop
	var acting sync.WaitGroup
	for i := range *modelClients {
		acting.Go(func() { newModelClient(m, i).act() })
	}
	acting.Go(m.killEdges)
	acting.Wait()

	// What clients have lost sight of ends as well.
	eventually(t, "the worker to have ended every call", m.book.idle)
	m.mu.Lock()
	defer m.mu.Unlock()
	t.Logf("%d operations: %v", m.ops.Load(), m.stats)
	if int(m.ops.Load()) < *modelOps || m.stats["kill"] < *modelKills {
		t.Errorf("only %d operations and %d kills", m.ops.Load(), m.stats["kill"])
	}
	if m.faults > 0 {
		t.Errorf("%d faults with -model.seed %d", m.faults, m.seed)
	}
}

// model is one run.
type model struct {
	cluster *cluster
	seed    uint64
	book    *modelBook
	ctx     context.Context // done when there are enough faults
	stop    func()

	ops atomic.Int64 // begun so far

	mu     sync.Mutex // guards the nodes of the cluster, too
	stats  map[string]int
	faults int
	names  map[*node]string // of the edges
	kills  []string         // what became of edges, and when
}

// modelBook is what the worker has done, by the name of the call.
type modelBook struct {
	mu          sync.Mutex
	begun, over map[string]int
}

func (b *modelBook) begin(name string) (round int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begun[name]++
	return b.begun[name]
}

func (b *modelBook) end(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over[name]++
}

// of returns how many rounds of a call have begun, and how many are over.
func (b *modelBook) of(name string) (begun, over int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.begun[name], b.over[name]
}

func (b *modelBook) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, n := range b.begun {
		if b.over[name] != n {
			return false
		}
	}
	return true
}

// modelWork are the arguments of the tool "act".
type modelWork struct {
	Name  string `json:"name"`
	Steps int    `json:"steps"` // with progress after each, in each round
	Delay int    `json:"delay"` // of a step, in milliseconds
	Asks  int    `json:"asks"`  // how many rounds end with a question
}

// modelResult is what the tool answers, given the answers to its questions.
func modelResult(name string, answers []string) string {
	return "result of " + name + ": " + strings.Join(answers, ",")
}

// offer adds what the clients use to the worker.
func (m *model) offer() {
	type answer struct {
		Text string `json:"text"`
	}
	w := m.cluster.worker
	worker.AddTool(w, worker.Tool{Name: "act", Description: "Works in steps and asks between them."},
		func(ctx context.Context, call *worker.Call, in modelWork) (string, error) {
			round := m.book.begin(in.Name)
			defer m.book.end(in.Name)
			if round > in.Asks+1 {
				return "", fmt.Errorf("%s ran %d rounds, it has %d", in.Name, round, in.Asks+1)
			}
			for i := range in.Steps {
				select {
				case <-time.After(time.Duration(in.Delay) * time.Millisecond):
				case <-ctx.Done():
					return "", context.Cause(ctx)
				}
				call.Progress(float64((round-1)*in.Steps+i+1), 0, in.Name)
			}
			var answers []string
			for i := range in.Asks {
				key := fmt.Sprintf("q%d", i+1)
				got, err := call.Ask(worker.ElicitFor[answer](key, in.Name+" "+key))
				if err != nil {
					return "", err
				}
				a, _, err := worker.Accepted[answer](got, key)
				if err != nil {
					return "", err
				}
				answers = append(answers, a.Text)
			}
			return modelResult(in.Name, answers), nil
		})
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "model://{session}/{n}", Name: "model"},
		func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
			return worker.TextContents("text/plain", "a part of the model"), nil
		})
	eventually(m.cluster.t, "the tool and the resources", func() bool {
		for _, n := range m.cluster.nodes {
			snapshot := n.edge.Catalog().Snapshot()
			_, tool := snapshot.Tool("act")
			_, _, resource := snapshot.Resource("model://any/0")
			if !tool || !resource {
				return false
			}
		}
		return true
	})
}

// op counts an operation; false: there have been enough.
func (m *model) op(kind string) bool {
	if m.ctx.Err() != nil {
		return false
	}
	if m.ops.Add(1) > int64(*modelOps) && m.count("kill", 0) >= *modelKills {
		return false
	}
	m.count(kind, 1)
	return true
}

// count adds to a figure and returns it.
func (m *model) count(kind string, n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats[kind] += n
	return m.stats[kind]
}

// refused notes that an edge has refused something as to be tried again, and
// returns when a client does.
func (m *model) refused() {
	m.count("refused", 1)
	select {
	case <-time.After(200 * time.Millisecond):
	case <-m.ctx.Done():
	}
}

// killEdges kills edges, spread evenly over the operations, and starts others
// in their places.
func (m *model) killEdges() {
	rng := rand.New(rand.NewPCG(m.seed, 1<<32))
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for k := range *modelKills {
		due := int64((k + 1) * *modelOps / (*modelKills + 1))
		for m.ops.Load() < due {
			select {
			case <-tick.C:
			case <-m.ctx.Done():
				return
			}
		}
		i, pause := rng.IntN(clusterSize), time.Duration(rng.IntN(100))*time.Millisecond
		m.mu.Lock()
		victim := m.cluster.nodes[i]
		m.kills = append(m.kills, modelTime()+m.names[victim]+" is killed")
		m.mu.Unlock()
		victim.kill()
		select {
		case <-time.After(pause):
		case <-m.ctx.Done():
			return
		}
		next := m.cluster.startNode()
		m.mu.Lock()
		m.cluster.nodes[i] = next
		m.names[next] = fmt.Sprintf("edge %d", i+clusterSize*(k+1))
		m.kills = append(m.kills, modelTime()+m.names[next]+" serves")
		m.mu.Unlock()
		m.count("kill", 1)
	}
}

// modelTime is the time as the histories have it.
func modelTime() string { return time.Now().Format("04:05.000 ") }

// name returns the name of an edge.
func (m *model) name(n *node) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.names[n]
}

// fault reports a fault, and ends the run when there are enough.
func (m *model) fault(history []string, format string, args ...any) {
	m.mu.Lock()
	m.faults++
	enough, seed := m.faults >= modelFaults, m.seed
	history = append(slices.Clone(m.kills), history...)
	m.mu.Unlock()
	slices.Sort(history) // by time
	history = history[max(0, len(history)-80):]
	m.cluster.t.Errorf("-model.seed %d: %s\n  %s", seed, fmt.Sprintf(format, args...), strings.Join(history, "\n  "))
	if enough {
		m.stop()
	}
}

// stored says what is known of a call by the id of an event of it.
func (m *model) stored(session, eventID string) string {
	m.mu.Lock()
	n := m.cluster.nodes[0]
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(m.ctx, time.Second)
	defer cancel()
	stream, _, _ := strings.Cut(eventID, ".")
	kept, _, err := n.store.Call(ctx, scopeOf(m.cluster.t, session), stream)
	return fmt.Sprintf("edge %q (this one is %q, alive: %v) round %d, asked %v, %d answers, claimed %v, %v", kept.GetEdge(), n.edge.client.ID(),
		n.edge.present.alive(kept.GetEdge()), kept.GetRound(), kept.GetAsked() != nil, len(kept.GetResponses()), kept.GetClaimed(), err)
}

// followed says what edges know of the subscriptions of a session.
func (m *model) followed(session string) (text string) {
	m.mu.Lock()
	nodes := slices.Clone(m.cluster.nodes)
	m.mu.Unlock()
	for _, n := range nodes {
		ctx, cancel := context.WithTimeout(m.ctx, time.Second)
		rec, err := n.edge.sessions.Records.Get(ctx, scopeOf(m.cluster.t, session))
		cancel()
		text += fmt.Sprintf("%s follows %d in all, store %v, subscribed %v %v; ", m.name(n), n.hub().Topics(), n.edge.sessions.Records.Available(), rec.URIs, err)
	}
	return text
}

var (
	errModelKilled = errors.New("the edge was killed")
	errModelCut    = errors.New("the client has cut the connection")
)

// modelReply is an answer to a request, and the edge that gave it.
type modelReply struct {
	*http.Response

	node *node
	ctx  context.Context // of the request
}

// failure says what an error of a connection means: nothing is wrong when its
// edge was killed or its client left.
func (r *modelReply) failure(err error) error {
	switch {
	case r.node.killed.Load():
		return errModelKilled
	case r.ctx.Err() != nil:
		return errModelCut
	default:
		return err
	}
}

// send sends one request to an edge that lives, as a balancer chooses it.
func (m *model) send(ctx context.Context, pick int, method, text, session, lastID string) (*modelReply, error) {
	m.mu.Lock()
	n := m.cluster.nodes[pick%clusterSize]
	for i := range clusterSize {
		if n = m.cluster.nodes[(pick+i)%clusterSize]; !n.killed.Load() {
			break
		}
	}
	m.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost/mcp", strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		req.Header.Set(mcp.HeaderSessionID, session)
	}
	if lastID != "" {
		req.Header.Set(mcp.HeaderLastEventID, lastID)
	}
	r := &modelReply{node: n, ctx: ctx}
	if r.Response, err = n.client.Do(req); err != nil {
		return nil, r.failure(err)
	}
	return r, nil
}

// text reads a reply to its end.
func (r *modelReply) text() (string, error) {
	defer r.Body.Close()
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return "", r.failure(err)
	}
	return string(raw), nil
}
