package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/cli/fleet"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// way is a connection that Kvasir needs.
type way struct {
	from, to *corev1.Pod
	port     int32
	what     string
}

// network checks that NetworkPolicies let pickers, engines and the operator reach each other, and that the pool's own
// policies exist. It ignores policies of other kinds, as some network plugins have.
func (d *Doctor) network(ctx context.Context, pool *v1alpha1.InferencePool, pods []corev1.Pod) {
	const check = "network"
	var list networkingv1.NetworkPolicyList
	if err := d.Source.Client.List(ctx, &list, client.InNamespace(pool.Namespace)); err != nil {
		d.add(Warn, check, name(pool), "network policies cannot be listed: "+err.Error(), "")
		return
	}
	if pool.Spec.Picker.Mode == v1alpha1.PickerManaged && pool.Spec.Picker.NetworkPolicy == v1alpha1.NetworkPolicyManaged {
		own := resources.PickerName(pool.Name)
		if !slices.ContainsFunc(list.Items, func(p networkingv1.NetworkPolicy) bool { return p.Name == own }) {
			d.add(Warn, check, name(pool), "the NetworkPolicy "+own+" is not there", "see the operator's log, and the condition Accepted")
		}
	}
	pickers, err := d.Source.Access.Pods(ctx, pool)
	if err != nil || len(pickers) == 0 || len(pods) == 0 {
		return // there is no peer
	}
	n := &policies{all: list.Items, namespaces: map[string]map[string]string{}}
	every := ways(pool, &pickers[0], &pods[0])
	if operator := d.operatorPod(ctx); operator != nil {
		every = append(every, operatorWays(pool, operator, &pickers[0], &pods[0])...)
		var theirs networkingv1.NetworkPolicyList // without the right to list them, only the pool's namespace is checked
		if operator.Namespace != pool.Namespace && d.Source.Client.List(ctx, &theirs, client.InNamespace(operator.Namespace)) == nil {
			n.all = append(n.all, theirs.Items...)
		}
	}
	for _, w := range every {
		for _, pod := range []*corev1.Pod{w.from, w.to} {
			n.namespaces[pod.Namespace] = d.labelsOf(ctx, pod.Namespace)
		}
	}
	closed := false
	for _, w := range every {
		if by := n.closedBy(w); by != "" {
			closed = true
			d.add(Fail, check, name(pool), fmt.Sprintf("%s does not let the %s through, port %d", by, w.what, w.port),
				fmt.Sprintf("allow TCP port %d from pods with %s to pods with %s", w.port, labels.Set(w.from.Labels), labels.Set(w.to.Labels)))
		}
	}
	if !closed {
		d.ok(check, name(pool), "%s of the namespace: pickers, engines and the operator can speak to each other",
			console.Count(len(list.Items), "network policy", "network policies"))
	}
}

// ways between pickers and engines.
func ways(pool *v1alpha1.InferencePool, picker, engine *corev1.Pod) []way {
	e := &pool.Spec.Engine
	all := []way{{picker, engine, e.Ports.HTTP, "requests of pickers to engines"}}
	reports := slices.ContainsFunc(engine.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == v1alpha1.ReporterContainer })
	switch {
	case reports:
		all = append(all, way{engine, picker, resources.SyncPort, "reports of engines to pickers"})
	case e.Events.Source == v1alpha1.EventsAuto, e.Events.Source == v1alpha1.EventsSubscribe:
		all = append(all, way{picker, engine, e.Ports.EventsPort(), "subscription of pickers to events"})
	}
	return append(all, way{picker, picker, resources.SyncPort, "exchange between pickers"})
}

// operatorWays are the connections that the operator needs: to pickers, for their state, and to engines, to see whether they are idle.
func operatorWays(pool *v1alpha1.InferencePool, operator, picker, engine *corev1.Pod) []way {
	return []way{
		{operator, picker, resources.SyncPort, "questions of the operator to pickers"},
		{operator, engine, pool.Spec.Engine.Ports.HTTP, "questions of the operator to engines"},
	}
}

// operatorPod is a pod as the operator's Deployment makes them; nil where there is none, or more than one operator.
func (d *Doctor) operatorPod(ctx context.Context) *corev1.Pod {
	found, err := fleet.Operators(ctx, d.Source.Client)
	if err != nil || len(found) != 1 {
		return nil
	}
	template := &found[0].Spec.Template
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: found[0].Namespace, Labels: template.Labels}, Spec: template.Spec}
}

// labelsOf a namespace; at least the one that each has.
func (d *Doctor) labelsOf(ctx context.Context, name string) map[string]string {
	namespace := &corev1.Namespace{}
	if err := d.Source.Client.Get(ctx, client.ObjectKey{Name: name}, namespace); err != nil {
		return map[string]string{corev1.LabelMetadataName: name}
	}
	return namespace.Labels
}

// policies of the namespaces in which the ends of ways are, and the labels of these.
type policies struct {
	all        []networkingv1.NetworkPolicy
	namespaces map[string]map[string]string
}

// closedBy names a policy that closes a path, empty when it is open: policies add up, and a pod that
// none selects is open.
func (n *policies) closedBy(w way) string {
	for _, side := range []struct {
		kind      networkingv1.PolicyType
		pod, peer *corev1.Pod
	}{{networkingv1.PolicyTypeIngress, w.to, w.from}, {networkingv1.PolicyTypeEgress, w.from, w.to}} {
		var selecting []string
		open := false
		for i := range n.all {
			p := &n.all[i]
			if p.Namespace != side.pod.Namespace || !slices.Contains(kinds(p), side.kind) || !matches(&p.Spec.PodSelector, side.pod.Labels) {
				continue
			}
			selecting = append(selecting, p.Name)
			open = open || n.allows(p, side.kind, side.peer, w)
		}
		if len(selecting) > 0 && !open {
			return "the NetworkPolicy " + strings.Join(selecting, ", ")
		}
	}
	return ""
}

// kinds are the types of a policy: those that it names, else ingress, and egress where it has rules for that.
func kinds(p *networkingv1.NetworkPolicy) []networkingv1.PolicyType {
	if len(p.Spec.PolicyTypes) > 0 {
		return p.Spec.PolicyTypes
	}
	if len(p.Spec.Egress) > 0 {
		return []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	}
	return []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
}

func (n *policies) allows(p *networkingv1.NetworkPolicy, kind networkingv1.PolicyType, peer *corev1.Pod, w way) bool {
	if kind == networkingv1.PolicyTypeIngress {
		return slices.ContainsFunc(p.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool {
			return port(r.Ports, w) && n.peer(r.From, peer, p.Namespace)
		})
	}
	return slices.ContainsFunc(p.Spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool {
		return port(r.Ports, w) && n.peer(r.To, peer, p.Namespace)
	})
}

// port reports whether a rule is about the way's port. Ports by name are looked up in the pod that listens.
func port(ports []networkingv1.NetworkPolicyPort, w way) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		if p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
			return false
		}
		switch {
		case p.Port == nil:
			return true
		case p.Port.StrVal != "":
			return slices.ContainsFunc(w.to.Spec.Containers, func(c corev1.Container) bool {
				return slices.ContainsFunc(c.Ports, func(q corev1.ContainerPort) bool { return q.Name == p.Port.StrVal && q.ContainerPort == w.port })
			})
		case p.EndPort != nil:
			return p.Port.IntVal <= w.port && w.port <= *p.EndPort
		}
		return p.Port.IntVal == w.port
	})
}

// peer reports whether a rule of a namespace's policy is about a pod. Blocks of addresses are taken to be: the effect
// on the network is unknown here.
func (n *policies) peer(peers []networkingv1.NetworkPolicyPeer, pod *corev1.Pod, own string) bool {
	return len(peers) == 0 || slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		switch {
		case p.IPBlock != nil:
			return true
		case p.NamespaceSelector == nil && pod.Namespace != own,
			p.NamespaceSelector != nil && !matches(p.NamespaceSelector, n.namespaces[pod.Namespace]):
			return false
		}
		return p.PodSelector == nil || matches(p.PodSelector, pod.Labels)
	})
}

func matches(selector *metav1.LabelSelector, set map[string]string) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(labels.Set(set))
}
