package cluster

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

func gatewayPool(ports ...int) object {
	var numbers []any
	for _, n := range ports {
		numbers = append(numbers, object{"number": n})
	}
	return object{"spec": object{"selector": object{"matchLabels": object{"app": "m"}}, "targetPorts": numbers}}
}

func TestABarePoolIsServedWithAllDefaults(t *testing.T) {
	s := newAPIServer(t)
	s.put("secrets", "m-key", root("7"))
	s.put("pods", "a", pod("10.0.0.1", false, nil))
	var asked atomic.Value
	states := followWith(t, Options{Config: s.config(), Bare: true, ModelOf: func(_ context.Context, address string, _ endpoint.Wire) (string, error) {
		asked.Store(address)
		if strings.HasPrefix(address, "10.0.0.1:") {
			return "", errors.New("it is not up")
		}
		return "org/model", nil
	}})
	if first := <-states; len(first.Pools) != 0 {
		t.Fatal("a pool out of nothing")
	}
	s.put(gatewayPools, "m", gatewayPool(9000))
	s.put("pods", "a", pod("10.0.0.1", true, nil))
	s.put("pods", "b", pod("10.0.0.2", true, nil))
	state := await(t, states, "the pool", picks("a@10.0.0.1:9000 b@10.0.0.2:9000"))
	if spec := state.Specs[0]; spec.Name != "m" || spec.Model != "org/model" || !strings.HasSuffix(asked.Load().(string), ":9000") {
		t.Errorf("spec %+v", spec)
	}
	s.put("routingpolicies", "p", defaulted(t, "RoutingPolicy", "p",
		`{"targetRefs":[{"group":"inference.networking.k8s.io","name":"m"}],"strategy":{"type":"LeastLoad"}}`))
	await(t, states, "the policy", func(s config.State) bool { return len(s.Specs) == 1 && s.Specs[0].Policy.Name == "p" })
	s.put(gatewayPools, "m", gatewayPool(9001))
	await(t, states, "the other port", picks("a@10.0.0.1:9001 b@10.0.0.2:9001"))
	s.put(gatewayPools, "m", gatewayPool(9300, 9001)) // ports of two ranks, in any order
	await(t, states, "two ranks", picks("a@10.0.0.1:9300 a@10.0.0.1:9001 b@10.0.0.2:9300 b@10.0.0.2:9001"))
	s.put(gatewayPools, "m", gatewayPool(9001))
	await(t, states, "one rank again", picks("a@10.0.0.1:9001 b@10.0.0.2:9001"))
	s.put(gatewayPools, "m", gatewayPool()) // it cannot be read: the last good state stays
	s.put("pods", "c", pod("10.0.0.3", true, nil))
	await(t, states, "another pod", picks("a@10.0.0.1:9001 b@10.0.0.2:9001 c@10.0.0.3:9001"))

	// A user that needs more writes one of our InferencePools.
	s.put("inferencepools", "m", defaulted(t, "InferencePool", "m", strings.Replace(smallPool, "{", `{"gateway":{"mode":"Existing"},`, 1)))
	await(t, states, "the pool of ours", picks("a@10.0.0.1:8000 b@10.0.0.2:8000 c@10.0.0.3:8000"))
	s.remove("inferencepools", "m")
	s.remove(gatewayPools, "m")
	await(t, states, "the end of the pool", func(s config.State) bool { return len(s.Pools) == 0 })
}

func TestEnginesOfABarePoolAreAskedInItsProtocol(t *testing.T) {
	s := newAPIServer(t)
	s.put("secrets", "m-key", root("7"))
	s.put("pods", "a", pod("10.0.0.1", true, nil))
	pool := gatewayPool(9000)
	pool["spec"].(object)["appProtocol"] = "kubernetes.io/h2c"
	s.put(gatewayPools, "m", pool)
	asked := make(chan endpoint.Wire, 1)
	states := followWith(t, Options{Config: s.config(), Bare: true, ModelOf: func(_ context.Context, _ string, wire endpoint.Wire) (string, error) {
		asked <- wire
		return "m", nil
	}})
	await(t, states, "the pool", picks("a@10.0.0.1:9000"))
	if wire := <-asked; wire != (endpoint.Wire{H2C: true}) {
		t.Errorf("asked with %+v", wire)
	}
}

func TestAPoolThatIsMadeForOneOfOursIsNotBare(t *testing.T) {
	s := newAPIServer(t)
	s.put("secrets", "m-key", root("7"))
	s.put("pods", "a", pod("10.0.0.1", true, nil))
	made := gatewayPool(8000)
	made["metadata"] = object{"ownerReferences": []any{object{"apiVersion": "kvasir.dev/v1alpha1", "kind": "InferencePool", "name": "m", "uid": "u"}}}
	s.put(gatewayPools, "m", made)
	states := followWith(t, Options{Config: s.config(), Bare: true, ModelOf: func(context.Context, string, endpoint.Wire) (string, error) {
		t.Error("an engine is asked")
		return "m", nil
	}})
	if first := <-states; len(first.Pools) != 0 {
		t.Errorf("%d pools", len(first.Pools))
	}
}

func TestBarePool(t *testing.T) {
	admitter, err := crdadmission.New()
	if err != nil {
		t.Fatal(err)
	}
	spec := func(fields map[string]any) map[string]any {
		out := map[string]any{
			"selector":    map[string]any{"matchLabels": map[string]any{"app": "m"}},
			"targetPorts": []any{map[string]any{"number": int64(8000)}},
		}
		for k, v := range fields {
			out[k] = v
		}
		return out
	}
	ports := func(numbers ...int64) map[string]any {
		var list []any
		for _, n := range numbers {
			list = append(list, map[string]any{"number": n})
		}
		return spec(map[string]any{"targetPorts": list})
	}
	for name, tc := range map[string]struct {
		spec  map[string]any
		model string
		want  string // of the error
		check func(*v1alpha1.InferencePoolSpec) bool
	}{
		"one port": {spec: spec(nil), check: func(s *v1alpha1.InferencePoolSpec) bool {
			return s.Engine.Ports.HTTP == 8000 && s.Engine.DataParallel.Ranks == 1 && s.KeySpace.BlockTokens == 16 && s.Gateway.Mode == v1alpha1.GatewayExisting
		}},
		"ranks by port": {spec: ports(8000, 8001, 8002), check: func(s *v1alpha1.InferencePoolSpec) bool {
			return s.Engine.DataParallel.Ranks == 3 && s.Engine.DataParallel.Addressing == v1alpha1.AddressByPort
		}},
		"HTTP/2": {spec: spec(map[string]any{"appProtocol": "kubernetes.io/h2c"}), check: func(s *v1alpha1.InferencePoolSpec) bool {
			return s.Engine.Protocol == v1alpha1.ProtocolH2C
		}},
		"ports that do not follow each other": {spec: ports(65535, 8002, 8000), check: func(s *v1alpha1.InferencePoolSpec) bool {
			return s.Engine.Ports.HTTP == 8000 && s.Engine.DataParallel.Ranks == 3 && s.Engine.DataParallel.Addressing == v1alpha1.AddressByPort
		}},
		"no port":            {spec: ports(), want: "names no target port"},
		"no selector":        {spec: spec(map[string]any{"selector": map[string]any{}}), want: "spec.selector"},
		"a name with blanks": {spec: spec(nil), model: "my model", want: "spec.model.name"},
	} {
		t.Run(name, func(t *testing.T) {
			raw := &unstructured.Unstructured{Object: map[string]any{"spec": tc.spec}}
			raw.SetNamespace("ns")
			raw.SetName(strings.Repeat("long.", 20) + "name")
			raw.SetUID("u")
			if tc.model == "" {
				tc.model = "org/model"
			}
			pool, ports, err := barePool(t.Context(), admitter, raw, tc.model)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Fatalf("error %v, want %q", err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := tc.spec["targetPorts"].([]any); len(ports) != len(want) || int64(ports[0]) != want[0].(map[string]any)["number"] {
				t.Errorf("ports %d, want %v", ports, want)
			}
			if pool.Name != raw.GetName() || pool.UID != "u" || pool.Namespace != "ns" || !tc.check(&pool.Spec) {
				t.Errorf("%+v", pool)
			}
		})
	}
}
