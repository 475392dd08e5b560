package sysdump

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/cli/fleet"
)

// maxEvents bounds the events of a namespace.
const maxEvents = 1000

// cluster gathers objects, pods, events, logs, and what pickers report.
func (d *Dump) cluster(ctx context.Context, a *archive) {
	pools, err := fleet.Pools(ctx, d.Source.Client, d.Namespace)
	a.note("pools", err)
	var policies v1alpha1.RoutingPolicyList
	a.note("policies", d.Source.Client.List(ctx, &policies, client.InNamespace(d.Namespace)))
	for i := range policies.Items {
		p := &policies.Items[i]
		document, err := object(p)
		a.document(path.Join("policies", p.Namespace, p.Name+".yaml"), document, err)
	}
	var routes v1alpha1.ModelRouteList
	if err := d.Source.Client.List(ctx, &routes, client.InNamespace(d.Namespace)); !apimeta.IsNoMatchError(err) { // of an older chart
		a.note("routes", err)
	}
	for i := range routes.Items {
		r := &routes.Items[i]
		document, err := object(r)
		a.document(path.Join("routes", r.Namespace, r.Name+".yaml"), document, err)
	}
	var namespaces []string
	for i := range pools {
		p := &pools[i]
		if !slices.Contains(namespaces, p.Namespace) {
			namespaces = append(namespaces, p.Namespace)
		}
		document, err := object(p)
		a.document(path.Join("pools", p.Namespace, p.Name+".yaml"), document, err)
		pods, err := fleet.Pods(ctx, d.Source.Client, p)
		a.note("pods of "+p.Name, err)
		for j := range pods {
			d.pod(ctx, a, path.Join("engines", p.Namespace), &pods[j], v1alpha1.ReporterContainer)
		}
		pickers, err := d.Source.Access.Pods(ctx, p)
		a.note("pickers of "+p.Name, err)
		for j := range pickers {
			d.pod(ctx, a, path.Join("pickers", p.Namespace), &pickers[j], containers(&pickers[j])...)
		}
		asked, err := d.Source.PickersOf(ctx, p)
		a.note("pickers of "+p.Name, err)
		for _, one := range asked {
			d.picker(ctx, a, path.Join("pickers", p.Namespace, one.Name), one)
		}
	}
	operators, err := fleet.Operators(ctx, d.Source.Client)
	a.note("operator", err)
	for i := range operators {
		o := &operators[i]
		var pods corev1.PodList
		selector, err := metav1.LabelSelectorAsSelector(o.Spec.Selector)
		if err != nil {
			selector = labels.Nothing()
		}
		a.note("operator", d.Source.Client.List(ctx, &pods, client.InNamespace(o.Namespace), client.MatchingLabelsSelector{Selector: selector}))
		for j := range pods.Items {
			d.pod(ctx, a, path.Join("operator", o.Namespace), &pods.Items[j], containers(&pods.Items[j])...)
		}
		if !slices.Contains(namespaces, o.Namespace) {
			namespaces = append(namespaces, o.Namespace)
		}
	}
	for _, namespace := range namespaces {
		d.events(ctx, a, namespace)
	}
}

// note notes why something could not be gathered.
func (a *archive) note(what string, err error) {
	if err != nil {
		a.failed = append(a.failed, string(scrub([]byte(what+": "+err.Error()))))
	}
}

func containers(p *corev1.Pod) (names []string) {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			names = append(names, list[i].Name)
		}
	}
	return names
}

// podSummary is what is shown of a pod. Its spec is not: it has variables and scripts of users.
type podSummary struct {
	meta       `json:",inline"`
	Node       string                   `json:"node"`
	Images     map[string]string        `json:"images"`
	Phase      corev1.PodPhase          `json:"phase"`
	Reason     string                   `json:"reason,omitempty"`
	Message    string                   `json:"message,omitempty"`
	Deleted    *metav1.Time             `json:"deleted,omitempty"`
	Conditions []corev1.PodCondition    `json:"conditions"`
	Init       []corev1.ContainerStatus `json:"initContainers,omitempty"`
	Containers []corev1.ContainerStatus `json:"containers"`
}

// pod adds a summary of a pod, and the logs of those of its containers that are Kvasir's own.
func (d *Dump) pod(ctx context.Context, a *archive, dir string, p *corev1.Pod, logs ...string) {
	summary := podSummary{
		meta: meta{p.Namespace, p.Name, p.Labels, p.CreationTimestamp}, Node: p.Spec.NodeName, Images: map[string]string{},
		Phase: p.Status.Phase, Reason: p.Status.Reason, Message: p.Status.Message, Deleted: p.DeletionTimestamp,
		Conditions: p.Status.Conditions, Init: silent(p.Status.InitContainerStatuses), Containers: silent(p.Status.ContainerStatuses),
	}
	names := containers(p)
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			summary.Images[list[i].Name] = list[i].Image
		}
	}
	a.document(path.Join(dir, p.Name, "pod.yaml"), summary, nil)
	if d.Logs == nil {
		return
	}
	for _, container := range logs {
		if !slices.Contains(names, container) {
			continue
		}
		text, err := d.Logs(ctx, p.Namespace, p.Name, container, false)
		a.text(path.Join(dir, p.Name, container+".log"), text, err)
		if restarted(p, container) {
			text, err := d.Logs(ctx, p.Namespace, p.Name, container, true)
			a.text(path.Join(dir, p.Name, container+".previous.log"), text, err)
		}
	}
}

// silent leaves out of statuses what the programs wrote at their end: the kubelet takes it from the log of an engine, too.
func silent(all []corev1.ContainerStatus) []corev1.ContainerStatus {
	all = slices.Clone(all)
	for i := range all {
		for _, state := range []*corev1.ContainerState{&all[i].State, &all[i].LastTerminationState} {
			if state.Terminated != nil {
				ended := *state.Terminated
				ended.Message = ""
				state.Terminated = &ended
			}
		}
	}
	return all
}

func restarted(p *corev1.Pod, container string) bool {
	is := func(s corev1.ContainerStatus) bool { return s.Name == container && s.RestartCount > 0 }
	return slices.ContainsFunc(p.Status.ContainerStatuses, is) || slices.ContainsFunc(p.Status.InitContainerStatuses, is)
}

// events adds the events of a namespace that are about Kvasir's objects and pods.
func (d *Dump) events(ctx context.Context, a *archive, namespace string) {
	var list corev1.EventList
	if err := d.Source.Client.List(ctx, &list, client.InNamespace(namespace), client.Limit(maxEvents)); err != nil {
		a.note("events of "+namespace, err)
		return
	}
	slices.SortStableFunc(list.Items, func(x, y corev1.Event) int { return x.LastTimestamp.Compare(y.LastTimestamp.Time) })
	var b strings.Builder
	for i := range list.Items {
		e := &list.Items[i]
		if !slices.Contains([]string{"InferencePool", "RoutingPolicy", "ModelRoute", "Pod", "Deployment", "ReplicaSet"}, e.InvolvedObject.Kind) {
			continue
		}
		fmt.Fprintf(&b, "%s %s %s/%s %s x%d: %s\n", e.LastTimestamp.UTC().Format("2006-01-02T15:04:05Z"), e.Type,
			strings.ToLower(e.InvolvedObject.Kind), e.InvolvedObject.Name, e.Reason, max(e.Count, 1), e.Message)
	}
	a.add(path.Join("events", namespace+".txt"), []byte(b.String()))
}
