package inferencepool

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/objects"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/status"
)

func forbidden(resource, name, why string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, name, errors.New(why))
}

// withChildren has a server apply what stands beside the pods, except what refuse refuses.
func (w *world) withChildren(refuse func(*unstructured.Unstructured) error) {
	w.applies = refuse
	w.r.Children = func() resources.Config { return resources.Config{PickerImage: "picker:v1", GIE: true, Routes: true} }
}

// TestARefusedRevisionStopsNoDrain: while the API server does not take the newest template, pods are removed and made as before.
func TestARefusedRevisionStopsNoDrain(t *testing.T) {
	w := newWorld(t)
	w.serve()
	w.broken = func(verb string, obj client.Object) (error, error) {
		if _, ok := obj.(*appsv1.ControllerRevision); ok && verb == "create" {
			return forbidden("controllerrevisions", obj.GetName(), "the webhook does not answer"), nil
		}
		return nil, nil
	}
	w.edit(func(s *v1alpha1.InferencePoolSpec) {
		s.Replicas = ptr.To[int32](1)
		s.Template.Spec.Containers[0].Image = "vllm:other"
	})
	w.lasting()
	if got := w.condition(v1alpha1.ConditionAccepted); !strings.HasPrefix(got, "False ") {
		t.Errorf("accepted: %s", got)
	}
	marked := 0
	for _, pod := range w.all() {
		if markOf(pod).Reason != "" {
			marked++
		}
		if pod.Spec.Containers[0].Image == "vllm:other" {
			t.Error("a pod is made of a revision that is not kept")
		}
	}
	if marked != len(w.all())-1 {
		w.fail("%d of %d pods are marked", marked, len(w.all()))
	}
	w.broken = nil
	w.clock.SetTime(w.clock.Now().Add(refusedEvery))
	w.serve()
	if got := w.condition(v1alpha1.ConditionUpToDate); got != "True UpToDate" || w.all()[0].Spec.Containers[0].Image != "vllm:other" {
		w.fail("%s: %s", got, w.all()[0].Spec.Containers[0].Image)
	}
}

func TestARefusedChildIsNamedAndHoldsUpNoOther(t *testing.T) {
	for _, kind := range []string{"Deployment", "ServiceAccount", "Secret", "ConfigMap", "Role"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			refuses := true
			w.withChildren(func(o *unstructured.Unstructured) error {
				if refuses && o.GetKind() == kind {
					return forbidden(kind, o.GetName(), "exceeded quota: objects")
				}
				return nil
			})
			w.serve()
			there := func(o client.Object, name string) bool {
				return w.api.Get(context.Background(), client.ObjectKey{Namespace: poolKey.Namespace, Name: name}, o) == nil
			}
			if !there(&corev1.Service{}, resources.PickerName(poolKey.Name)) || !there(&networkingv1.NetworkPolicy{}, resources.PickerName(poolKey.Name)) {
				t.Error("the Service and the NetworkPolicy of the picker are missing")
			}
			var budgets policyv1.PodDisruptionBudgetList
			w.must(w.api.List(context.Background(), &budgets))
			if len(budgets.Items) != 2 {
				t.Errorf("%d disruption budgets, want that of the picker and that of the engines", len(budgets.Items))
			}
			w.expect("new-0", "new-1")
			c := meta.FindStatusCondition(w.pool().Status.Conditions, v1alpha1.ConditionAccepted)
			if c == nil || c.Reason != status.ReasonObjectRefused || !strings.Contains(c.Message, "exceeded quota: objects") || !strings.Contains(strings.ToLower(c.Message), strings.ToLower(kind)) {
				t.Errorf("accepted: %+v", c)
			}
			if again, err := w.reconcile(); err != nil || again > refusedEvery {
				t.Errorf("tried again after %s, %v", again, err)
			}
			refuses = false
			w.lasting()
			if got := w.condition(v1alpha1.ConditionAccepted); got != "True Accepted" {
				t.Errorf("when the quota allows it: %s", got)
			}
			if !there(&appsv1.Deployment{}, resources.PickerName(poolKey.Name)) {
				t.Error("the picker is missing")
			}
		})
	}
}

func TestARouteThatIsRefusedShowsInTheGatewaysCondition(t *testing.T) {
	for _, kind := range []schema.GroupVersionKind{resources.RouteKind, resources.GIEKind} {
		t.Run(kind.Kind, func(t *testing.T) {
			w := newWorld(t, func(p *v1alpha1.InferencePool) {
				p.Spec.Gateway = v1alpha1.Gateway{Mode: v1alpha1.GatewayAuto, ParentRefs: []gwapiv1.ParentReference{{Name: "web"}}}
			})
			w.withChildren(func(o *unstructured.Unstructured) error {
				if o.GroupVersionKind() == kind {
					return apierrors.NewInvalid(kind.GroupKind(), o.GetName(), nil)
				}
				return nil
			})
			w.serve()
			c := meta.FindStatusCondition(w.pool().Status.Conditions, v1alpha1.ConditionGatewayAccepted)
			if c == nil || c.Status != metav1.ConditionFalse || c.Reason != status.ReasonObjectRefused || !strings.Contains(c.Message, kind.Kind) {
				t.Errorf("gateway: %+v", c)
			}
			if got := w.condition(v1alpha1.ConditionAccepted); got != "True Accepted" {
				t.Errorf("accepted: %s", got)
			}
		})
	}
}

// An API server refuses to apply an object with a field that its definition lacks, and names the field.
func TestAnOlderDefinitionOfTheGatewaysPoolHoldsUpNothing(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) {
		p.Spec.Engine.Protocol, p.Spec.Gateway.Mode = v1alpha1.ProtocolH2C, v1alpha1.GatewayAuto
	})
	old, tries := true, 0
	w.withChildren(func(o *unstructured.Unstructured) error {
		_, has, _ := unstructured.NestedString(o.Object, "spec", "appProtocol")
		if old && has && o.GroupVersionKind() == resources.GIEKind {
			tries++
			return apierrors.NewInternalError(errors.New("failed to create typed patch object (llm/chat; InferencePool): .spec.appProtocol: field not declared in schema"))
		}
		return nil
	})
	w.serve()
	protocol := func() string {
		t.Helper()
		made := &unstructured.Unstructured{}
		made.SetGroupVersionKind(resources.GIEKind)
		w.must(w.api.Get(context.Background(), poolKey, made))
		got, _, err := unstructured.NestedString(made.Object, "spec", "appProtocol")
		w.must(err)
		return got
	}
	if got := protocol(); got != "" || tries != 1 {
		t.Errorf("protocol %q after %d tries with it", got, tries)
	}
	w.expect("new-0", "new-1")
	if got := w.condition(v1alpha1.ConditionAccepted); got != "True Accepted" {
		t.Errorf("accepted: %s", got)
	}
	r := &children{scope: w.r.begin(w.pool()), observed: &observed{}}
	_, err := r.keep(context.Background())
	w.must(err)
	if len(r.problems.traffic) != 1 || !strings.Contains(r.problems.traffic[0], "appProtocol") {
		t.Errorf("problems %q", r.problems.traffic)
	}
	old = false // it is upgraded
	w.clock.SetTime(w.clock.Now().Add(foundEvery))
	w.lasting()
	if got := protocol(); got != "kubernetes.io/h2c" {
		t.Errorf("protocol %q when the definition has it", got)
	}
}

func TestAQuotaThatAllowsNoPodKeepsNoDrainedOne(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) { p.Spec.Replicas = ptr.To[int32](3) })
	w.serve()
	for _, pod := range w.all() {
		w.engine(pod).requests = []time.Time{w.clock.Now().Add(time.Minute)}
	}
	w.broken = func(verb string, obj client.Object) (before, after error) {
		if _, pod := obj.(*corev1.Pod); pod && verb == "create" {
			return forbidden("pods", obj.GetName(), "exceeded quota: gpus"), nil
		}
		return nil, nil
	}
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](2) })
	w.settleDown()
	w.expect("new-0 scale-down", "new-1", "new-2")
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Template.Spec.Containers[0].Image = "b" })
	w.settleDown()
	if got := w.condition(v1alpha1.ConditionScaled); got != "False QuotaExceeded" {
		t.Errorf("scaled: %s", got)
	}
	again, err := w.reconcile()
	if err != nil || again == 0 || again > time.Second {
		t.Errorf("while a pod drains, it checks again after %s: %v", again, err)
	}
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	for range 3 {
		w.tick()
		w.settleDown()
	}
	w.expect("old-1", "old-2")
}

func TestWhatIsRefused(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	denied := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusBadRequest, Message: `admission webhook "x" denied the request`}}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":                    {nil, false},
		"the connection":             {errBroken, false},
		"a quota":                    {forbidden("pods", "a", "exceeded quota"), true},
		"wrapped":                    {fmt.Errorf("applying: %w", forbidden("pods", "a", "x")), true},
		"validation":                 {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", nil), true},
		"a webhook":                  {denied, true},
		"a webhook that is dead":     {apierrors.NewInternalError(errors.New(`failed calling webhook "x"`)), true},
		"the API server's own fault": {apierrors.NewInternalError(errors.New("etcd")), false},
		"a conflict":                 {apierrors.NewConflict(pods, "a", errors.New("x")), false},
		"load":                       {apierrors.NewTooManyRequests("x", 1), false},
		"a timeout":                  {apierrors.NewServerTimeout(pods, "create", 1), false},
		"not there":                  {apierrors.NewNotFound(pods, "a"), false},
	} {
		if got := objects.Refused(tc.err); got != tc.want {
			t.Errorf("%s: refused %t, want %t", name, got, tc.want)
		}
	}
	r := newVerdict()
	if got := r.accepted(denied); got.Status != metav1.ConditionFalse || got.Reason != "NotPermitted" {
		t.Errorf("a webhook denies pods: %+v", got)
	}
}

func TestThePickersConditionSaysWhyItsPodsAreNotCreated(t *testing.T) {
	r := newVerdict()
	r.picker.Status.ReadyReplicas = 0
	r.picker.Status.Conditions = []appsv1.DeploymentCondition{
		{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "exceeded quota: cpu"},
	}
	if got := r.pickerAvailable(nil); got.Reason != "Unavailable" || !strings.Contains(got.Message, "exceeded quota: cpu") {
		t.Errorf("available: %+v", got)
	}
}
