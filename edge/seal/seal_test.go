package seal

import (
	"bytes"
	"encoding/base64"
	"errors"
	"testing"
)

func ring(t *testing.T, keys ...Key) *Ring {
	t.Helper()
	r, err := NewRing(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSealAndOpen(t *testing.T) {
	t.Parallel()
	r := ring(t)
	for _, payload := range [][]byte{{}, []byte("x"), bytes.Repeat([]byte{0, 255}, 300)} {
		token := r.Seal("session", payload)
		for _, c := range token {
			if c < 0x21 || c > 0x7e {
				t.Fatalf("token %q holds %q, which is not visible ASCII", token, c)
			}
		}
		got, err := r.Open("session", token)
		if err != nil || !bytes.Equal(got, payload) {
			t.Fatalf("Open = %q, %v; want %q", got, err, payload)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	r := ring(t)
	token := r.Seal("session", []byte("payload"))
	bad := map[string]string{
		"empty": "", "short": "AAAA", "not base64": "***", "padding": token + "=",
		"other ring": ring(t).Seal("session", []byte("payload")), "cut": token[:len(token)-1],
	}
	for i := range token { // every single character changed
		flipped := []byte(token)
		flipped[i] = 'A'
		if token[i] == 'A' {
			flipped[i] = 'B'
		}
		bad["flipped "+string(rune('0'+i%10))+token[:i]] = string(flipped)
	}
	for name, token := range bad {
		if _, err := r.Open("session", token); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: Open = %v, want ErrInvalid", name, err)
		}
	}
	if _, err := r.Open("cursor", token); !errors.Is(err, ErrInvalid) {
		t.Errorf("other purpose: Open = %v, want ErrInvalid", err)
	}
}

func TestEncryptAndDecrypt(t *testing.T) {
	t.Parallel()
	r := ring(t)
	secret := []byte("what the worker wants to know again")
	token, err := r.Encrypt("state", secret)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := r.Encrypt("state", secret); err != nil || again == token {
		t.Errorf("two tokens of one payload are equal (%v)", err)
	}
	if got, err := r.Decrypt("state", token); err != nil || !bytes.Equal(got, secret) {
		t.Errorf("Decrypt = %q, %v", got, err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || bytes.Contains(raw, secret[:8]) {
		t.Errorf("the token shows its payload (%v)", err)
	}
	for name, bad := range map[string]string{
		"empty": "", "short": "AAAA", "appended": token + "-TAMPERED", "cut": token[:len(token)-2],
		"sealed, not encrypted": r.Seal("state", secret),
	} {
		if _, err := r.Decrypt("state", bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: Decrypt = %v, want ErrInvalid", name, err)
		}
	}
	if _, err := r.Decrypt("other", token); !errors.Is(err, ErrInvalid) {
		t.Errorf("other purpose: Decrypt = %v, want ErrInvalid", err)
	}
	if _, err := ring(t).Decrypt("state", token); !errors.Is(err, ErrInvalid) {
		t.Errorf("other ring: Decrypt = %v, want ErrInvalid", err)
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	a, b := Key{1, bytes.Repeat([]byte("a"), 32)}, Key{2, bytes.Repeat([]byte("b"), 32)}
	old, both, next := ring(t, a), ring(t, b, a), ring(t, b)
	token := old.Seal("session", []byte("p"))
	if _, err := both.Open("session", token); err != nil {
		t.Errorf("the ring with both keys refuses the old key's token: %v", err)
	}
	if _, err := next.Open("session", token); err == nil {
		t.Error("the ring without the old key still takes its token")
	}
	if _, err := next.Open("session", both.Seal("session", nil)); err != nil {
		t.Errorf("the ring does not seal with its first key: %v", err)
	}
}

func TestNewRingRefuses(t *testing.T) {
	t.Parallel()
	if _, err := NewRing(Key{1, []byte("short")}); err == nil {
		t.Error("a short key is accepted")
	}
	k := bytes.Repeat([]byte("k"), 16)
	if _, err := NewRing(Key{1, k}, Key{1, k}); err == nil {
		t.Error("the same key is accepted twice")
	}
}

// Keys may have one id by chance.
func TestKeysWithOneID(t *testing.T) {
	t.Parallel()
	a, b, c := Key{1, bytes.Repeat([]byte("a"), 32)}, Key{1, bytes.Repeat([]byte("b"), 32)}, Key{1, bytes.Repeat([]byte("c"), 32)}
	both := ring(t, a, b)
	for _, k := range []Key{a, b} {
		if p, err := both.Open("x", ring(t, k).Seal("x", []byte("p"))); err != nil || string(p) != "p" {
			t.Errorf("Open = %q, %v", p, err)
		}
		token, err := ring(t, k).Encrypt("x", []byte("p"))
		if err != nil {
			t.Fatal(err)
		}
		if p, err := both.Decrypt("x", token); err != nil || string(p) != "p" {
			t.Errorf("Decrypt = %q, %v", p, err)
		}
	}
	if _, err := both.Open("x", ring(t, c).Seal("x", nil)); !errors.Is(err, ErrInvalid) {
		t.Errorf("a third key's token: %v", err)
	}
	token, err := ring(t, c).Encrypt("x", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := both.Decrypt("x", token); !errors.Is(err, ErrInvalid) {
		t.Errorf("a third key's secret: %v", err)
	}
}
