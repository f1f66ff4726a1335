package auth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/edge/exchange"
)

// TokensConfig configures Tokens.
type TokensConfig struct {
	// File is the path of the token file; docs/authentication.md has its form.
	File string
	// Poll is the interval at which the file is looked at; 0 means 500 ms. A
	// change is taken when it was seen twice, so that a file which is being
	// written is not taken for a shorter one.
	Poll time.Duration
	// Logger takes word of reloads and of files that cannot be used; nil
	// discards. It never sees a token.
	Logger *slog.Logger
}

// Tokens authenticates by a file of static bearer tokens. It is an actor: Run
// follows the file. It is safe for concurrent use.
type Tokens struct {
	cfg     TokensConfig
	log     *slog.Logger
	entries atomic.Pointer[[]entry]
	// taken is the digest of the file that was used last; Run owns it.
	taken [sha256.Size]byte
}

// OpenTokens reads the file; its error names every fault of it with the line.
func OpenTokens(cfg TokensConfig) (*Tokens, error) {
	cfg.Poll = cmp.Or(cfg.Poll, 500*time.Millisecond)
	t := &Tokens{cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))}
	data, err := t.read()
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	if err := t.take(data); err != nil {
		return nil, fmt.Errorf("tokens: %s:\n%w", cfg.File, err)
	}
	return t, nil
}

// Authenticate implements Authenticator.
func (t *Tokens) Authenticate(r *http.Request) (*exchange.Principal, *Refusal) {
	token, refusal := bearer(r)
	if refusal != nil {
		return nil, refusal
	}
	entries := *t.entries.Load()
	i := find(entries, sha256.Sum256([]byte(token)))
	if i < 0 {
		return nil, invalid("the token is not known")
	}
	return &entries[i].principal, nil
}

// find returns the index of a token, or -1. It takes the same time whatever the
// token is: it compares digests, all of them, each to its end.
func find(entries []entry, digest [sha256.Size]byte) int {
	found := -1
	for i := range entries {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(entries[i].digest[:], digest[:]), i, found)
	}
	return found
}

// Run follows the file until the context ends. A file that cannot be used is
// reported and changes nothing: the tokens that were read last stay good. It is
// read by its name each time, so that files which are renamed into place and
// links which are swapped (a mounted Kubernetes Secret) are noticed as well.
func (t *Tokens) Run(ctx context.Context) error {
	ticker := time.NewTicker(t.cfg.Poll)
	defer ticker.Stop()
	seen, complaint := t.taken, ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		data, err := t.read()
		if err == nil {
			digest := sha256.Sum256(data)
			settled := digest == seen
			seen = digest
			if digest == t.taken {
				complaint = ""
				continue
			}
			if !settled {
				continue
			}
			if err = t.take(data); err == nil {
				complaint = ""
				t.log.Info("tokens reloaded", "file", t.cfg.File, "tokens", len(*t.entries.Load()))
				continue
			}
		}
		// Once is enough, until something else is wrong.
		if text := oneLine(err); text != complaint {
			complaint = text
			t.log.Error("the tokens stay as they were: the file cannot be used", "file", t.cfg.File, "error", text)
		}
	}
}

// take uses the content of a file, if it is good.
func (t *Tokens) take(data []byte) error {
	entries, err := parse(data)
	if err != nil {
		return err
	}
	t.entries.Store(&entries)
	t.taken = sha256.Sum256(data)
	return nil
}

// read reads the file, if it is one and of a sensible size.
func (t *Tokens) read() ([]byte, error) {
	// Opening a pipe would wait for its writer.
	info, err := os.Stat(t.cfg.File)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New(t.cfg.File + " is not a regular file")
	}
	file, err := os.Open(t.cfg.File)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // nothing was written
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, errors.New(t.cfg.File + " is larger than 16 MiB")
	}
	return data, nil
}
