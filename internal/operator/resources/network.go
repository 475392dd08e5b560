package resources

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// pickerNetwork allows all clients to send requests to the pickers, but only the engines of their pools, other replicas and the
// operator to send them state.
func (p *pickers) pickerNetwork() *networkingv1.NetworkPolicy {
	open := []networkingv1.NetworkPolicyPort{tcp(ExtProcPort), tcp(HealthPort), tcp(MetricsPort)}
	if p.proxies() {
		open = append([]networkingv1.NetworkPolicyPort{tcp(ProxyPort)}, open...)
	}
	rules := []networkingv1.NetworkPolicyIngressRule{
		{Ports: open},
		{
			Ports: []networkingv1.NetworkPolicyPort{tcp(SyncPort)},
			From: append(slices.Clone(p.engines),
				networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: p.pods}}, p.operator()),
		},
	}
	if len(p.listen) > 0 {
		events := tcp(p.listen[0].Port)
		events.EndPort = ptr.To(p.listen[len(p.listen)-1].Port)
		rules = append(rules, networkingv1.NetworkPolicyIngressRule{
			Ports: []networkingv1.NetworkPolicyPort{events}, From: p.engines,
		})
	}
	return networkPolicy(p.meta(p.names.Guard), metav1.LabelSelector{MatchLabels: p.pods}, rules)
}

func networkPolicy(meta metav1.ObjectMeta, pods metav1.LabelSelector,
	rules []networkingv1.NetworkPolicyIngressRule) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		TypeMeta:   typeMeta(networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy")),
		ObjectMeta: meta,
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: pods, Ingress: rules, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		},
	}
}

func tcp(port int32) networkingv1.NetworkPolicyPort {
	return networkingv1.NetworkPolicyPort{Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(intstr.FromInt32(port))}
}

// engines are the labels of the pool's pods.
func (b *builder) engines() map[string]string {
	labels := map[string]string{}
	for k, v := range b.pool.Spec.Selector.MatchLabels {
		labels[k] = string(v)
	}
	if len(labels) == 0 {
		labels[v1alpha1.LabelPool] = b.pool.Name
	}
	return labels
}

// budget lets one picker be evicted at a time.
func (p *pickers) budget() *policyv1.PodDisruptionBudget {
	budget := disruptionBudget(p.meta(p.names.Guard), metav1.LabelSelector{MatchLabels: p.pods})
	budget.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(1))
	return budget
}

// engineBudget protects the pods that are not draining. It is a number of pods, not maxUnavailable: for that the
// disruption controller reads the scale subresource of the owner, which has no size while spec.replicas is absent, and
// then forbids every eviction.
//
// If the operator replaces pods before they leave their nodes, the budget allows only what the pool's rollout allows: the
// eviction of a pod is refused until its replacement serves, and admitted then, because the pod has the drain mark. Otherwise
// at least one pod can be evicted, or a node could never be drained.
//
// A replacement that serves makes one pod more than the pool's size. Of these, the operator marks one, and an eviction at the same
// moment would take a second one: the budget leaves the choice to the operator.
//
// Pods that are not ready can be evicted at any time, unless one of them serves without its reporter: then they wait as well.
func (b *builder) engineBudget() *policyv1.PodDisruptionBudget {
	budget := disruptionBudget(b.meta(b.pool.Name), metav1.LabelSelector{
		MatchLabels:      b.engines(),
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: v1alpha1.LabelDrain, Operator: metav1.LabelSelectorOpDoesNotExist}},
	})
	rollout := b.pool.Spec.WithDefaults().Rollout
	unavailable, err := intstr.GetScaledValueFromIntOrPercent(rollout.MaxUnavailable, b.Protected, false)
	if err != nil { // the schema admits none
		unavailable = 1
	}
	if !b.Replaces {
		unavailable = max(unavailable, 1)
	}
	protected := b.Protected
	if unavailable == 0 {
		protected += b.Surge
	}
	budget.Spec.MinAvailable = ptr.To(intstr.FromInt(max(protected-unavailable, 0)))
	if b.Replaces && b.ServesUnready {
		budget.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.IfHealthyBudget)
	}
	if b.Evictions != "" {
		metav1.SetMetaDataAnnotation(&budget.ObjectMeta, v1alpha1.AnnotationEvictions, b.Evictions)
	}
	if !b.WaitSince.IsZero() {
		metav1.SetMetaDataAnnotation(&budget.ObjectMeta, v1alpha1.AnnotationEvictionsWaitSince, b.WaitSince.UTC().Format(time.RFC3339))
	}
	return budget
}

func disruptionBudget(meta metav1.ObjectMeta, pods metav1.LabelSelector) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		TypeMeta:   typeMeta(policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget")),
		ObjectMeta: meta,
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &pods, UnhealthyPodEvictionPolicy: ptr.To(policyv1.AlwaysAllow)},
	}
}
