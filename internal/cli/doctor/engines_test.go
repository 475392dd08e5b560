package doctor

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// aPod of a namespace with labels, given in pairs.
func aPod(namespace string, pairs ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Labels: map[string]string{}}}
	for i := 0; i < len(pairs); i += 2 {
		p.Labels[pairs[i]] = pairs[i+1]
	}
	return p
}

// pickerOf is a pod of a pool's pickers.
func pickerOf(pool, namespace string) *corev1.Pod {
	return aPod(namespace, "app.kubernetes.io/name", "kvasir", "app.kubernetes.io/component", "picker", "app.kubernetes.io/instance", pool)
}

// policiesOf are the NetworkPolicies that the operator makes for pools.
func policiesOf(t *testing.T, pools ...*v1alpha1.InferencePool) *policies {
	t.Helper()
	n := &policies{namespaces: map[string]map[string]string{}}
	for _, space := range []string{"llm", "kvasir", "infra", "monitoring", "other", resources.EnvoyGatewayNamespace} {
		n.namespaces[space] = map[string]string{corev1.LabelMetadataName: space}
	}
	for _, pool := range pools {
		objects, err := resources.Objects(resources.Config{Operator: types.NamespacedName{Namespace: "kvasir", Name: "kvasir-operator"}}, resources.Input{
			Pool: pool, Sets: []string{"ours"}, Gateways: []types.NamespacedName{{Namespace: "infra", Name: "gate"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if o.GetKind() != "NetworkPolicy" {
				continue
			}
			var p networkingv1.NetworkPolicy
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p); err != nil {
				t.Fatal(err)
			}
			n.all = append(n.all, p)
		}
	}
	return n
}

func poolNamed(name string, change ...func(*v1alpha1.InferencePool)) *v1alpha1.InferencePool {
	p := &v1alpha1.InferencePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: name},
		Spec: v1alpha1.InferencePoolSpec{
			Template: &corev1.PodTemplateSpec{},
			Engine: v1alpha1.Engine{
				Ports: v1alpha1.EnginePorts{HTTP: 8000}, DataParallel: v1alpha1.DataParallel{Ranks: 1},
				Events: v1alpha1.Events{Source: v1alpha1.EventsAuto, Reporter: v1alpha1.Reporter{DrainPort: 9445}},
			},
		},
	}
	for _, f := range change {
		f(p)
	}
	p.Spec = p.Spec.WithDefaults()
	return p
}

// TestOnlyKnownClientsReachEngines is the law of closed engines: prompts that do not come through a picker bypass tenants
// and limits.
func TestOnlyKnownClientsReachEngines(t *testing.T) {
	engine := aPod("llm", v1alpha1.LabelPool, "m")
	operator := aPod("kvasir", "app.kubernetes.io/name", "kvasir-operator")
	gateway := aPod("infra", resources.LabelGateway, "gate")
	named := func(p *v1alpha1.InferencePool) {
		p.Spec.Engine.NetworkPolicy.From = []v1alpha1.NetworkPeer{{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "monitoring"}},
			PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "prometheus"}},
		}}
	}
	open := func(p *v1alpha1.InferencePool) { p.Spec.Engine.NetworkPolicy.Mode = v1alpha1.EngineNetworkOpen }
	source := func(s v1alpha1.EventSource) func(*v1alpha1.InferencePool) {
		return func(p *v1alpha1.InferencePool) { p.Spec.Engine.Events.Source = s }
	}
	fixed := func(p *v1alpha1.InferencePool) { p.Spec.Engine.Ports.Events, p.Spec.Engine.Ports.Replay = 6000, 6100 }
	ranks := func(p *v1alpha1.InferencePool) {
		p.Spec.Engine.DataParallel = v1alpha1.DataParallel{Ranks: 3, Addressing: v1alpha1.AddressByPort}
	}
	adopted := func(p *v1alpha1.InferencePool) {
		p.Spec.Template, p.Spec.Selector.MatchLabels = nil, map[string]v1alpha1.LabelValue{v1alpha1.LabelPool: "m"}
		p.Spec.Engine.NetworkPolicy.Mode = v1alpha1.EngineNetworkClosed
	}
	external := func(p *v1alpha1.InferencePool) { named(p); p.Spec.Picker.Mode = v1alpha1.PickerExternal }
	type change = []func(*v1alpha1.InferencePool)
	const lws = "leaderworkerset.sigs.k8s.io/name"
	for name, tc := range map[string]struct {
		from  *corev1.Pod
		pool  change
		open  []int32
		close []int32
	}{
		"pickers, which ask an engine for its ports": {pickerOf("m", "llm"), nil, []int32{8000, 5557, 7777}, []int32{9445}},
		"pickers of named ports":                     {pickerOf("m", "llm"), change{fixed}, []int32{8000, 6000, 6100}, []int32{5557, 6001, 9445}},
		"pickers of named ports, of ranks":           {pickerOf("m", "llm"), change{fixed, ranks}, []int32{8000, 8002, 6000, 6002, 6102}, []int32{8003, 6003, 6103}},
		"pickers with reporters":                     {pickerOf("m", "llm"), change{source(v1alpha1.EventsReporter)}, []int32{8000}, []int32{5557, 5657, 9445}},
		"pickers without events":                     {pickerOf("m", "llm"), change{source(v1alpha1.EventsNone)}, []int32{8000}, []int32{5557, 5657}},
		"pickers that listen":                        {pickerOf("m", "llm"), change{source(v1alpha1.EventsListen)}, []int32{8000, 5657}, []int32{5557, 9445}},
		"pickers of another pool":                    {pickerOf("n", "llm"), nil, nil, []int32{8000, 5557}},
		"pickers of another namespace":               {pickerOf("m", "other"), nil, nil, []int32{8000, 5557}},
		"the managed pickers' labels, with external": {pickerOf("m", "llm"), change{external}, nil, []int32{8000}},
		"the operator":                               {operator, nil, []int32{8000}, []int32{5557, 5657, 9445}},
		"the operator, of ranks":                     {operator, change{ranks}, []int32{8000, 8001, 8002}, []int32{8003}},
		"one that calls itself the operator":         {aPod("other", "app.kubernetes.io/name", "kvasir-operator"), nil, nil, []int32{8000}},
		"a gateway":                                  {gateway, nil, []int32{8000}, []int32{5557, 5657, 9445}},
		"a gateway of the name elsewhere":            {aPod("other", resources.LabelGateway, "gate"), nil, nil, []int32{8000}},
		"another gateway":                            {aPod("infra", resources.LabelGateway, "front"), nil, nil, []int32{8000}},
		"Envoy Gateway": {aPod(resources.EnvoyGatewayNamespace, resources.LabelEnvoyGateway, "gate", resources.LabelEnvoyGatewaySpace, "infra"), nil,
			[]int32{8000}, []int32{5557, 9445}},
		"Envoy Gateway beside the Gateway": {aPod("infra", resources.LabelEnvoyGateway, "gate", resources.LabelEnvoyGatewaySpace, "infra"), nil,
			[]int32{8000}, []int32{5557, 9445}},
		"Envoy Gateway, of another's Gateway": {aPod(resources.EnvoyGatewayNamespace, resources.LabelEnvoyGateway, "gate", resources.LabelEnvoyGatewaySpace, "other"), nil,
			nil, []int32{8000}},
		"what looks like Envoy Gateway": {aPod("other", resources.LabelEnvoyGateway, "gate", resources.LabelEnvoyGatewaySpace, "infra"), nil, nil, []int32{8000}},
		"Prometheus, not named":         {aPod("monitoring", "app", "prometheus"), nil, nil, []int32{8000}},
		"Prometheus, named":             {aPod("monitoring", "app", "prometheus"), change{named}, []int32{8000}, []int32{5557, 9445}},
		"another pod beside Prometheus": {aPod("monitoring", "app", "grafana"), change{named}, nil, []int32{8000}},
		"another engine of the pool":    {aPod("llm", v1alpha1.LabelPool, "m"), nil, []int32{8000, 5600, 29500, 65535}, []int32{9445}},
		"an engine of another pool":     {aPod("llm", v1alpha1.LabelPool, "n"), nil, nil, []int32{8000, 29500}},
		"a pod of the namespace":        {aPod("llm", "app", "web"), nil, nil, []int32{8000, 5557, 9445}},
		"a pod of another namespace":    {aPod("other", "app", "web"), nil, nil, []int32{8000, 5557, 9445}},
		"any pod, as before":            {aPod("other", "app", "web"), change{open}, []int32{8000, 5557, 29500}, []int32{9445}},
		"a worker of the group":         {aPod("llm", lws, "ours"), change{adopted}, []int32{6379, 29500}, []int32{9445}},
		"a worker of another group":     {aPod("llm", lws, "theirs"), change{adopted}, nil, []int32{6379, 8000}},
		"pickers of others' pods":       {pickerOf("m", "llm"), change{adopted, fixed}, []int32{8000, 6000, 6009}, []int32{9445}},
		"a stranger to others' pods":    {aPod("llm", "app", "web"), change{adopted}, nil, []int32{8000}},
	} {
		t.Run(name, func(t *testing.T) {
			n := policiesOf(t, poolNamed("m", tc.pool...), poolNamed("n"))
			for port, want := range ports(tc.open, tc.close) {
				if by := n.closedBy(way{tc.from, engine, port, name}); (by == "") != want {
					t.Errorf("port %d is closed by %q, want open %v", port, by, want)
				}
			}
		})
	}
}

func ports(open, closed []int32) map[int32]bool {
	out := map[int32]bool{}
	for _, p := range open {
		out[p] = true
	}
	for _, p := range closed {
		out[p] = false
	}
	return out
}

// TestWhatDoctorChecksIsOpen: the ways that Kvasir itself needs go through the policies that it makes.
func TestWhatDoctorChecksIsOpen(t *testing.T) {
	picker, operator := pickerOf("m", "llm"), aPod("kvasir", "app.kubernetes.io/name", "kvasir-operator")
	for _, source := range []v1alpha1.EventSource{v1alpha1.EventsAuto, v1alpha1.EventsSubscribe, v1alpha1.EventsReporter, v1alpha1.EventsListen, v1alpha1.EventsNone} {
		for _, reports := range []bool{true, false} {
			pool := poolNamed("m", func(p *v1alpha1.InferencePool) { p.Spec.Engine.Events.Source = source })
			engine := aPod("llm", v1alpha1.LabelPool, "m")
			if reports {
				engine.Spec.InitContainers = []corev1.Container{{Name: "kvasir-reporter", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
			}
			n := policiesOf(t, pool)
			for _, w := range append(ways(pool, picker, engine), operatorWays(pool, operator, picker, engine)...) {
				if by := n.closedBy(w); by != "" {
					t.Errorf("%s, reporter %v: %s closes %s", source, reports, by, w.what)
				}
			}
		}
	}
}
