package bus

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
)

// TestCallsForAnOffer: a call that is meant for what some instances offer reaches
// these, and no others, also a moment after they offer something else.
func TestCallsForAnOffer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		servers := map[string]*Server{}
		stops := map[string]func(){}
		for _, offer := range []string{"one", "two"} {
			s := NewServer(connect(t, ns), ServerConfig{Pool: "test", Grace: shortGrace})
			grpc_testing.RegisterTestServiceServer(s, testService{})
			s.SetManifest([]byte(offer))
			servers[offer], stops[offer] = s, actor(t, s.Ready(), s.Run)
		}
		c := startClient(t, connect(t, ns), ClientConfig{})
		call := func(conn grpc.ClientConnInterface) (instance string, err error) {
			var by peer.Peer
			_, err = grpc_testing.NewTestServiceClient(conn).EmptyCall(within(t), &grpc_testing.Empty{}, grpc.Peer(&by))
			if by.Addr != nil {
				instance = by.Addr.String()
			}
			return instance, err
		}
		want := func(when, offer, by string) {
			t.Helper()
			for range 20 {
				got, err := call(c.Offering("test", HashOf([]byte(offer))))
				if err != nil || got != servers[by].Instance() {
					t.Fatalf("%s, a call for %q was served by %q: %v", when, offer, got, err)
				}
			}
		}
		want("at first", "one", "one")
		want("at first", "two", "two")
		// Any instance takes the others.
		seen := map[string]bool{}
		for range 100 {
			by, err := call(c.Pool("test"))
			if err != nil {
				t.Fatal(err)
			}
			seen[by] = true
		}
		if len(seen) != 2 {
			t.Errorf("%d instances were given the calls for any", len(seen))
		}
		servers["one"].SetManifest([]byte("three"))
		time.Sleep(time.Second)
		want("after the change", "one", "one")
		want("after the change", "three", "one")
		servers["one"].SetManifest([]byte("four"))
		time.Sleep(time.Second)
		want("after the second change", "four", "one")
		_, err := call(c.Offering("test", HashOf([]byte("one"))))
		wantReason(t, err, codes.Unavailable, ReasonNoResponders)
		stops["one"]()
		_, err = call(c.Offering("test", HashOf([]byte("four"))))
		wantReason(t, err, codes.Unavailable, ReasonNoResponders)
		want("at last", "two", "two")
	})
}
