package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
)

// fleetPool is a pool of a model with its name, whose pods have the label app=NAME.
func fleetPool(t *testing.T, name, picker string) object {
	t.Helper()
	return defaulted(t, "InferencePool", name,
		fmt.Sprintf(`{"model":{"name":%q},"selector":{"matchLabels":{"app":%q}},"picker":%s}`, name, name, picker))
}

// fleetPod is a ready pod of such a pool.
func fleetPod(pool, ip string) object { return pod(ip, true, object{"labels": object{"app": pool}}) }

const ofFleet = `{"mode":"Fleet"}`

func followFleet(t *testing.T, s *apiServer, fleet string) <-chan config.State {
	t.Helper()
	return followSource(t, Options{Config: s.config(), Fleet: types.NamespacedName{Namespace: "default", Name: fleet}, Log: logr.Discard()})
}

// served are the names of the pools that are served.
func served(s config.State) string {
	var names []string
	for i := range s.Specs {
		names = append(names, s.Specs[i].Name)
	}
	return strings.Join(names, " ")
}

func serves(want string) func(config.State) bool {
	return func(s config.State) bool { return served(s) == want }
}

func TestAFleetFollowsThePoolsThatNameIt(t *testing.T) {
	s := newAPIServer(t)
	states := followFleet(t, s, "default")
	if first := <-states; len(first.Specs)+len(first.Problems) != 0 {
		t.Fatalf("a fleet without pools has %d, problems %v", len(first.Specs), first.Problems)
	}
	for i, name := range []string{"a", "b", "c", "managed"} {
		s.put("secrets", name+"-key", root(fmt.Sprint(i)))
		s.put("pods", name+"-0", fleetPod(name, fmt.Sprintf("10.0.0.%d", i)))
	}
	s.put("inferencepools", "managed", fleetPool(t, "managed", `{}`))
	s.put("inferencepools", "a", fleetPool(t, "a", ofFleet))
	s.put("inferencepools", "b", fleetPool(t, "b", `{"mode":"Fleet","fleetRef":{"name":"default"}}`))
	s.put("inferencepools", "c", fleetPool(t, "c", `{"mode":"Fleet","fleetRef":{"name":"other"}}`))
	s.put("routingpolicies", "p", defaulted(t, "RoutingPolicy", "p", `{"targetRefs":[{"name":"b"},{"name":"c"},{"name":"managed"}],"strategy":{"type":"Random"}}`))
	state := await(t, states, "both pools", func(state config.State) bool {
		return served(state) == "a b" && pickable(state) == "a-0@10.0.0.0:8000 b-0@10.0.0.1:8000" && state.Specs[1].Policy.Name == "p"
	})
	if state.Specs[0].Policy.Name != "" || state.Specs[0].Seed == state.Specs[1].Seed {
		t.Errorf("pool a has the policy %q; same keys %t", state.Specs[0].Policy.Name, state.Specs[0].Seed == state.Specs[1].Seed)
	}
	if len(state.Pods) != 2 || len(state.Problems) != 0 {
		t.Errorf("pods %v and problems %v: pools of others are not this picker's business", state.Pods, state.Problems)
	}

	s.put("pods", "b-0", pod("10.0.0.1", true, object{"labels": object{"app": "b", "kvasir.dev/drain": "manual"}}))
	await(t, states, "a mark in one of the pools", func(state config.State) bool {
		return pickable(state) == "a-0@10.0.0.0:8000" && len(state.Pods) == 2 && state.Pods[1].Leaving && state.Pods[1].Pool == "b"
	})
	s.put("inferencepools", "c", fleetPool(t, "c", ofFleet))
	await(t, states, "a pool of another fleet", serves("a b c"))
	s.put("inferencepools", "managed", fleetPool(t, "managed", ofFleet))
	await(t, states, "a pool of another mode", serves("a b c managed"))
	s.remove("pods", "a-0")
	s.remove("inferencepools", "a")
	await(t, states, "the end of a pool that is deleted with its pods", serves("b c managed"))
}

// TestAPoolIsServedUntilItsStatusNamesOtherPickers: by a picker, too, that starts when the spec names others.
func TestAPoolIsServedUntilItsStatusNamesOtherPickers(t *testing.T) {
	s := newAPIServer(t)
	s.put("secrets", "a-key", root("1"))
	s.put("pods", "a-0", fleetPod("a", "10.0.0.1"))
	moving := fleetPool(t, "a", `{}`)
	moving["status"] = object{"picker": object{"fleetName": "default"}}
	s.put("inferencepools", "a", moving)
	states := followFleet(t, s, "default")
	await(t, states, "a pool that has not left yet", picks("a-0@10.0.0.1:8000"))
	stranger := followFleet(t, s, "other")
	await(t, stranger, "no pool", serves(""))
	there := fleetPool(t, "a", `{}`)
	there["status"] = object{"picker": object{"fleetName": "other"}}
	s.put("inferencepools", "a", there)
	await(t, stranger, "the pool that has come", picks("a-0@10.0.0.1:8000"))
}

// TestOneBrokenPoolOfAFleetDoesNotHurtTheOthers: neither one without a key root, nor one that cannot be read, nor one whose name is
// taken.
func TestOneBrokenPoolOfAFleetDoesNotHurtTheOthers(t *testing.T) {
	s := newAPIServer(t)
	s.put("secrets", "fine-key", root("1"))
	s.put("inferencepools", "fine", fleetPool(t, "fine", ofFleet))
	s.put("pods", "fine-0", fleetPod("fine", "10.0.0.1"))
	states := followFleet(t, s, "default")
	await(t, states, "the pool", picks("fine-0@10.0.0.1:8000"))
	s.put("inferencepools", "keyless", fleetPool(t, "keyless", ofFleet))
	s.put("inferencepools", "unreadable", object{"spec": object{"model": "of another version", "picker": object{"mode": "Fleet"}}})
	s.put("secrets", "double-key", root("2"))
	double := fleetPool(t, "fine", ofFleet)
	double["metadata"] = object{"creationTimestamp": "2026-02-01T00:00:00Z"}
	s.put("inferencepools", "double", double) // younger, with the same model
	state := await(t, states, "the problems", func(state config.State) bool { return len(state.Pools) == 3 })
	if served(state) != "fine" || pickable(state) != "fine-0@10.0.0.1:8000" {
		t.Errorf("served %q, picks %q", served(state), pickable(state))
	}
	var problems []string
	for i := range state.Problems {
		problems = append(problems, state.Problems[i].Error())
	}
	for _, want := range []string{"double: spec.model.name: Duplicate", "keyless: spec.keySpace"} {
		if !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, want) }) {
			t.Errorf("problems %q, want one with %q", problems, want)
		}
	}
	s.put("pods", "fine-1", fleetPod("fine", "10.0.0.2"))
	await(t, states, "a pod of the good pool", picks("fine-0@10.0.0.1:8000 fine-1@10.0.0.2:8000"))
}

// TestTheOldestPoolOfAFleetHasAName, whichever the picker has known first: so all replicas agree.
func TestTheOldestPoolOfAFleetHasAName(t *testing.T) {
	young := func(name, date string) object {
		pool := fleetPool(t, "m", ofFleet)
		pool["metadata"] = object{"creationTimestamp": date, "uid": name}
		return pool
	}
	for name, order := range map[string][]string{"the younger first": {"a", "b"}, "the older first": {"b", "a"}} {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t)
			states := followFleet(t, s, "default")
			dates := map[string]string{"a": "2026-03-01T00:00:00Z", "b": "2026-02-01T00:00:00Z"}
			for _, pool := range order {
				s.put("secrets", pool+"-key", root("1"))
				s.put("inferencepools", pool, young(pool, dates[pool]))
				await(t, states, "pool "+pool, func(state config.State) bool {
					return slices.ContainsFunc(state.Pools, func(p config.PoolState) bool { return p.Object.Name == pool })
				})
			}
			s.put("pods", "x", fleetPod("m", "10.0.0.1"))
			await(t, states, "the older pool alone", serves("b"))
		})
	}
}

// departures plays pools that come and go in time.
type departures struct {
	t     *testing.T
	s     *Source
	pools map[string]*v1alpha1.InferencePool
	pods  []*corev1.Pod
	now   time.Time
}

func newDepartures(t *testing.T) *departures {
	return &departures{
		t: t, s: &Source{scope: scope{namespace: "default", fleet: "f"}, departed: map[string]*departed{}, log: logr.Discard()},
		pools: map[string]*v1alpha1.InferencePool{}, now: time.Unix(0, 0),
	}
}

func (d *departures) pool(name, fleet string, models ...v1alpha1.ModelName) {
	p := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	p.Spec.Model.Name, p.Spec.Model.Aliases = models[0], models[1:]
	p.Spec.Picker.Mode = v1alpha1.PickerManaged
	if fleet != "" {
		p.Spec.Picker.Mode, p.Spec.Picker.FleetRef.Name = v1alpha1.PickerOfFleet, fleet
	}
	d.pools[name] = p
}

func (d *departures) pod(pool string) {
	d.pods = append(d.pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Labels: map[string]string{v1alpha1.LabelPool: pool}}})
}

func (d *departures) check(after time.Duration, want string) {
	d.t.Helper()
	d.now = d.now.Add(after)
	var all []*v1alpha1.InferencePool
	for _, p := range d.pools {
		all = append(all, p)
	}
	over, before := d.s.over(d.now), len(d.s.served)
	kept := d.s.keep(all, d.pods, d.now)
	o := objectsOf(d.s.isServed, kept, nil, d.pods)
	var got []string
	for _, p := range o.Pools {
		got = append(got, p.Name)
	}
	slices.Sort(got)
	if strings.Join(got, " ") != want {
		d.t.Errorf("at %s: served %q, want %q", d.now.Sub(time.Unix(0, 0)), got, want)
	}
	if over && len(d.s.served) >= before {
		d.t.Errorf("at %s: the time of a pool was over, and it is served", d.now.Sub(time.Unix(0, 0)))
	}
}

// TestAPoolThatLeavesAFleetIsServedForAWhile: until gateways and clients have changed to its other pickers.
func TestAPoolThatLeavesAFleetIsServedForAWhile(t *testing.T) {
	d := newDepartures(t)
	d.pool("a", "f", "a")
	d.pool("b", "f", "b")
	d.pool("c", "", "c")
	d.check(0, "a b")
	d.pool("a", "", "a") // Managed
	d.check(time.Minute, "a b")
	if mode := d.s.served["a"].Spec.Picker.Mode; mode != v1alpha1.PickerManaged {
		t.Errorf("a pool that has left is served as it was in mode %s: its changes are not followed", mode)
	}
	d.pool("b", "g", "b") // of another fleet
	d.check(servedAfterLeave-1, "a b")
	d.check(1, "b")
	d.pool("b", "f", "b") // it is back
	d.check(time.Minute, "b")
	d.pool("b", "g", "b")
	d.check(time.Minute, "b")
	d.check(servedAfterLeave-1, "b")
	d.check(1, "")
	d.check(time.Hour, "")
	d.pool("a", "f", "a")
	d.check(0, "a")
}

// TestADeletedPoolOfAFleetIsServedWhileItHasPods, at most an hour.
func TestADeletedPoolOfAFleetIsServedWhileItHasPods(t *testing.T) {
	d := newDepartures(t)
	d.pool("a", "f", "a")
	d.pool("b", "f", "b")
	d.pod("a")
	d.pod("b")
	d.check(0, "a b")
	delete(d.pools, "a")
	delete(d.pools, "b")
	d.check(time.Minute, "a b")
	d.pods[0].DeletionTimestamp = &metav1.Time{Time: d.now}
	d.check(time.Minute, "b")
	d.check(servedAfterDelete-time.Minute-1, "b")
	d.check(1, "")
}

// TestADepartedPoolGivesItsNamesToPoolsOfTheFleet: a pool that replaces it is served at once.
func TestADepartedPoolGivesItsNamesToPoolsOfTheFleet(t *testing.T) {
	d := newDepartures(t)
	d.pool("a", "f", "a", "shared")
	d.pool("b", "f", "b")
	d.pod("b")
	d.check(0, "a b")
	d.pool("a", "", "a", "shared")
	delete(d.pools, "b")
	d.check(time.Minute, "a b")
	d.pool("new", "f", "shared")
	d.check(time.Minute, "b new")
	d.pool("newer", "f", "b")
	d.check(time.Minute, "new newer")
}

// TestManySecretsAreAskedForInTurns: a fleet of many pools does not keep the API server busy.
func TestManySecretsAreAskedForInTurns(t *testing.T) {
	s := newAPIServer(t)
	source, err := New(Options{Config: s.config(), Fleet: types.NamespacedName{Namespace: "default", Name: "f"}, Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	const many = askedAtOnce + askedAtOnce/2
	wanted := map[reference]bool{}
	name := func(i int) string { return fmt.Sprintf("s%d", i) }
	for i := range many {
		s.put("secrets", name(i), root("7"))
		wanted[reference{name: name(i)}] = true
	}
	n := source.named
	n.want(t.Context(), wanted)
	asked := func() (total int) {
		for i := range many {
			total += s.requests("secrets/" + name(i))
		}
		return total
	}
	if asked() != many {
		t.Fatalf("%d questions at first, want %d: no pool waits for its turn", asked(), many)
	}
	for turn := 1; turn <= 3; turn++ {
		n.ask(t.Context())
		if got := asked() - many; got != turn*askedAtOnce {
			t.Errorf("%d questions after %d turns, want %d", got, turn, turn*askedAtOnce)
		}
	}
	for i := range many {
		if got := s.requests("secrets/" + name(i)); got != 3 {
			t.Errorf("%s was asked for %d times, want 3 as all", name(i), got)
		}
	}
}
