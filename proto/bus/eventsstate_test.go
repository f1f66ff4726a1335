package bus

import (
	"errors"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestEventsState reads how far a call is: before it has said anything, while a
// round runs, when that has ended by itself and by its caller, and in a later one.
func TestEventsState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		service := outputService{output: func(_ *outputRequest, stream outputServer) error {
			say(t, stream, "first")
			<-goOn
			return nil
		}}
		ns := startNATS(t)
		startServer(t, connect(t, ns), ServerConfig{}, service)
		c := startClient(t, connect(t, ns), ClientConfig{})
		log := newMemoryLog(t, connect(t, ns))
		state := func() EventsState {
			t.Helper()
			synctest.Wait()
			s, err := c.EventsState(t.Context(), log, "s", "t")
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		if got := state(); got != (EventsState{}) {
			t.Errorf("before: %+v", got)
		}
		for round := uint32(1); round <= 2; round++ {
			stream := resumable(t, c, within(t), round, nil)
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
			got := state()
			if got.Round != round || got.Ended || !c.validCtl(got.Ctl) {
				t.Errorf("while round %d runs: %+v", round, got)
			}
			goOn <- struct{}{}
			if _, err := hear(stream); err != nil {
				t.Error(err)
			}
			if got := state(); got != (EventsState{Round: round, Ended: true}) {
				t.Errorf("after round %d: %+v", round, got)
			}
		}
		if err := c.EndEvents(EventsKey{Session: "s", Stream: "t", Round: 3}, status.Error(codes.Aborted, "no")); err != nil {
			t.Fatal(err)
		}
		if got := state(); got != (EventsState{Round: 3, Ended: true}) {
			t.Errorf("after the end of a caller: %+v", got)
		}
		away := errors.New("away")
		log.fail(away)
		if _, err := c.EventsState(t.Context(), log, "s", "t"); !errors.Is(err, away) {
			t.Errorf("without the log: %v", err)
		}
		if _, err := c.EventsState(t.Context(), log, "s.>", "t"); err == nil {
			t.Error("the state of no call")
		}
	})
}
