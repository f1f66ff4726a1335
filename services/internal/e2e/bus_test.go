package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

// busTap watches the frames that instances send to edges. Nobody but the bus
// knows which instance served a call.
type busTap struct {
	mu       sync.Mutex
	accepted map[string]int // calls by instance
	ended    map[codes.Code]int
}

// tapBus watches the bus until the test ends.
func tapBus(t *testing.T, url string) *busTap {
	t.Helper()
	tap := &busTap{accepted: map[string]int{}, ended: map[codes.Code]int{}}
	conn, err := nats.Connect(url, nats.Name("e2e-tap"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if _, err := conn.Subscribe("mr.*.e.>", tap.frame); err != nil {
		t.Fatal(err)
	}
	// The server knows the subscription before this returns.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := conn.FlushWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	return tap
}

func (b *busTap) frame(msg *nats.Msg) {
	var f busv1.Frame
	if err := proto.Unmarshal(msg.Data, &f); err != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// A short call has its ACCEPT in the frame that ends it.
	if f.GetInstance() != "" && f.GetKind() != busv1.Frame_KIND_BUSY {
		b.accepted[f.GetInstance()]++
	}
	if f.GetKind() == busv1.Frame_KIND_END {
		var s statuspb.Status
		if proto.Unmarshal(f.GetStatus(), &s) == nil {
			b.ended[codes.Code(s.GetCode())]++
		}
	}
}

// cancelled returns how many calls have ended as cancelled.
func (b *busTap) cancelled() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended[codes.Canceled]
}

// served returns how many calls each instance has taken.
func (b *busTap) served() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.accepted)
}

// writeTerms writes n terms of several sentences.
func writeTerms(t *testing.T, dir string, n int) {
	t.Helper()
	body := strings.Repeat("A generated term says nothing of use, but a search index has to read all of it. ", 20)
	for i := range n {
		page := fmt.Sprintf("---\nslug: generated-%d\ntitle: Generated %d\nlang: en\naliases: []\nrelated: []\nsource: generated\n---\n\n%s\n", i, i, body)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("generated-%d.md", i)), []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
