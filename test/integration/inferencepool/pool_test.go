package inferencepool_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

var _ = Describe("a pool that owns its pods", Ordered, func() {
	ctx := context.Background()
	const namespace = "llm"
	key := types.NamespacedName{Namespace: namespace, Name: "chat"}

	get := func(g Gomega) *v1alpha1.InferencePool {
		pool := &v1alpha1.InferencePool{}
		g.Expect(api.Get(ctx, key, pool)).To(Succeed())
		return pool
	}
	pods := func(g Gomega) []corev1.Pod {
		var list corev1.PodList
		g.Expect(api.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelPool: key.Name})).To(Succeed())
		return list.Items
	}
	edit := func(change func(*v1alpha1.InferencePool)) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			pool := get(g)
			change(pool)
			g.Expect(api.Update(ctx, pool)).To(Succeed())
		}).Should(Succeed())
	}
	nodes := []string{"node"} // pods are bound to the last one
	// beat says that the nodes live, and that they are not tainted any more.
	beat := func(g Gomega) {
		for _, name := range nodes {
			node := &corev1.Node{}
			g.Expect(api.Get(ctx, types.NamespacedName{Name: name}, node)).To(Succeed())
			if len(node.Status.Conditions) > 0 && time.Since(node.Status.Conditions[0].LastHeartbeatTime.Time) < 5*time.Second {
				continue
			}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), Reason: "KubeletReady"}}
			g.Expect(api.Status().Update(ctx, node)).To(Succeed())
		}
	}
	// kubelet does what a node would: pods run and are ready, deleted ones go.
	kubelet := func(g Gomega) {
		beat(g)
		all := pods(g)
		for i := range all {
			pod := &all[i]
			if !pod.DeletionTimestamp.IsZero() {
				g.Expect(client.IgnoreNotFound(api.Delete(ctx, pod, client.GracePeriodSeconds(0)))).To(Succeed())
				continue
			}
			if pod.Spec.NodeName == "" {
				g.Expect(api.SubResource("binding").Create(ctx, pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: nodes[len(nodes)-1]}})).To(Succeed())
				continue
			}
			if len(pod.Status.ContainerStatuses) == 0 {
				pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, "10.0.0.1"
				pod.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}}
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
					Name: "vllm", Ready: true, Started: ptr.To(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
				}}
				for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.ContainersReady, corev1.PodReady} {
					pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
				}
				g.Expect(api.Status().Update(ctx, pod)).To(Succeed())
			}
		}
		people.see(all)
	}
	// serving waits until so many pods of the newest revision serve, and no other is there.
	serving := func(n int) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			kubelet(g)
			pool := get(g)
			s := pool.Status
			g.Expect(s.ObservedGeneration).To(Equal(pool.Generation))
			g.Expect(pods(g)).To(HaveLen(n))
			g.Expect(s.ReadyReplicas).To(HaveValue(BeEquivalentTo(n)))
			g.Expect(s.UpdatedReplicas).To(HaveValue(BeEquivalentTo(n)))
			g.Expect(s.CurrentRevision).To(Equal(s.UpdateRevision))
		}).Should(Succeed())
	}

	BeforeAll(func() {
		Expect(api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
		Expect(api.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})).To(Succeed())
		Eventually(func(g Gomega) { // the controllers take the taint of a node that is not ready away
			beat(g)
			node := &corev1.Node{}
			g.Expect(api.Get(ctx, types.NamespacedName{Name: "node"}, node)).To(Succeed())
			g.Expect(node.Spec.Taints).To(BeEmpty())
		}).Should(Succeed())
		Expect(api.Create(ctx, &v1alpha1.InferencePool{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: key.Name},
			Spec: v1alpha1.InferencePoolSpec{
				Model: v1alpha1.Model{Name: "m"}, Replicas: ptr.To[int32](2),
				Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{
					{Name: "vllm", Image: "vllm/vllm-openai:v0.24.0", Args: []string{"--model", "m"}},
				}}},
			},
		})).To(Succeed())
	})

	It("makes pods and what stands beside them", func() {
		serving(2)
		pod := pods(Default)[0]
		Expect(pod.Spec.InitContainers).To(HaveLen(1))
		Expect(pod.Spec.InitContainers[0].RestartPolicy).To(HaveValue(Equal(corev1.ContainerRestartPolicyAlways)))
		Expect(pod.Spec.TerminationGracePeriodSeconds).To(HaveValue(BeEquivalentTo(630)))
		Expect(pod.Spec.Containers[0].Lifecycle.PreStop.HTTPGet.Port.IntValue()).To(Equal(9445))
		Expect(pod.Spec.Containers[0].Args).To(ContainElements("--kv-events-config", "--enable-prompt-tokens-details"))
		Expect(metav1.GetControllerOf(&pod)).To(HaveField("Kind", "InferencePool"))
		for name, object := range map[string]client.Object{
			"chat-picker": &appsv1.Deployment{}, "chat-picker-peers": &corev1.Service{}, "chat-key": &corev1.Secret{},
			"chat-picker-tls": &corev1.Secret{}, "chat-picker-ca": &corev1.ConfigMap{}, "chat": &policyv1.PodDisruptionBudget{},
		} {
			Eventually(api.Get).WithArguments(ctx, types.NamespacedName{Namespace: namespace, Name: name}, object).Should(Succeed(), name)
			Expect(metav1.GetControllerOf(object)).To(HaveField("Name", "chat"), name)
		}
		for _, object := range []client.Object{&corev1.ServiceAccount{}, &rbacv1.Role{}, &rbacv1.RoleBinding{}, &corev1.Service{}, &networkingv1.NetworkPolicy{}} {
			Expect(api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "chat-picker"}, object)).To(Succeed(), fmt.Sprintf("%T", object))
		}
	})

	It("says so in its status", func() {
		Eventually(func(g Gomega) {
			kubelet(g)
			s := get(g).Status
			for kind, reason := range map[string]string{
				v1alpha1.ConditionAccepted: "Accepted", v1alpha1.ConditionUpToDate: "UpToDate", v1alpha1.ConditionScaled: "Settled",
				v1alpha1.ConditionPodsHealthy: "Healthy", v1alpha1.ConditionEventsSynced: "Synced",
			} {
				g.Expect(meta.FindStatusCondition(s.Conditions, kind)).To(HaveValue(HaveField("Reason", reason)), kind)
			}
		}).Should(Succeed())
	})

	allowed := func(g Gomega) int32 {
		kubelet(g)
		budget := &policyv1.PodDisruptionBudget{}
		g.Expect(api.Get(ctx, key, budget)).To(Succeed())
		g.Expect(budget.Status.ObservedGeneration).To(Equal(budget.Generation))
		return budget.Status.DisruptionsAllowed
	}
	rollout := func(unavailable int32) {
		GinkgoHelper()
		edit(func(p *v1alpha1.InferencePool) {
			p.Spec.Rollout = &v1alpha1.Rollout{MaxSurge: ptr.To(intstr.FromInt32(1)), MaxUnavailable: ptr.To(intstr.FromInt32(unavailable))}
		})
	}

	It("lets as many pods be evicted as a rollout can miss, whichever controller decides the size", func() {
		rollout(1)
		Eventually(allowed).Should(BeEquivalentTo(1))
		edit(func(p *v1alpha1.InferencePool) { // spec.replicas is absent: /scale has no size
			p.Spec.Replicas = nil
			p.Spec.Autoscaling.MinReplicas, p.Spec.Autoscaling.MaxReplicas = ptr.To[int32](2), 4
		})
		Eventually(func(g Gomega) { g.Expect(get(g).Status.ObservedGeneration).To(Equal(get(g).Generation)) }).Should(Succeed())
		pod := pods(Default)[0]
		Expect(api.Patch(ctx, &pod, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"note":"counted again"}}}`)))).To(Succeed())
		Consistently(allowed, "3s", "300ms").Should(BeEquivalentTo(1))
		edit(func(p *v1alpha1.InferencePool) {
			p.Spec.Replicas = ptr.To[int32](2)
			p.Spec.Autoscaling = v1alpha1.Autoscaling{}
		})
	})

	It("evicts a pod of a cordoned node when its replacement serves", func() {
		rollout(0)
		serving(2)
		Eventually(allowed).Should(BeEquivalentTo(0))
		evict := func(pod *corev1.Pod) error { return api.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{}) }
		before := pods(Default)
		Expect(apierrors.IsTooManyRequests(evict(&before[0]))).To(BeTrue())

		Expect(api.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "spare"}})).To(Succeed())
		nodes = append(nodes, "spare")
		cordon := func(yes bool) {
			GinkgoHelper()
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
			change := fmt.Appendf(nil, `{"spec": {"unschedulable": %v}}`, yes)
			Expect(api.Patch(ctx, node, client.RawPatch(types.MergePatchType, change))).To(Succeed())
		}
		cordon(true)
		DeferCleanup(cordon, false)
		Eventually(func(g Gomega) { // as kubectl drain does
			kubelet(g)
			serve, left := 0, 0
			all := pods(g)
			for i := range all {
				pod := &all[i]
				_, marked := pod.Labels[v1alpha1.LabelDrain]
				ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
					return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
				})
				if ready && !marked && pod.DeletionTimestamp.IsZero() {
					serve++
				}
				if pod.Spec.NodeName == "node" {
					left++
				}
			}
			if serve < 2 {
				StopTrying(fmt.Sprintf("only %d pods serve", serve)).Now()
			}
			for i := range all {
				if all[i].Spec.NodeName != "node" {
					continue
				}
				if err := evict(&all[i]); !apierrors.IsTooManyRequests(err) {
					g.Expect(client.IgnoreNotFound(err)).To(Succeed())
				}
			}
			g.Expect(left).To(BeZero())
		}).Should(Succeed())
		serving(2)
	})

	It("makes no writes when nothing changes", func() {
		still := func() bool { // reports whether it writes nothing when it is reconciled again
			last, quiet := -1, time.Now()
			Eventually(func(g Gomega) { // until it has been quiet for longer than any condition waits
				kubelet(g)
				if n := writes.to(namespace); n != last {
					last, quiet = n, time.Now()
				}
				g.Expect(time.Since(quiet)).To(BeNumerically(">", 12*time.Second))
			}).Should(Succeed())
			before := get(Default)
			edit(func(p *v1alpha1.InferencePool) { // with nothing to do
				metav1.SetMetaDataAnnotation(&p.ObjectMeta, "note", before.ResourceVersion)
			})
			for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
				kubelet(Default)
			}
			n, now := writes.to(namespace), get(Default)
			if n != last {
				Expect(now.Status).NotTo(Equal(before.Status), "%d writes have changed nothing", n-last)
			}
			return n == last
		}
		// On a slow machine a condition can come later than that, which is a change. Then it must come to rest after it.
		Eventually(still).WithTimeout(3 * time.Minute).Should(BeTrue())
	})

	It("follows the scale subresource up, and drains on the way down", func() {
		scale := func(n int) {
			GinkgoHelper()
			patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n))
			Expect(api.SubResource("scale").Patch(ctx, get(Default), patch)).To(Succeed())
		}
		scale(4)
		serving(4)
		busy := map[types.UID]int{}
		for _, pod := range pods(Default) {
			busy[pod.UID] = 1
		}
		people.setBusy(busy)
		scale(3)
		Eventually(func(g Gomega) {
			kubelet(g)
			g.Expect(get(g).Status.DrainingReplicas).To(HaveValue(BeEquivalentTo(1)))
		}).Should(Succeed())
		Consistently(func(g Gomega) int {
			kubelet(g)
			return len(pods(g))
		}, "4s").Should(Equal(4))
		people.setBusy(nil)
		serving(3)
	})

	It("rolls out a template without losing a serving pod", func() {
		edit(func(p *v1alpha1.InferencePool) { p.Spec.Template.Spec.Containers[0].Image = "vllm/vllm-openai:v0.25.0" })
		Eventually(func(g Gomega) {
			kubelet(g)
			ready := 0
			for _, pod := range pods(g) {
				if _, marked := pod.Labels[v1alpha1.LabelDrain]; !marked && pod.DeletionTimestamp.IsZero() && len(pod.Status.ContainerStatuses) > 0 {
					ready++
				}
			}
			if ready < 3 {
				StopTrying(fmt.Sprintf("%d pods serve", ready)).Now()
			}
			pool := get(g)
			g.Expect(pool.Status.ObservedGeneration).To(Equal(pool.Generation))
			g.Expect(pool.Status.UpdatedReplicas).To(HaveValue(BeEquivalentTo(3)))
			g.Expect(pods(g)).To(HaveLen(3))
		}).Should(Succeed())
		serving(3)
		for _, pod := range pods(Default) {
			Expect(pod.Spec.Containers[0].Image).To(Equal("vllm/vllm-openai:v0.25.0"))
		}
	})

	It("names a template whose pods the API server would refuse, and drains none for it", func() {
		before := pods(Default)
		good := get(Default).Spec
		edit(func(p *v1alpha1.InferencePool) {
			p.Spec.Rollout = &v1alpha1.Rollout{MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromInt32(1))}
			p.Spec.Template.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{}}
		})
		Eventually(func(g Gomega) {
			conditions := get(g).Status.Conditions
			accepted := meta.FindStatusCondition(conditions, v1alpha1.ConditionAccepted)
			g.Expect(accepted.Reason).To(Equal("TemplateRefused"), accepted.Message)
			g.Expect(accepted.Message).To(ContainSubstring("postStart"))
			g.Expect(meta.FindStatusCondition(conditions, v1alpha1.ConditionUpToDate).Reason).To(Equal("RolloutRefused"))
		}).Should(Succeed())
		names := func(pods []corev1.Pod) (out []string) {
			for i := range pods {
				out = append(out, pods[i].Name+" "+pods[i].Labels[v1alpha1.LabelDrain])
			}
			return out
		}
		Expect(names(pods(Default))).To(ConsistOf(names(before)))
		edit(func(p *v1alpha1.InferencePool) { p.Spec = good })
		Eventually(func(g Gomega) {
			g.Expect(meta.IsStatusConditionTrue(get(g).Status.Conditions, v1alpha1.ConditionAccepted)).To(BeTrue())
		}).Should(Succeed())
		Expect(names(pods(Default))).To(ConsistOf(names(before)))
	})

	It("adopts objects of its making without an owner, and leaves those of others alone", func() {
		service := &corev1.Service{}
		name := types.NamespacedName{Namespace: namespace, Name: "chat-picker"}
		Expect(api.Get(ctx, name, service)).To(Succeed())
		Expect(api.Delete(ctx, service)).To(Succeed())
		Eventually(func(g Gomega) { // it is created again
			g.Expect(api.Get(ctx, name, service)).To(Succeed())
			g.Expect(metav1.GetControllerOf(service)).NotTo(BeNil())
		}).Should(Succeed())
		orphan := func(change func()) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				g.Expect(api.Get(ctx, name, service)).To(Succeed())
				service.OwnerReferences = nil
				change()
				g.Expect(api.Update(ctx, service)).To(Succeed())
			}).Should(Succeed())
		}
		orphan(func() {})
		Eventually(func(g Gomega) {
			g.Expect(api.Get(ctx, name, service)).To(Succeed())
			g.Expect(metav1.GetControllerOf(service)).To(HaveValue(HaveField("Name", "chat")))
		}).Should(Succeed())
		orphan(func() { delete(service.Annotations, "kvasir.dev/applied") })
		Eventually(func(g Gomega) {
			kubelet(g)
			g.Expect(meta.FindStatusCondition(get(g).Status.Conditions, v1alpha1.ConditionAccepted)).To(HaveValue(HaveField("Reason", "NameTaken")))
		}).Should(Succeed())
	})

	It("leaves nothing behind when it is deleted", func() {
		Expect(api.Delete(ctx, get(Default))).To(Succeed())
		Eventually(func(g Gomega) {
			kubelet(g)
			g.Expect(pods(g)).To(BeEmpty())
			for _, list := range []client.ObjectList{
				&appsv1.DeploymentList{}, &appsv1.ControllerRevisionList{}, &corev1.SecretList{}, &corev1.ServiceAccountList{},
				&rbacv1.RoleList{}, &rbacv1.RoleBindingList{}, &policyv1.PodDisruptionBudgetList{}, &networkingv1.NetworkPolicyList{},
			} {
				g.Expect(api.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
				left, err := meta.ExtractList(list)
				g.Expect(err).NotTo(HaveOccurred())
				for _, o := range left {
					named, err := meta.Accessor(o)
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(named.GetName()).NotTo(HavePrefix("chat"), fmt.Sprintf("%T", o))
				}
			}
		}).Should(Succeed())
	})
})
