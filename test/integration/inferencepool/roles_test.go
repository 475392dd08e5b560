package inferencepool_test

import (
	"context"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
)

var _ = Describe("a pool with roles", Ordered, func() {
	ctx := context.Background()
	const namespace = "roles"
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
	decodes := func(pod *corev1.Pod) bool {
		_, drains := pod.Labels[v1alpha1.LabelDrain]
		return !drains && pod.DeletionTimestamp.IsZero() && len(pod.Status.ContainerStatuses) > 0 && pod.Labels[v1alpha1.LabelRole] != "prefill"
	}
	once := false // some pod has served
	// kubelet does what a node would, and checks that some pod always decodes.
	kubelet := func(g Gomega) {
		all := pods(g)
		answers := false
		for i := range all {
			pod := &all[i]
			answers = answers || decodes(pod)
			switch {
			case !pod.DeletionTimestamp.IsZero():
				g.Expect(client.IgnoreNotFound(api.Delete(ctx, pod, client.GracePeriodSeconds(0)))).To(Succeed())
			case pod.Spec.NodeName == "":
				g.Expect(api.SubResource("binding").Create(ctx, pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "roles"}})).To(Succeed())
			case len(pod.Status.ContainerStatuses) == 0:
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
		if once && !answers {
			StopTrying("no pod decodes").Now()
		}
		once = once || answers
		people.see(all)
	}
	// role is the status of a role without its autoscaling, with so many pods that all serve.
	role := func(name v1alpha1.RoleName, n int32) v1alpha1.RoleStatus {
		return v1alpha1.RoleStatus{Name: name, DesiredReplicas: &n, Replicas: &n, ReadyReplicas: &n, UpdatedReplicas: &n}
	}
	// settled waits until the pods of each role serve, and no others are there.
	settled := func(roles ...v1alpha1.RoleStatus) {
		GinkgoHelper()
		want := map[string]int{}
		for _, r := range roles {
			want[map[v1alpha1.RoleName]string{v1alpha1.RolePrefill: "prefill", v1alpha1.RoleDecode: "decode"}[r.Name]] = int(*r.DesiredReplicas)
		}
		Eventually(func(g Gomega) {
			kubelet(g)
			pool := get(g)
			s := pool.Status
			g.Expect(s.ObservedGeneration).To(Equal(pool.Generation))
			got := map[string]int{}
			for _, pod := range pods(g) {
				got[pod.Labels[v1alpha1.LabelRole]]++
				g.Expect(pod.Name).To(HavePrefix(s.UpdateRevision))
			}
			g.Expect(got).To(Equal(want))
			g.Expect(s.CurrentRevision).To(Equal(s.UpdateRevision))
			for i := range s.Roles {
				s.Roles[i].Autoscaling = v1alpha1.AutoscalingStatus{}
			}
			if want[""] > 0 {
				g.Expect(s.Roles).To(BeEmpty())
				g.Expect(s.ReadyReplicas).To(HaveValue(BeEquivalentTo(want[""])))
			} else {
				g.Expect(s.Roles).To(Equal(roles))
			}
		}, "60s", "100ms").Should(Succeed())
	}

	BeforeAll(func() {
		Expect(api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "roles"}}
		Expect(api.Create(ctx, node)).To(Succeed())
		// It never reports again, and is not taken to be dead before the specs have ended.
		Eventually(func(g Gomega) {
			g.Expect(api.Get(ctx, types.NamespacedName{Name: "roles"}, node)).To(Succeed())
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(time.Now()), Reason: "KubeletReady"}}
			g.Expect(api.Status().Update(ctx, node)).To(Succeed())
			g.Expect(api.Get(ctx, types.NamespacedName{Name: "roles"}, node)).To(Succeed())
			g.Expect(node.Spec.Taints).To(BeEmpty())
		}).Should(Succeed())
		Expect(api.Create(ctx, &v1alpha1.InferencePool{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: key.Name},
			Spec: v1alpha1.InferencePoolSpec{
				Model: v1alpha1.Model{Name: "m"},
				Roles: []v1alpha1.PoolRole{
					{Name: v1alpha1.RolePrefill, Replicas: ptr.To[int32](1), Engine: &v1alpha1.RoleEngine{ExtraArgs: []string{"--max-num-batched-tokens=16384"}}},
					{Name: v1alpha1.RoleDecode, Replicas: ptr.To[int32](2)},
				},
				Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{
					{Name: "vllm", Image: "vllm/vllm-openai:v0.24.0", Args: []string{"--model", "m"}},
				}}},
			},
		})).To(Succeed())
	})

	It("makes the pods of each role", func() {
		settled(role(v1alpha1.RolePrefill, 1), role(v1alpha1.RoleDecode, 2))
		revisions := map[string]bool{}
		for _, pod := range pods(Default) {
			engine := pod.Spec.Containers[0]
			Expect(engine.Args).To(ContainElements("--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"kv_both"}`))
			Expect(engine.Env).To(ContainElement(And(HaveField("Name", "VLLM_NIXL_SIDE_CHANNEL_HOST"),
				HaveField("ValueFrom.FieldRef.FieldPath", "status.podIP"))))
			if pod.Labels[v1alpha1.LabelRole] == "prefill" {
				Expect(engine.Args).To(ContainElement("--max-num-batched-tokens=16384"))
			} else {
				Expect(engine.Args).NotTo(ContainElement("--max-num-batched-tokens=16384"))
			}
			revisions[pod.Labels[v1alpha1.LabelRevision]] = true
		}
		Expect(revisions).To(HaveLen(1), "pairs are of one revision")
	})

	It("scales each role", func() {
		before := get(Default).Status.UpdateRevision
		edit(func(pool *v1alpha1.InferencePool) {
			pool.Spec.Roles[0].Replicas, pool.Spec.Roles[1].Replicas = ptr.To[int32](2), ptr.To[int32](3)
		})
		settled(role(v1alpha1.RolePrefill, 2), role(v1alpha1.RoleDecode, 3))
		Expect(get(Default).Status.UpdateRevision).To(Equal(before), "a size is no part of the revision")
		Eventually(func(g Gomega) {
			var events eventsv1.EventList
			g.Expect(api.List(ctx, &events, client.InNamespace(namespace))).To(Succeed())
			g.Expect(events.Items).To(ContainElement(And(HaveField("Reason", "ScaledUp"),
				HaveField("Note", "Prefill from 1 to 2: spec.roles, Decode from 2 to 3: spec.roles"))))
		}).Should(Succeed())
		edit(func(pool *v1alpha1.InferencePool) { pool.Spec.Roles[0].Replicas = ptr.To[int32](1) })
		settled(role(v1alpha1.RolePrefill, 1), role(v1alpha1.RoleDecode, 3))
	})

	It("takes the size of a role from the autoscaler", func() {
		decided.Store(key.String()+" Decode", 2)
		edit(func(pool *v1alpha1.InferencePool) {
			pool.Spec.Roles[1].Replicas, pool.Spec.Roles[1].Autoscaling = nil, v1alpha1.Autoscaling{MaxReplicas: 4}
		})
		settled(role(v1alpha1.RolePrefill, 1), role(v1alpha1.RoleDecode, 2))
		Expect(get(Default).Status.Roles[1].Autoscaling.Reason).To(Equal("LowUtilization"))
		Expect(get(Default).Status.Roles[0].Autoscaling).To(BeZero())
	})

	It("rolls both roles out", func() {
		edit(func(pool *v1alpha1.InferencePool) {
			pool.Spec.Template.Spec.Containers[0].Image = "vllm/vllm-openai:v0.25.0"
		})
		settled(role(v1alpha1.RolePrefill, 1), role(v1alpha1.RoleDecode, 2))
	})

	It("refuses the size of the pool by kubectl scale, and says where sizes are", func() {
		pool := get(Default)
		err := api.Patch(ctx, pool, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":5}}`)))
		Expect(err).To(MatchError(ContainSubstring("set the size in roles")))
	})

	It("keeps the pods of its roles while a change to pods without roles is paused", func() {
		before := get(Default).Status.CurrentRevision
		edit(func(pool *v1alpha1.InferencePool) {
			pool.Spec.Paused, pool.Spec.Roles, pool.Spec.Replicas = v1alpha1.PauseRollout, nil, ptr.To[int32](3)
		})
		victim := pods(Default)[0]
		Expect(api.Delete(ctx, &victim)).To(Succeed())
		Eventually(func(g Gomega) {
			kubelet(g)
			pool := get(g)
			g.Expect(pool.Status.ObservedGeneration).To(Equal(pool.Generation))
			g.Expect(pool.Status.CurrentRevision).To(Equal(before))
			g.Expect(meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionUpToDate)).To(HaveField("Reason", "RolloutPaused"))
			got := map[string]int{}
			for _, pod := range pods(g) {
				g.Expect(pod.UID).NotTo(Equal(victim.UID))
				g.Expect(decodes(&pod) || pod.Labels[v1alpha1.LabelRole] == "prefill").To(BeTrue(), "%s does not serve", pod.Name)
				g.Expect(pod.Name).To(HavePrefix(before))
				got[pod.Labels[v1alpha1.LabelRole]]++
			}
			g.Expect(got).To(Equal(map[string]int{"prefill": 1, "decode": 2}), "%+v", pool.Status.Roles)
		}, "60s", "100ms").Should(Succeed())
		edit(func(pool *v1alpha1.InferencePool) { pool.Spec.Paused = "" })
		settled(role(v1alpha1.RoleBoth, 3))
	})

	It("changes to pods without roles, and back", func() {
		edit(func(pool *v1alpha1.InferencePool) { pool.Spec.Roles, pool.Spec.Replicas = nil, ptr.To[int32](3) })
		settled(role(v1alpha1.RoleBoth, 3))
		edit(func(pool *v1alpha1.InferencePool) {
			pool.Spec.Replicas = nil
			pool.Spec.Roles = []v1alpha1.PoolRole{
				{Name: v1alpha1.RolePrefill, Replicas: ptr.To[int32](1)}, {Name: v1alpha1.RoleDecode, Replicas: ptr.To[int32](2)},
			}
		})
		settled(role(v1alpha1.RolePrefill, 1), role(v1alpha1.RoleDecode, 2))
	})

	It("puts the sidecar in front of engines that decode when a policy names it, and leaves it there when the policy goes", func() {
		policy := &v1alpha1.RoutingPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "apart"},
			Spec: v1alpha1.RoutingPolicySpec{
				TargetRefs:     []v1alpha1.PolicyTarget{{Name: key.Name}},
				Disaggregation: v1alpha1.Disaggregation{Type: v1alpha1.DisaggregationCost, Sidecar: v1alpha1.SidecarKvasir},
			},
		}
		settled(role(v1alpha1.RolePrefill, 1), role(v1alpha1.RoleDecode, 2))
		bare := get(Default).Status.UpdateRevision
		for _, pod := range pods(Default) {
			Expect(config.ReporterServes(&pod)).To(BeFalse())
		}
		Expect(api.Create(ctx, policy)).To(Succeed())
		Eventually(func(g Gomega) {
			kubelet(g)
			g.Expect(get(g).Status.UpdateRevision).NotTo(Equal(bare))
		}).Should(Succeed())
		settled(role(v1alpha1.RolePrefill, 1), role(v1alpha1.RoleDecode, 2))
		uids := []types.UID{}
		for _, pod := range pods(Default) {
			uids = append(uids, pod.UID)
			decode := pod.Labels[v1alpha1.LabelRole] == "decode"
			Expect(config.ReporterServes(&pod)).To(Equal(decode), "%s", pod.Name)
			engine := pod.Spec.Containers[0]
			Expect(slices.Contains(engine.Args, "--port")).To(Equal(decode))
			Expect(engine.ReadinessProbe.HTTPGet.Port.IntValue()).To(Equal(8000))
			Expect(engine.LivenessProbe.HTTPGet.Port.IntValue()).To(Equal(map[bool]int{true: 8200, false: 8000}[decode]))
		}
		Expect(get(Default).Status.Injected).To(ContainElement("sidecar"))

		Expect(api.Delete(ctx, policy)).To(Succeed())
		edit(func(pool *v1alpha1.InferencePool) { pool.Spec.Roles[1].Replicas = ptr.To[int32](3) }) // it looks at the pool again
		settled(role(v1alpha1.RolePrefill, 1), role(v1alpha1.RoleDecode, 3))
		for _, pod := range pods(Default) {
			Expect(config.ReporterServes(&pod)).To(Equal(pod.Labels[v1alpha1.LabelRole] == "decode"), "%s", pod.Name)
			uids = slices.DeleteFunc(uids, func(uid types.UID) bool { return uid == pod.UID })
		}
		Expect(uids).To(BeEmpty(), "pods were replaced")
	})
})
