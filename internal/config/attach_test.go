package config

import (
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// policyFor makes a policy, created at a second, 0 for none, for pools.
func policyFor(name string, second int64, pools ...string) *v1alpha1.RoutingPolicy {
	p := &v1alpha1.RoutingPolicy{}
	p.Namespace, p.Name = "ns", name
	if second > 0 {
		p.CreationTimestamp = metav1.Unix(second, 0)
	}
	for _, pool := range pools {
		p.Spec.TargetRefs = append(p.Spec.TargetRefs, v1alpha1.PolicyTarget{Name: pool})
	}
	return p
}

func poolNamed(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: name}
}

func TestTheOldestPolicyWins(t *testing.T) {
	for name, tc := range map[string]struct {
		a, b    *v1alpha1.RoutingPolicy
		inForce string
		want    string
	}{
		"the older":                               {policyFor("a", 2, "m"), policyFor("b", 1, "m"), "a", "b"},
		"the first by name":                       {policyFor("a", 1, "m"), policyFor("b", 1, "m"), "b", "a"},
		"in files the one in force":               {policyFor("a", 0, "m"), policyFor("b", 0, "m"), "b", "b"},
		"in files at the start the first by name": {policyFor("a", 0, "m"), policyFor("b", 0, "m"), "", "a"},
		"a third one was in force":                {policyFor("a", 0, "m"), policyFor("b", 0, "m"), "c", "a"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, list := range [][]*v1alpha1.RoutingPolicy{{tc.a, tc.b}, {tc.b, tc.a}} {
				got := PolicyWinners(list, map[types.NamespacedName]string{poolNamed("m"): tc.inForce})
				if got[poolNamed("m")].Name != tc.want {
					t.Errorf("%s wins, want %s", got[poolNamed("m")].Name, tc.want)
				}
			}
		})
	}
}

// Whatever the policies are: each targeted pool has a winner that targets it, none that does is better, and the order of
// the list does not matter.
func TestWinners(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var list []*v1alpha1.RoutingPolicy
		for i := range r.IntN(6) {
			var pools []string
			for _, name := range []string{"m", "n", "o"} {
				if r.IntN(2) == 0 {
					pools = append(pools, name)
				}
			}
			list = append(list, policyFor(string(rune('a'+i)), 1+r.Int64N(3), pools...))
		}
		winners := PolicyWinners(list, nil)
		for _, name := range []string{"m", "n", "o"} {
			var want *v1alpha1.RoutingPolicy
			for _, p := range list {
				if slices.Contains(PolicyTargets(p), poolNamed(name)) && (want == nil || p.CreationTimestamp.Time.Before(want.CreationTimestamp.Time)) {
					want = p // the list is by name
				}
			}
			if winners[poolNamed(name)] != want {
				t.Fatalf("%s: %v wins, want %v", name, winners[poolNamed(name)], want)
			}
		}
		r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		if again := PolicyWinners(list, nil); len(again) != len(winners) || again[poolNamed("m")] != winners[poolNamed("m")] {
			t.Fatal("the order of the list matters")
		}
	}
}

func TestBothGroupsMeanTheSamePool(t *testing.T) {
	group := "inference.networking.k8s.io"
	p := policyFor("a", 1, "m")
	q := policyFor("b", 2, "m")
	q.Spec.TargetRefs[0].Group = &group
	if got := PolicyWinners([]*v1alpha1.RoutingPolicy{p, q}, nil); len(got) != 1 || got[poolNamed("m")] != p {
		t.Errorf("got %v", got)
	}
}

func TestTenants(t *testing.T) {
	hash := func(key string) string {
		sum := sha256.Sum256([]byte(key))
		return hex.EncodeToString(sum[:])
	}
	secrets := map[string]map[string]string{
		"good":   {"acme": `{"class":"gold","sha256":["` + hash("k") + `"]}`},
		"shared": {"other": `{"sha256":["` + hash("k") + `"]}`},
		"plain":  {"naked": "my-key", "fine": `{"sha256":["` + hash("l") + `"]}`},
		"silver": {"ag": `{"class":"silver","sha256":["` + hash("m") + `"]}`},
	}
	for name, tc := range map[string]struct {
		refs    []string
		known   int
		missing []string
		invalid []string
	}{
		"none":                          {},
		"one":                           {refs: []string{"good"}, known: 1},
		"one that is not there":         {refs: []string{"gone", "good"}, known: 1, missing: []string{"gone"}},
		"an entry that is none":         {refs: []string{"plain"}, known: 1, invalid: []string{"secretRefs[0]", "entry naked"}},
		"a class that is none":          {refs: []string{"good", "silver"}, known: 1, invalid: []string{"secretRefs[1]", "no class silver"}},
		"a key that two tenants have":   {refs: []string{"good", "shared"}, known: 2, invalid: []string{"acme", "other"}},
		"the same tenant in two places": {refs: []string{"good", "good"}, known: 1, invalid: []string{"acme is there twice"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := policyFor("p", 1, "m")
			p.Spec.Admission.Tenants.Classes = []v1alpha1.TenantClass{{Name: "default"}, {Name: "gold"}}
			for _, ref := range tc.refs {
				p.Spec.Admission.Tenants.SecretRefs = append(p.Spec.Admission.Tenants.SecretRefs, v1alpha1.LocalName{Name: ref})
			}
			known, missing, invalid := PolicyTenants(p, func(name string) *corev1.Secret {
				entries, ok := secrets[name]
				if !ok {
					return nil
				}
				s := &corev1.Secret{Data: map[string][]byte{}}
				for key, value := range entries {
					s.Data[key] = []byte(value)
				}
				return s
			})
			if known.Len() != tc.known {
				t.Errorf("%d tenants are known, want %d", known.Len(), tc.known)
			}
			if diff := cmp.Diff(tc.missing, missing); diff != "" {
				t.Errorf("missing (-want +got):\n%s", diff)
			}
			if (len(tc.invalid) > 0) != (len(invalid) > 0) {
				t.Errorf("got %v", invalid)
			}
			for _, part := range tc.invalid {
				if !strings.Contains(invalid.ToAggregate().Error(), part) {
					t.Errorf("%v does not say %q", invalid, part)
				}
			}
			if len(invalid) > 0 && strings.Contains(invalid.ToAggregate().Error(), "my-key") {
				t.Errorf("%v repeats what is in the Secret", invalid)
			}
		})
	}
}
