package cluster

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// policies: what the NetworkPolicies of Kvasir say, enforced, is enough for Kvasir, and keeps others out. The cluster's
// network enforces none, so the test makes the nodes' rules from them itself.
func policies() {
	It("works under its own NetworkPolicies, which keep strangers out", func(ctx SpecContext) {
		w.kubectl(ctx, "apply", "-f", "testdata/stranger.yaml")
		w.kubectl(ctx, "wait", "--for=condition=Ready", "pod/stranger", "-n", "default", "--timeout=2m")
		DeferCleanup(func(ctx SpecContext) { w.kubectl(ctx, "delete", "-f", "testdata/stranger.yaml", "--ignore-not-found") })
		var stranger corev1.Pod
		Expect(w.Get(ctx, client.ObjectKey{Namespace: "default", Name: "stranger"}, &stranger)).To(Succeed())
		inside := w.processes(&stranger, "pause")
		Expect(inside).NotTo(BeEmpty())

		picker, engine, operator := w.ready(ctx, pickers)[0].Status.PodIP, w.ready(ctx, engines)[0].Status.PodIP, w.ready(ctx, operators)[0].Status.PodIP
		open := []string{picker + " 8080", picker + " 9002", picker + " 9090", operator + " 8443"}
		closed := []string{picker + " 9004", engine + " 8000", engine + " 9445", operator + " 8081"}
		for _, at := range slices.Concat(open, closed) {
			Expect(reaches(ctx, inside[0], at)).To(BeTrue(), "without policies %s is open", at)
		}
		stop := w.enforce(ctx)
		defer stop()
		for _, at := range open {
			Expect(reaches(ctx, inside[0], at)).To(BeTrue(), "%s is for everybody", at)
		}
		for _, at := range closed {
			Expect(reaches(ctx, inside[0], at)).To(BeFalse(), "%s is not for strangers", at)
		}
		Expect(underLoad(ctx, func() { // reporters, pickers and the operator have to find each other again
			w.kubectl(ctx, "rollout", "restart", "deployment/"+poolName+"-picker", "-n", namespace)
			w.kubectl(ctx, "rollout", "status", "deployment/"+poolName+"-picker", "-n", namespace, "--timeout=3m")
			w.kubectl(ctx, "scale", "kvpool/"+poolName, "--replicas=4", "-n", namespace)
			w.settled(ctx, 4)
			w.kubectl(ctx, "scale", "kvpool/"+poolName, "--replicas=3", "-n", namespace)
			w.settled(ctx, 3)
		})).To(BeEmpty())
	})
}

// reaches reports whether a connection can be made from the network of a process, to "ADDRESS PORT".
func reaches(ctx context.Context, pid int, at string) bool {
	address, port, _ := strings.Cut(at, " ")
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "nsenter", "-n", "-t", strconv.Itoa(pid), "bash", "-c", "exec 3<>/dev/tcp/"+address+"/"+port).Run() == nil
}

const policyTable = "kvasir_test_policies"

// enforce keeps the nodes' rules as the NetworkPolicies say, until it is stopped.
func (w *world) enforce(ctx context.Context) (stop func()) {
	GinkgoHelper()
	ctx, cancel := context.WithCancel(ctx)
	nodes := w.nodes(ctx)
	last := ""
	apply := func() {
		rules := w.policyRules(ctx)
		if rules == last || ctx.Err() != nil {
			return
		}
		for _, node := range nodes {
			w.onNode(context.WithoutCancel(ctx), node, "nft", rules)
		}
		last = rules
	}
	apply()
	var done sync.WaitGroup
	done.Go(func() {
		defer GinkgoRecover()
		for pause(ctx, 200*time.Millisecond); ctx.Err() == nil; pause(ctx, 200*time.Millisecond) {
			apply()
		}
	})
	return func() {
		cancel()
		done.Wait()
		for _, node := range nodes {
			w.onNode(context.WithoutCancel(ctx), node, "nft", "add table ip "+policyTable+"; delete table ip "+policyTable)
		}
	}
}

// policyRules are all NetworkPolicies, as commands of nft that put them in the place of older ones. What is accepted in one
// direction is looked at in the other.
func (w *world) policyRules(ctx context.Context) string {
	GinkgoHelper()
	var list networkingv1.NetworkPolicyList
	var all corev1.PodList
	var spaces corev1.NamespaceList
	for _, l := range []client.ObjectList{&list, &all, &spaces} {
		if err := w.List(ctx, l); err != nil {
			Expect(ctx.Err()).To(HaveOccurred(), "%v", err) // only at the end
			return ""
		}
	}
	table := "table ip " + policyTable
	rules := []string{"add " + table, "delete " + table, "add " + table}
	for _, d := range []direction{
		{networkingv1.PolicyTypeIngress, "ingress", "daddr", "saddr"}, {networkingv1.PolicyTypeEgress, "egress", "saddr", "daddr"},
	} {
		chain := policyTable + " " + d.chain
		rules = append(rules, "add chain ip "+chain+" { type filter hook forward priority -5; }",
			"add rule ip "+chain+" ct state established,related accept")
		selected := map[string]bool{}
		for _, policy := range list.Items {
			if !slices.Contains(policy.Spec.PolicyTypes, d.kind) {
				continue
			}
			for _, pod := range some(all.Items, &policy.Spec.PodSelector, policy.Namespace) {
				selected[pod.Status.PodIP] = true
				for _, a := range d.admitted(&policy) {
					line := "add rule ip " + chain + " ip " + d.own + " " + pod.Status.PodIP
					if len(a.peers) > 0 {
						peers := addresses(a.peers, all.Items, spaces.Items, policy.Namespace)
						if len(peers) == 0 {
							continue
						}
						line += " ip " + d.other + " { " + strings.Join(peers, ", ") + " }"
					}
					if len(a.ports) == 0 {
						rules = append(rules, line+" accept")
					}
					for _, port := range a.ports {
						rules = append(rules, line+" "+portMatch(&port, &pod)+" accept")
					}
				}
			}
		}
		for _, pod := range all.Items {
			if selected[pod.Status.PodIP] {
				rules = append(rules, "add rule ip "+chain+" ip "+d.own+" "+pod.Status.PodIP+" drop")
			}
		}
	}
	return strings.Join(rules, "; ")
}

// direction of traffic, seen from a pod: which end of a packet is its own.
type direction struct {
	kind              networkingv1.PolicyType
	chain, own, other string
}

// admission is one rule of a policy.
type admission struct {
	peers []networkingv1.NetworkPolicyPeer
	ports []networkingv1.NetworkPolicyPort
}

func (d *direction) admitted(policy *networkingv1.NetworkPolicy) (all []admission) {
	if d.kind == networkingv1.PolicyTypeIngress {
		for _, r := range policy.Spec.Ingress {
			all = append(all, admission{r.From, r.Ports})
		}
		return all
	}
	for _, r := range policy.Spec.Egress {
		all = append(all, admission{r.To, r.Ports})
	}
	return all
}

// some pods of a namespace, those with an address.
func some(pods []corev1.Pod, selector *metav1.LabelSelector, namespace string) (chosen []corev1.Pod) {
	GinkgoHelper()
	s, err := metav1.LabelSelectorAsSelector(selector)
	Expect(err).NotTo(HaveOccurred())
	for _, p := range pods {
		if p.Namespace == namespace && p.Status.PodIP != "" && !p.Spec.HostNetwork && s.Matches(labels.Set(p.Labels)) {
			chosen = append(chosen, p)
		}
	}
	return chosen
}

// addresses of peers.
func addresses(peers []networkingv1.NetworkPolicyPeer, pods []corev1.Pod, spaces []corev1.Namespace, own string) (all []string) {
	GinkgoHelper()
	for _, peer := range peers {
		if peer.IPBlock != nil {
			Expect(peer.IPBlock.Except).To(BeEmpty(), "exceptions are not enforced here")
			all = append(all, peer.IPBlock.CIDR)
			continue
		}
		selector := peer.PodSelector
		if selector == nil {
			selector = &metav1.LabelSelector{}
		}
		for _, space := range spaces {
			in := space.Name == own
			if peer.NamespaceSelector != nil {
				s, err := metav1.LabelSelectorAsSelector(peer.NamespaceSelector)
				Expect(err).NotTo(HaveOccurred())
				in = s.Matches(labels.Set(space.Labels))
			}
			if in {
				for _, p := range some(pods, selector, space.Name) {
					all = append(all, p.Status.PodIP)
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// portMatch is a port of a policy in the words of nft. Names are those of the pod's containers.
func portMatch(port *networkingv1.NetworkPolicyPort, pod *corev1.Pod) string {
	GinkgoHelper()
	protocol := "tcp"
	if port.Protocol != nil {
		protocol = strings.ToLower(string(*port.Protocol))
	}
	switch {
	case port.Port == nil:
		return "ip protocol " + protocol
	case port.Port.Type == intstr.String:
		for _, c := range pod.Spec.Containers {
			for _, p := range c.Ports {
				if p.Name == port.Port.StrVal {
					return fmt.Sprintf("%s dport %d", protocol, p.ContainerPort)
				}
			}
		}
		Fail(fmt.Sprintf("%s has no port %s", pod.Name, port.Port.StrVal))
	case port.EndPort != nil:
		return fmt.Sprintf("%s dport %d-%d", protocol, port.Port.IntVal, *port.EndPort)
	}
	return fmt.Sprintf("%s dport %d", protocol, port.Port.IntVal)
}
