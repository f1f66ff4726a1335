package edge

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestBatchIsCancelledByTheNextPacket: on a connection the requests of a batch are
// known before the packet behind it is read.
func TestBatchIsCancelledByTheNextPacket(t *testing.T) {
	t.Parallel()
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			s := start(t, Config{})
			in, inW := io.Pipe()
			outR, out := io.Pipe()
			done := make(chan error, 1)
			go func() { done <- s.serveStdio(context.Background(), in, out) }()
			lines := newLineReader(outR)
			say := func(text string) {
				if _, err := io.WriteString(inW, text+"\n"); err != nil {
					t.Error(err)
				}
			}
			say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{}}}`)
			lines.next(t)
			say(`[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"n":1,"delay_ms":5000}}},` +
				`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"count","arguments":{"n":1,"delay_ms":5000}}}]` + "\n" +
				`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
			time.Sleep(8 * time.Second)
			go say(`{"jsonrpc":"2.0","id":99,"method":"ping"}`)
			var got []string
			for line := ""; !strings.Contains(line, `"id":99`); {
				line = lines.next(t)
				got = append(got, line)
			}
			all := strings.Join(got, "\n")
			if strings.Contains(all, `"id":1,`) || !strings.Contains(all, `"id":2,`) {
				t.Errorf("of a batch of 1, which was cancelled, and 2 came %s", all)
			}
			inW.Close()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
