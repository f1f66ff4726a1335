package session

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/seal"
)

func issuer(t *testing.T) *Issuer {
	t.Helper()
	ring, err := seal.NewRing()
	if err != nil {
		t.Fatal(err)
	}
	return NewIssuer(ring, 0)
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	i := issuer(t)
	rev := mcp.Legacy()
	info, caps := `{"name":"t","version":"1"}`, `{"sampling":{}}`
	id, err := i.New(rev, Owner{"iss", "sub"}, []byte(info), []byte(caps))
	if err != nil {
		t.Fatal(err)
	}
	s, err := i.Open(id, Owner{"iss", "sub"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Revision != rev || string(s.ClientInfo) != info || string(s.Capabilities) != caps || s.Scope == "" {
		t.Errorf("Open = %+v", s)
	}
	again, err := i.New(rev, Owner{"iss", "sub"}, []byte(info), []byte(caps))
	if err != nil || again == id {
		t.Errorf("two sessions share the id %q (%v)", id, err)
	}
}

func TestUnknown(t *testing.T) {
	t.Parallel()
	i := issuer(t)
	id, err := i.New(mcp.Legacy(), Owner{"iss", "sub"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := issuer(t).New(mcp.Legacy(), Owner{"iss", "sub"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		id    string
		owner Owner
	}{
		"other subject":    {id, Owner{"iss", "other"}},
		"other issuer":     {id, Owner{"other", "sub"}},
		"anonymous":        {id, Owner{}},
		"shifted boundary": {id, Owner{"isss", "ub"}},
		"other deployment": {foreign, Owner{"iss", "sub"}},
		"made up":          {"00000000-0000-4000-8000-000000000000", Owner{"iss", "sub"}},
		"path":             {"../x", Owner{"iss", "sub"}},
		"long":             {strings.Repeat("a", 10_000), Owner{"iss", "sub"}},
		"empty":            {"", Owner{"iss", "sub"}},
	} {
		if _, err := i.Open(c.id, c.owner); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: Open = %v, want ErrUnknown", name, err)
		}
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := issuer(t)
		id, err := i.New(mcp.Legacy(), Owner{}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		if _, err := i.Open(id, Owner{}); err != nil {
			t.Errorf("at its maximum age the session is %v", err)
		}
		time.Sleep(2 * time.Second)
		if _, err := i.Open(id, Owner{}); !errors.Is(err, ErrUnknown) {
			t.Errorf("past its maximum age Open = %v", err)
		}
	})
}

func TestLongClientsFit(t *testing.T) {
	t.Parallel()
	i := issuer(t)
	long := []byte(`{"x":"` + strings.Repeat("y", 5000) + `"}`)
	for _, c := range [][2][]byte{{long, []byte(`{}`)}, {[]byte(`{}`), long}, {long, long}} {
		id, err := i.New(mcp.Legacy(), Owner{}, c[0], c[1])
		if err != nil {
			t.Fatal(err)
		}
		if len(id) > 1000 {
			t.Errorf("id of %d characters", len(id))
		}
		if _, err := i.Open(id, Owner{}); err != nil {
			t.Error(err)
		}
	}
}
