package catalog

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/mod/semver"

	"github.com/millrace/millrace/proto/bus"
)

// settle is how long a version must have been ready before it takes the place of
// another one that is: a version that dies at once does not change the lists.
const settle = 3 * time.Second

// version is what some instances of a pool offer.
type version struct {
	// number is the version of their software, hash what they offer.
	number string
	hash   bus.Hash
	// ready is how many of them take calls, leaving how many only end what runs.
	ready, leaving int
	// since is when the first of them became ready; zero: it was found ready.
	since time.Time
}

// compare orders versions: by their numbers, where these are semantic versions,
// and by what they offer among equal ones, so that every edge has the same
// order, whoever came first.
func (v *version) compare(w *version) int {
	return cmp.Or(
		semver.Compare("v"+v.number, "v"+w.number),
		slices.Compare(v.hash[:], w.hash[:]),
	)
}

// versionsOf are those of the members of a pool, the highest first. Members of
// different version numbers with the same offer are one, under the highest.
// before is what they were in the last round. found says that what is ready now
// was so before anybody could see it.
func versionsOf(members []bus.Member, before []version, now time.Time, found bool) []version {
	var versions []version
	for i := range members {
		m := &members[i]
		hash := m.Manifests[0]
		at := slices.IndexFunc(versions, func(v version) bool { return v.hash == hash })
		if at < 0 {
			at = len(versions)
			versions = append(versions, version{number: m.Version, hash: hash})
		}
		v := &versions[at]
		if semver.Compare("v"+m.Version, "v"+v.number) > 0 {
			v.number = m.Version
		}
		if m.Draining {
			v.leaving++
		} else {
			v.ready++
		}
	}
	for i := range versions {
		v := &versions[i]
		was := slices.IndexFunc(before, func(b version) bool { return b.hash == v.hash && b.ready > 0 })
		switch {
		case was >= 0:
			v.since = before[was].since
		case !found:
			v.since = now
		}
	}
	slices.SortFunc(versions, func(a, b version) int { return b.compare(&a) })
	return versions
}

// active chooses the version that a pool is listed with: the highest one that
// has been ready for a while with enough instances to bear the load, which is
// two, or half of what a lower one has. again is when to choose anew if nothing
// changes; 0: never.
func active(versions []version, now time.Time) (chosen *version, again time.Duration) {
	lower := func(i int) (most int) {
		for _, v := range versions[i+1:] {
			most = max(most, v.ready)
		}
		return most
	}
	for i := range versions {
		v := &versions[i]
		if v.ready == 0 {
			continue
		}
		others := lower(i)
		if others == 0 {
			return v, again
		}
		if v.ready < min(2, (others+1)/2) {
			continue
		}
		if left := settle - now.Sub(v.since); left > 0 {
			if again == 0 || left < again {
				again = left
			}
			continue
		}
		return v, again
	}
	if len(versions) == 0 {
		return nil, 0
	}
	return &versions[0], 0 // all are leaving
}

// Offers are the versions of a pool that can serve an item as it is listed. The
// zero value: all of them.
type Offers struct {
	// Listed is what the item was listed from.
	Listed bus.Hash
	// Only are those that can, Listed among them; nil: all.
	Only []bus.Hash
}

// Choose returns the version that a call of an item is to go to, by chance but
// in proportion to their instances; ok is false when any will do.
func (c *Catalog) Choose(o Offers) (hash bus.Hash, ok bool) {
	switch len(o.Only) {
	case 0:
		return bus.Hash{}, false
	case 1:
		return o.Only[0], true
	}
	ready := *c.instances.Load()
	sum := 0
	for _, h := range o.Only {
		sum += ready[h]
	}
	if sum > 0 {
		n := rand.N(sum) //nolint:gosec // a share of the load is no secret
		for _, h := range o.Only {
			if n -= ready[h]; n < 0 {
				return h, true
			}
		}
	}
	return o.Only[0], true
}
