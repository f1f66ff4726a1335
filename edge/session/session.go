// Package session makes and opens the ids of legacy sessions.
//
// An id is the session: it holds the negotiated revision, the capabilities of
// the client and whom it belongs to, authenticated by the key ring of the
// deployment. So every edge can serve it at once, a restart forgets nothing,
// and an initialize that is never followed by anything costs no memory.
package session

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/seal"
)

// purpose separates session ids from the other tokens of the ring.
const purpose = "session/1"

// maxClient bounds what a client may make us carry: clientInfo and
// capabilities beyond it are left out of the id.
const maxClient = 512

// skew is how far the clocks of two edges may differ.
const skew = time.Minute

// ErrUnknown is returned for an id that is malformed, foreign, expired or
// somebody else's: to the client all of these look the same.
var ErrUnknown = errors.New("session: unknown session")

// Owner is the authenticated caller a session belongs to. The zero value is
// the anonymous caller. It is bound to issuer and subject, never to the bytes
// of a token, so that a refreshed token goes on with its session.
type Owner struct {
	Issuer, Subject string
}

// Session is what an id says.
type Session struct {
	// Scope is unique to the session and unguessable.
	Scope string
	// Revision is the negotiated protocol revision.
	Revision *mcp.Revision
	// ClientInfo and Capabilities are the client's own words, JSON objects;
	// nil when they were too long to carry.
	ClientInfo, Capabilities []byte
	// Issued is when initialize was answered, to the second.
	Issued time.Time
}

// Issuer makes and opens session ids. It is immutable and safe for concurrent
// use.
type Issuer struct {
	ring   *seal.Ring
	maxAge time.Duration
}

// NewIssuer returns an issuer; maxAge 0 means 24 hours.
func NewIssuer(ring *seal.Ring, maxAge time.Duration) *Issuer {
	if maxAge <= 0 {
		maxAge = 24 * time.Hour
	}
	return &Issuer{ring: ring, maxAge: maxAge}
}

// The payload: revision, issued (Unix seconds), scope, owner, then clientInfo
// and capabilities, each with a length in front.
const (
	scopeSize = 12
	ownerSize = 8
	fixedSize = 1 + 8 + scopeSize + ownerSize
)

// New makes the id of a new session (specification 2025-11-25, transports,
// "Session Management": globally unique, secure, visible ASCII).
func (i *Issuer) New(rev *mcp.Revision, owner Owner, clientInfo, capabilities []byte) (string, error) {
	if len(clientInfo)+len(capabilities) > maxClient {
		// Capabilities decide what a client can be asked; its name does not.
		clientInfo = nil
		if len(capabilities) > maxClient {
			capabilities = nil
		}
	}
	p := make([]byte, 0, fixedSize+4+len(clientInfo)+len(capabilities))
	p = append(p, rev.Number)
	p = binary.BigEndian.AppendUint64(p, uint64(time.Now().Unix()))
	var scope [scopeSize]byte
	if _, err := rand.Read(scope[:]); err != nil {
		return "", fmt.Errorf("session: no random id: %w", err)
	}
	p = append(p, scope[:]...)
	p = append(p, owner.hash()...)
	p = appendBytes(p, clientInfo)
	p = appendBytes(p, capabilities)
	return i.ring.Seal(purpose, p), nil
}

// Open reads an id back for the caller that sent it. Its only error is
// ErrUnknown.
func (i *Issuer) Open(id string, owner Owner) (*Session, error) {
	p, err := i.ring.Open(purpose, id)
	if err != nil || len(p) < fixedSize {
		return nil, ErrUnknown
	}
	rev, ok := mcp.Numbered(p[0])
	if !ok || rev.Modern {
		return nil, ErrUnknown
	}
	issued := time.Unix(int64(binary.BigEndian.Uint64(p[1:])), 0)
	if age := time.Since(issued); age < -skew || age > i.maxAge {
		return nil, ErrUnknown
	}
	p = p[9:]
	s := &Session{
		Scope:    base64.RawURLEncoding.EncodeToString(p[:scopeSize]),
		Revision: rev,
		Issued:   issued,
	}
	if string(p[scopeSize:scopeSize+ownerSize]) != string(owner.hash()) {
		return nil, ErrUnknown
	}
	p = p[scopeSize+ownerSize:]
	if s.ClientInfo, p, ok = cutBytes(p); !ok {
		return nil, ErrUnknown
	}
	if s.Capabilities, _, ok = cutBytes(p); !ok {
		return nil, ErrUnknown
	}
	return s, nil
}

func (o Owner) hash() []byte {
	h := sha256.New()
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(o.Issuer)))
	h.Write(n[:])
	h.Write([]byte(o.Issuer))
	h.Write([]byte(o.Subject))
	return h.Sum(nil)[:ownerSize]
}

func appendBytes(dst, b []byte) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(b)))
	return append(dst, b...)
}

func cutBytes(p []byte) (b, rest []byte, ok bool) {
	if len(p) < 2 {
		return nil, nil, false
	}
	n := int(binary.BigEndian.Uint16(p))
	p = p[2:]
	if n > len(p) {
		return nil, nil, false
	}
	if n == 0 {
		return nil, p, true
	}
	return p[:n:n], p[n:], true
}
