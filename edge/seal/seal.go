// Package seal authenticates the small pieces of state that Millrace hands to
// clients and takes back: session ids, list cursors, and the state of requests
// that need input. Whatever edge gets one
// back can tell, without asking anybody, that an edge of this deployment made
// it and that nobody changed it.
package seal

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"sync"
)

// Size of the authentication code in bytes: HMAC-SHA256 cut to 128 bits.
const macSize = 16

// ErrInvalid is returned for a token that this ring did not make. It never
// says why, so that it is no oracle.
var ErrInvalid = errors.New("seal: token is not valid")

// Key is one secret of a ring.
type Key struct {
	// ID travels in the open and tells which keys may have made a token. Keys
	// that are named after what they contain may share one by chance.
	ID byte
	// Secret should be 32 random bytes; shorter than 16 is refused.
	Secret []byte
}

// Ring makes tokens with its first key and accepts those of all its keys, so
// that a key can be replaced while tokens made with it are still in use. It is
// immutable and safe for concurrent use.
type Ring struct {
	keys []*signingKey
}

// signingKey is a key with what has been prepared to sign with it.
type signingKey struct {
	Key

	signers sync.Pool // of *signer
}

// signer signs with one key. Preparing the key is half the work of signing
// something short, so it is done once. One goroutine has it at a time.
type signer struct {
	hash hash.Hash
	// text and sum are the signer's own, since what goes through the interface
	// of a hash would be allocated each time.
	text, sum []byte
}

// NewRing builds a ring. Without a key it makes a random one, which lives as
// long as the process.
func NewRing(keys ...Key) (*Ring, error) {
	if len(keys) == 0 {
		secret := make([]byte, 32)
		if _, err := rand.Read(secret); err != nil {
			return nil, fmt.Errorf("seal: no random key: %w", err)
		}
		keys = []Key{{ID: 0, Secret: secret}}
	}
	for i, k := range keys {
		if len(k.Secret) < 16 {
			return nil, fmt.Errorf("seal: key %d has %d bytes, at least 16 are needed", k.ID, len(k.Secret))
		}
		for _, other := range keys[:i] {
			if bytes.Equal(k.Secret, other.Secret) {
				return nil, fmt.Errorf("seal: key %d is there twice", k.ID)
			}
		}
	}
	r := &Ring{keys: make([]*signingKey, len(keys))}
	for i, k := range keys {
		r.keys[i] = &signingKey{Key: k}
	}
	return r, nil
}

// Seal returns payload as a token of visible ASCII. The purpose (and whatever
// the caller adds to it, such as a principal) is authenticated but not part of
// the token: a token opens only under the purpose it was sealed for.
func (r *Ring) Seal(purpose string, payload []byte) string {
	k := r.keys[0]
	raw := make([]byte, 0, 1+len(payload)+macSize)
	raw = append(raw, k.ID)
	raw = append(raw, payload...)
	mac := k.mac(purpose, raw)
	raw = append(raw, mac[:]...)
	return base64.RawURLEncoding.EncodeToString(raw)
}

// Open returns the payload of a token, or ErrInvalid.
func (r *Ring) Open(purpose, token string) ([]byte, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(raw) < 1+macSize {
		return nil, ErrInvalid
	}
	body, mac := raw[:len(raw)-macSize], raw[len(raw)-macSize:]
	for _, k := range r.keys {
		if k.ID != body[0] {
			continue
		}
		if made := k.mac(purpose, body); hmac.Equal(mac, made[:]) {
			return body[1:], nil
		}
	}
	return nil, ErrInvalid
}

// Encrypt returns payload as a token that only this ring can read. The purpose
// is authenticated but not part of the token.
func (r *Ring) Encrypt(purpose string, payload []byte) (string, error) {
	k := r.keys[0]
	aead, err := k.aead()
	if err != nil {
		return "", err
	}
	nonce := make([]byte, aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return "", fmt.Errorf("seal: no random nonce: %w", err)
	}
	raw := append([]byte{k.ID}, nonce...)
	raw = aead.Seal(raw, nonce, payload, []byte(purpose))
	return base64.RawURLEncoding.EncodeToString(raw), nil
}

// Decrypt returns the payload of a token that Encrypt made for the same
// purpose, or ErrInvalid.
func (r *Ring) Decrypt(purpose, token string) ([]byte, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(raw) == 0 {
		return nil, ErrInvalid
	}
	for _, k := range r.keys {
		if k.ID != raw[0] {
			continue
		}
		aead, err := k.aead()
		if err != nil {
			return nil, err
		}
		if len(raw) < 1+aead.NonceSize() {
			return nil, ErrInvalid
		}
		nonce, sealed := raw[1:1+aead.NonceSize()], raw[1+aead.NonceSize():]
		payload, err := aead.Open(nil, nonce, sealed, []byte(purpose))
		if err == nil {
			return payload, nil
		}
	}
	return nil, ErrInvalid
}

// aead is the cipher of a key: AES-256-GCM under a key of its own, so that one
// secret serves both uses.
func (k Key) aead() (cipher.AEAD, error) {
	derived, err := hkdf.Key(sha256.New, k.Secret, nil, "millrace/seal/encrypt", 32)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return aead, nil
}

// mac is the code of a purpose and a body. The length of the purpose is
// authenticated too, so that no two pairs run together.
func (k *signingKey) mac(purpose string, body []byte) (code [macSize]byte) {
	s, ok := k.signers.Get().(*signer)
	if !ok {
		s = &signer{hash: hmac.New(sha256.New, k.Secret)}
	}
	s.text = binary.BigEndian.AppendUint32(s.text[:0], uint32(len(purpose)))
	s.text = append(s.text, purpose...)
	s.hash.Reset()
	s.hash.Write(s.text)
	s.hash.Write(body)
	s.sum = s.hash.Sum(s.sum[:0])
	copy(code[:], s.sum)
	k.signers.Put(s)
	return code
}
