package picker

import (
	"context"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// revisions gives the endpoints of a pool their revisions.
func revisions(spec Spec, names ...string) Spec {
	for i, name := range names {
		spec.Endpoints[i].Revision = name
	}
	return spec
}

func TestPairsAreOfOneRevision(t *testing.T) {
	const prefill, decode = endpoint.Prefill, endpoint.Decode
	for name, tc := range map[string]struct {
		roles     []endpoint.Role
		revisions []string
		from, to  string // empty for a request alone
	}{
		"one revision":               {[]endpoint.Role{prefill, decode}, []string{"a", "a"}, "pod-0", "pod-1"},
		"two revisions":              {[]endpoint.Role{prefill, decode}, []string{"a", "b"}, "", ""},
		"one is not known":           {[]endpoint.Role{prefill, decode}, []string{"", "b"}, "pod-0", "pod-1"},
		"none is known":              {[]endpoint.Role{prefill, decode}, []string{"", ""}, "pod-0", "pod-1"},
		"the first has no partner":   {[]endpoint.Role{prefill, prefill, decode}, []string{"a", "b", "b"}, "pod-1", "pod-2"},
		"the second has a partner":   {[]endpoint.Role{prefill, decode, decode}, []string{"b", "a", "b"}, "pod-0", "pod-2"},
		"a pod that does both":       {[]endpoint.Role{endpoint.Both, endpoint.Both, decode}, []string{"a", "b", "b"}, "pod-1", "pod-2"},
		"a pod is no pair by itself": {[]endpoint.Role{prefill, endpoint.Both}, []string{"a", "b"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			p := newPicker(t, c, revisions(rolesSpec(t, above, tc.roles...), tc.revisions...))
			for i := range 10 { // whatever the ties
				body := completion("m", 1000*i, 500, true)
				d := splits(t, p, body)
				if tc.from == "" {
					if d.Leg() != Whole {
						t.Errorf("leg %v at %s", d.Leg(), d.Targets[0].Endpoint.Pod)
					}
					d.End(Completed)
					continue
				}
				if d.Leg() != PrefillLeg {
					t.Fatalf("leg %v at %s", d.Leg(), d.Targets[0].Endpoint.Pod)
				}
				from := d.Targets[0].Endpoint
				d = next(t, p, body, d)
				to := d.Targets[0].Endpoint
				if name != "a pod that does both" && (from.Pod != tc.from || to.Pod != tc.to) {
					t.Errorf("from %s to %s, want %s and %s", from.Pod, to.Pod, tc.from, tc.to)
				}
				if from.Revision != to.Revision && from.Revision != "" && to.Revision != "" {
					t.Errorf("from revision %s to %s", from.Revision, to.Revision)
				}
				for _, other := range d.Targets {
					if r := other.Endpoint.Revision; r != from.Revision && r != "" && from.Revision != "" {
						t.Errorf("%s of revision %s is tried with blocks of revision %s", other.Endpoint.Pod, r, from.Revision)
					}
				}
				c.advance(time.Second)
				d.FirstToken()
				d.End(Completed)
			}
			atRest(t, p, c)
		})
	}
}

// TestARequestIsServedAloneIfItsPartnersAreGone: the endpoints that could load its blocks have left with their revision.
func TestARequestIsServedAloneIfItsPartnersAreGone(t *testing.T) {
	c := newClock()
	spec := revisions(rolesSpec(t, above, endpoint.Prefill, endpoint.Decode, endpoint.Decode), "a", "a", "b")
	p := newPicker(t, c, spec)
	body := completion("m", 1000, 500, true)
	d := splits(t, p, body)
	if d.Leg() != PrefillLeg {
		t.Fatalf("leg %v", d.Leg())
	}
	without := spec
	without.Endpoints = []endpoint.Endpoint{spec.Endpoints[0], spec.Endpoints[2]}
	if err := p.Apply([]Spec{without}); err != nil {
		t.Fatal(err)
	}
	after, err := p.Pick(context.Background(), &Request{Route: openai.Completions, Body: body, Splits: true, Again: d, HandedOver: true})
	if err != nil {
		t.Fatal(err)
	}
	if after.Leg() != Whole || after.Targets[0].Endpoint.Pod != "pod-2" {
		t.Errorf("leg %v at %s, want the whole request at pod-2", after.Leg(), after.Targets[0].Endpoint.Pod)
	}
	after.End(Completed)
	atRest(t, p, c)
}
