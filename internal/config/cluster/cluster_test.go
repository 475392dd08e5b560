package cluster

import (
	"context"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// defaulted is the spec of an object as an API server returns it, with all defaults.
func defaulted(t *testing.T, kind, name, spec string) object {
	t.Helper()
	a, err := crdadmission.New()
	if err != nil {
		t.Fatal(err)
	}
	o, err := a.Admit(t.Context(), []byte(`{"apiVersion":"kvasir.dev/v1alpha1","kind":"`+kind+`","metadata":{"name":"`+name+`"},"spec":`+spec+`}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	return object{"spec": o.Object["spec"]}
}

func root(b string) object {
	return object{"data": object{"root": base64.StdEncoding.EncodeToString([]byte(strings.Repeat(b, 32)))}}
}

func pod(ip string, ready bool, more object) object {
	status := "False"
	if ready {
		status = "True"
	}
	meta := object{"labels": object{"app": "m"}}
	for key, value := range more {
		meta[key] = value
	}
	return object{
		"metadata": meta,
		"status":   object{"phase": "Running", "podIP": ip, "conditions": []object{{"type": "Ready", "status": status}}},
	}
}

const smallPool = `{"model":{"name":"m"},"selector":{"matchLabels":{"app":"m"}}}`

// follow follows the pool m and returns its states. The last one is always the present one.
func follow(t *testing.T, s *apiServer) <-chan config.State {
	t.Helper()
	return followWith(t, Options{Config: s.config()})
}

func followWith(t *testing.T, o Options) <-chan config.State {
	t.Helper()
	o.Pool, o.Log = types.NamespacedName{Namespace: "default", Name: "m"}, logr.Discard()
	return followSource(t, o)
}

func followSource(t *testing.T, o Options) <-chan config.State {
	t.Helper()
	source, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	states, ended := make(chan config.State, 1000), make(chan struct{})
	go func() {
		defer close(ended)
		source.Follow(ctx, func(state config.State) { states <- state })
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return states
}

// await waits for a state.
func await(t *testing.T, states <-chan config.State, what string, is func(config.State) bool) config.State {
	t.Helper()
	deadline := time.After(20 * time.Second)
	var last config.State
	for {
		select {
		case last = <-states:
			if is(last) {
				return last
			}
		case <-deadline:
			t.Fatalf("%s did not come; the last state has %d pools, problems %v", what, len(last.Specs), last.Problems)
		}
	}
}

// pickable are the pods that requests may go to.
func pickable(s config.State) string {
	var names []string
	for i := range s.Specs {
		for j := range s.Specs[i].Endpoints {
			if e := &s.Specs[i].Endpoints[j]; e.Pickable() {
				names = append(names, e.Pod+"@"+e.Address)
			}
		}
	}
	return strings.Join(names, " ")
}

func picks(want string) func(config.State) bool {
	return func(s config.State) bool { return pickable(s) == want }
}

func TestAPoolIsFollowed(t *testing.T) {
	s := newAPIServer(t)
	s.put("inferencepools", "m", defaulted(t, "InferencePool", "m", smallPool))
	s.put("secrets", "m-key", root("7"))
	s.put("pods", "a", pod("10.0.0.1", true, nil))
	s.put("pods", "b", pod("10.0.0.2", false, nil))
	s.put("pods", "c", pod("10.0.0.3", true, object{"labels": object{"app": "other"}}))
	states := follow(t, s)
	first := <-states
	if got := pickable(first); got != "a@10.0.0.1:8000" {
		t.Fatalf("at first %q: the first state must be a whole one", got)
	}
	seed, err := kvblock.NewSeed([]byte(strings.Repeat("7", 32)))
	if err != nil {
		t.Fatal(err)
	}
	if first.Specs[0].Seed != seed {
		t.Error("the keys are not rooted in the Secret")
	}
	s.put("pods", "b", pod("10.0.0.2", true, nil))
	await(t, states, "the pod that has become ready", picks("a@10.0.0.1:8000 b@10.0.0.2:8000"))
	s.put("pods", "a", pod("10.0.0.1", true, object{"labels": object{"app": "m", "kvasir.dev/drain": "manual"}}))
	marked := await(t, states, "the mark", picks("b@10.0.0.2:8000"))
	if !marked.Pods[0].Leaving || marked.Pods[1].Leaving || len(marked.Pods) != 2 {
		t.Errorf("pods %+v", marked.Pods)
	}
	s.put("pods", "a", pod("10.0.0.1", true, nil))
	await(t, states, "the mark lifted", picks("a@10.0.0.1:8000 b@10.0.0.2:8000"))
	s.put("pods", "a", pod("10.0.0.1", true, object{"deletionTimestamp": "2026-01-01T00:00:00Z"}))
	await(t, states, "the deletion", picks("b@10.0.0.2:8000"))
	s.remove("pods", "a")
	gone := await(t, states, "the end of the pod", func(s config.State) bool { return len(s.Pods) == 1 })
	if n := len(gone.Specs[0].Endpoints); n != 1 {
		t.Errorf("%d endpoints, want 1", n)
	}

	s.put("routingpolicies", "p", defaulted(t, "RoutingPolicy", "p", `{"targetRefs":[{"name":"m"},{"name":"other"}],"strategy":{"type":"LeastLoad"}}`))
	await(t, states, "the policy", func(s config.State) bool { return len(s.Specs) == 1 && s.Specs[0].Policy.Name == "p" })
	s.put("routingpolicies", "p", defaulted(t, "RoutingPolicy", "p", `{"targetRefs":[{"name":"m"},{"name":"other"}],"strategy":{"type":"Random"}}`))
	changed := await(t, states, "the policy's change", func(s config.State) bool { return s.Specs[0].Policy.Generation == 2 })
	if got := changed.Specs[0].Policy.Strategy.Type; got != "Random" {
		t.Errorf("strategy %s", got)
	}
	if len(changed.Problems) > 0 {
		t.Errorf("problems %v: other targets are not this picker's business", changed.Problems)
	}
}

func TestWhatSaysNothingNewMakesNoState(t *testing.T) {
	s := newAPIServer(t)
	full := defaulted(t, "InferencePool", "m", smallPool)
	s.put("inferencepools", "m", full)
	s.put("secrets", "m-key", root("7"))
	s.put("pods", "a", pod("10.0.0.1", true, nil))
	states := follow(t, s)
	<-states
	full["status"] = object{"replicas": 1}
	s.put("inferencepools", "m", full)
	beat := pod("10.0.0.1", true, object{"annotations": object{"somebody's": "note"}})
	s.put("pods", "a", beat)
	s.put("pods", "b", pod("10.0.0.2", true, nil)) // watches keep the order
	if got := pickable(<-states); got != "a@10.0.0.1:8000 b@10.0.0.2:8000" {
		t.Errorf("the next state has %q", got)
	}
	select {
	case extra := <-states:
		t.Errorf("one more state: %q", pickable(extra))
	case <-time.After(5 * settle):
	}
}

func TestAnOutageChangesNothing(t *testing.T) {
	s := newAPIServer(t)
	s.put("inferencepools", "m", defaulted(t, "InferencePool", "m", smallPool))
	s.put("secrets", "m-key", root("7"))
	s.put("pods", "a", pod("10.0.0.1", true, nil))
	states := follow(t, s)
	<-states
	s.setAway(true)
	select {
	case state := <-states:
		t.Errorf("a state without an API server: %q", pickable(state))
	case <-time.After(500 * time.Millisecond):
	}
	s.put("pods", "b", pod("10.0.0.2", true, nil))
	s.remove("pods", "a")
	s.setAway(false)
	await(t, states, "what has changed meanwhile", picks("b@10.0.0.2:8000"))
}

func TestThePoolWaitsForItsKeyRoot(t *testing.T) {
	s := newAPIServer(t)
	s.put("inferencepools", "m", defaulted(t, "InferencePool", "m", smallPool))
	states := follow(t, s)
	if first := <-states; len(first.Specs) != 0 || len(first.Problems) != 1 {
		t.Fatalf("%d pools are served without a root that replicas share, problems %v", len(first.Specs), first.Problems)
	}
}

func TestSecretsAreAskedForByName(t *testing.T) {
	s := newAPIServer(t)
	s.put("inferencepools", "m", defaulted(t, "InferencePool", "m", smallPool))
	s.put("secrets", "m-key", root("7"))
	source, err := New(Options{Config: s.config(), Pool: types.NamespacedName{Namespace: "default", Name: "m"}, Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	n, key := source.named, reference{name: "m-key"}
	n.want(t.Context(), map[reference]bool{key: true, {configMap: true, name: "files"}: true})
	if secrets, maps := n.objects(); len(secrets) != 1 || len(maps) != 0 {
		t.Fatalf("%d Secrets and %d ConfigMaps", len(secrets), len(maps))
	}
	if n.ask(t.Context()) {
		t.Error("nothing has changed")
	}
	s.put("configmaps", "files", object{"data": object{"a": "b"}})
	if !n.ask(t.Context()) {
		t.Error("a ConfigMap has come")
	}
	for what, do := range map[string]func(on bool){"denied": func(on bool) { s.deny("secrets/m-key", on) }, "away": s.setAway} {
		do(true)
		if n.ask(t.Context()) {
			t.Errorf("%s: something has changed", what)
		}
		if secrets, _ := n.objects(); len(secrets) != 1 {
			t.Errorf("%s: the Secret is gone", what)
		}
		do(false)
	}
	s.remove("secrets", "m-key")
	if !n.ask(t.Context()) {
		t.Error("the Secret has been deleted")
	}
	if secrets, _ := n.objects(); len(secrets) != 0 {
		t.Error("the Secret is still there")
	}
	if s.requests("secrets") > 0 || s.requests("configmaps") > 0 {
		t.Error("Secrets and ConfigMaps were listed or watched: pickers have no right to")
	}
}

func TestAnUnreadableObjectKeepsItsLastGoodState(t *testing.T) {
	s := newAPIServer(t)
	s.put("inferencepools", "m", defaulted(t, "InferencePool", "m", smallPool))
	s.put("secrets", "m-key", root("7"))
	s.put("pods", "a", pod("10.0.0.1", true, nil))
	states := follow(t, s)
	<-states
	s.put("inferencepools", "m", object{"spec": object{"model": "of another version"}})
	state := await(t, states, "the state after it", func(config.State) bool { return true })
	if len(state.Specs) != 1 || state.Specs[0].Generation != 1 || pickable(state) != "a@10.0.0.1:8000" {
		t.Errorf("%d pools, %q", len(state.Specs), pickable(state))
	}
	other := defaulted(t, "InferencePool", "m", strings.Replace(smallPool, "{", `{"engine":{"ports":{"http":81}},`, 1))
	s.put("inferencepools", "m", other)
	await(t, states, "the mended pool", picks("a@10.0.0.1:81"))
}
