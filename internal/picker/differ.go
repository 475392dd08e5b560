package picker

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// differing are the endpoints whose engine counts or announces other tokens for a class of requests than the engines of the
// others: one of another version, with another template, or one that lies. Of each endpoint and class, the last answers in which
// it took part are kept: those that it served, and those that were served elsewhere with tokens that its engine rendered. An
// endpoint differs if
//
//   - 8 or more of its last 32 answers do not fit, for more than half of the tenants in them, and with more than half of the
//     sources of tokens (the picker is one, each other endpoint another), a quarter each, and
//   - fewer than half of the endpoints with answers do so, of three or more. Otherwise the tokens are in doubt.
//
// That is reported, and no more: its matches are judged by what it finds (see trust). It is asked for tokens only if no other
// endpoint is left, and its answers do not count against the tokens.
//
// Requests with other traits than that of an adapter are left out: clients choose those, and they say little about an engine.
//
// All is guarded by the mu of checks, but for some.
type differing struct {
	some  atomic.Bool // some endpoint differs
	known map[class]*comparisons
}

// comparisons are those of all endpoints with answers of a class.
type comparisons struct {
	of       map[*member]*comparison
	suspects int
	few      bool // suspects, of enough endpoints
}

// comparison is how an endpoint compares with the others for one class.
type comparison struct {
	answers []fitting // the oldest first; endpoint is the other one, nil where the picker made the tokens
	misfits int       // among answers
	suspect bool      // they show a difference, however few they are
	differs bool
}

// difference is that an endpoint differs for a class, or no longer does.
type difference struct {
	member           *member
	of               class
	differs          bool
	misfits, answers int
}

// enter takes an answer, and returns what it changes.
func (d *differing) enter(now time.Time, of class, by asker, fits bool) (changed []difference) {
	if of.traits&^TraitAdapter != 0 || by.endpoint == nil || by.rendered == by.endpoint {
		return nil
	}
	if d.known == nil {
		d.known = map[class]*comparisons{}
	}
	all := d.known[of]
	if all == nil {
		all = &comparisons{of: map[*member]*comparison{}}
		d.known[of] = all
	}
	all.add(now, by.endpoint, fitting{asker{by.tenant, by.rendered, nil}, fits, now})
	if by.rendered != nil {
		all.add(now, by.rendered, fitting{asker{by.tenant, by.endpoint, nil}, fits, now})
	}
	if before := all.few; all.count() != before {
		for m := range all.of {
			changed = all.judge(changed, of, m)
		}
	} else {
		changed = all.judge(changed, of, by.endpoint)
		changed = all.judge(changed, of, by.rendered)
	}
	if len(changed) > 0 {
		d.count()
	}
	return changed
}

// add keeps an answer in which an endpoint took part.
func (a *comparisons) add(now time.Time, m *member, one fitting) {
	if m.left.Load() {
		return
	}
	c := a.of[m]
	if c == nil {
		c = &comparison{}
		a.of[m] = c
	}
	a.set(c, entered(now, c.answers, one))
}

// set gives a comparison other answers.
func (a *comparisons) set(c *comparison, answers []fitting) {
	if c.suspect {
		a.suspects--
	}
	c.answers, c.misfits = answers, misfitsOf(answers)
	if c.suspect = c.misfits > 0 && different(answers); c.suspect {
		a.suspects++
	}
}

// different reports whether answers of an endpoint show a difference.
func different(answers []fitting) bool {
	tenants, of := misfitting(answers, func(f *fitting) uint64 { return f.tenant })
	if 2*tenants <= of {
		return false
	}
	sources, of := misfitting(answers, func(f *fitting) *member { return f.endpoint })
	return 2*sources > of
}

// count returns whether suspects are few.
func (a *comparisons) count() bool {
	a.few = len(a.of) > 2 && 2*a.suspects < len(a.of)
	return a.few
}

// judge decides whether an endpoint differs, and adds what that changes.
func (a *comparisons) judge(changed []difference, of class, m *member) []difference {
	c := a.of[m]
	if c == nil {
		return changed
	}
	if differs := a.few && c.suspect && c.misfits >= doubtEnough; differs != c.differs {
		c.differs = differs
		changed = append(changed, difference{m, of, differs, c.misfits, len(c.answers)})
	}
	return changed
}

// count finds out whether some endpoint differs.
func (d *differing) count() {
	some := false
	for _, all := range d.known {
		for _, c := range all.of {
			some = some || c.differs
		}
	}
	d.some.Store(some)
}

// involve reports whether an endpoint that differs took part in an answer.
func (d *differing) involve(of class, by *asker) bool {
	return d.some.Load() && (d.has(of, by.endpoint) || d.has(of, by.rendered))
}

func (d *differing) has(of class, m *member) bool {
	all := d.known[of]
	if all == nil {
		return false
	}
	c := all.of[m]
	return c != nil && c.differs
}

// expire drops what is too old, and the endpoints that are gone, and returns what that changes.
func (d *differing) expire(now time.Time) (changed []difference) {
	for of, all := range d.known {
		for m, c := range all.of {
			all.set(c, slices.DeleteFunc(c.answers, func(old fitting) bool { return now.Sub(old.at) > trustAge || m.left.Load() }))
		}
		all.count()
		for m, c := range all.of {
			if changed = all.judge(changed, of, m); len(c.answers) == 0 {
				delete(all.of, m)
			}
		}
		if all.count(); len(all.of) == 0 {
			delete(d.known, of)
		}
	}
	d.count()
	return changed
}

// differs reports whether an endpoint differs from the others for a class of requests.
func (c *checks) differs(of class, m *member) bool {
	if !c.endpoints.some.Load() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endpoints.has(of, m)
}

// differsAtAll reports whether an endpoint differs from the others for some class.
func (c *checks) differsAtAll(m *member) bool {
	if !c.endpoints.some.Load() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for of := range c.endpoints.known {
		if c.endpoints.has(of, m) {
			return true
		}
	}
	return false
}

// raise makes doubts known.
func (v *view) raise(found doubts) {
	if found.kinds != 0 {
		v.doubt(found.kinds)
	}
	for _, of := range found.off {
		logging.Warn(v.log, "Token ids of a class of requests differ from the engines', not using them", "pool", v.spec.Name,
			"tokens", of.source.String(), "kind", of.kind.String(), "traits", of.traits.String(), "for", distrustFor.String(),
			"reason", "engines count or announce other tokens for them")
	}
	for i := range found.endpoint {
		one := &found.endpoint[i]
		fields := []any{"pool", v.spec.Name, "endpoint", v.nameOfMember(one.member), "tokens", one.of.source.String(),
			"kind", one.of.kind.String(), "traits", one.of.traits.String(), "answers", one.answers, "misfits", one.misfits}
		switch {
		case one.member.left.Load(): // what it was is of no use
		case one.differs:
			logging.Warn(v.log, "Endpoint counts or announces other tokens than the other endpoints", fields...)
		default:
			v.log.Info("Endpoint no longer differs from the other endpoints in its tokens", fields...)
		}
	}
}

// nameOfMember is pod/rank; empty for an endpoint that is gone.
func (v *view) nameOfMember(m *member) string {
	if i := slices.Index(v.members, m); i >= 0 {
		return nameOf(&v.spec.Endpoints[i])
	}
	return ""
}

// Doubt is a class of requests whose tokens do not fit.
type Doubt struct {
	// Endpoint is pod/rank of the only endpoint where they do not fit. Empty: they are not used until Until.
	Endpoint         string
	Tokens           TokenSource
	Kind             openai.Kind
	Traits           Traits
	Until            time.Time
	Misfits, Answers int
}

// doubtsNow are the present doubts of a pool, those that concern all endpoints first, and what has changed by the time.
func (v *view) doubtsNow(now time.Time) (list []Doubt, changed doubts) {
	c := &v.checks
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire(now)
	changed.endpoint = c.endpoints.expire(now)
	for of, off := range c.off {
		list = append(list, Doubt{"", of.source, of.kind, of.traits, off.until, off.misfits, off.answers})
	}
	for of, all := range c.endpoints.known {
		for m, one := range all.of {
			if !one.differs {
				continue
			}
			if name := v.nameOfMember(m); name != "" { // it is none that leaves
				list = append(list, Doubt{name, of.source, of.kind, of.traits, time.Time{}, one.misfits, len(one.answers)})
			}
		}
	}
	slices.SortFunc(list, func(a, b Doubt) int {
		return cmp.Or(cmp.Compare(a.Endpoint, b.Endpoint), cmp.Compare(a.Tokens, b.Tokens), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Traits, b.Traits))
	})
	return list, changed
}
