package pickerfleet

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

var big = types.NamespacedName{Namespace: "llm", Name: "big"}

// feed is what pickers have reported, by pool.
type feed map[types.NamespacedName]operatorfeed.View

func (f feed) Known(pool types.NamespacedName) operatorfeed.View { return f[pool] }

// world is an API server with a controller.
type world struct {
	*testing.T
	api client.Client
	r   *Reconciler
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	api := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.PickerFleet{}).WithObjects(objects...).Build(),
		interceptor.Funcs{Apply: func(ctx context.Context, c client.WithWatch, config runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
			return apply(ctx, c, config)
		}})
	return &world{t, api, &Reconciler{
		Client: api, Direct: api, Pickers: feed{}, Clock: testingclock.NewFakePassiveClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
		Config: func() resources.Config { return resources.Config{PickerImage: "picker"} },
	}}
}

// apply replaces an object, or creates it: the fake server cannot apply a NetworkPolicy.
func apply(ctx context.Context, c client.Client, config runtime.ApplyConfiguration) error {
	raw, err := json.Marshal(config)
	if err != nil {
		return err
	}
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(raw, &o.Object); err != nil {
		return err
	}
	live := o.DeepCopy()
	err = c.Get(ctx, client.ObjectKeyFromObject(o), live)
	if apierrors.IsNotFound(err) {
		return c.Create(ctx, o)
	}
	if err != nil {
		return err
	}
	o.SetResourceVersion(live.GetResourceVersion())
	if status, ok := live.Object["status"]; ok {
		o.Object["status"] = status
	}
	return c.Update(ctx, o)
}

func fleet(change func(*v1alpha1.PickerFleetSpec)) *v1alpha1.PickerFleet {
	f := &v1alpha1.PickerFleet{ObjectMeta: metav1.ObjectMeta{Namespace: big.Namespace, Name: big.Name, UID: "f1ee7", Generation: 1}}
	f.Spec.Replicas = 2
	if change != nil {
		change(&f.Spec)
	}
	return f
}

func (w *world) reconcile() {
	w.Helper()
	w.reconciled()
}

func (w *world) reconciled() reconcile.Result {
	w.Helper()
	result, err := w.r.Reconcile(w.Context(), reconcile.Request{NamespacedName: big})
	if err != nil {
		w.Fatal(err)
	}
	return result
}

func (w *world) there(o client.Object, name string) bool {
	w.Helper()
	err := w.api.Get(w.Context(), types.NamespacedName{Namespace: big.Namespace, Name: name}, o)
	if err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
	return err == nil
}

// condition of the fleet, as "status reason: message".
func (w *world) condition(kind string) string {
	w.Helper()
	f := &v1alpha1.PickerFleet{}
	if !w.there(f, big.Name) {
		w.Fatal("there is no fleet")
	}
	c := meta.FindStatusCondition(f.Status.Conditions, kind)
	if c == nil {
		return "none"
	}
	return string(c.Status) + " " + c.Reason + ": " + c.Message
}

func (w *world) expect(kind, prefix string, parts ...string) {
	w.Helper()
	got := w.condition(kind)
	if !strings.HasPrefix(got, prefix) {
		w.Errorf("%s is %q, want %s", kind, got, prefix)
	}
	for _, part := range parts {
		if !strings.Contains(got, part) {
			w.Errorf("%s is %q, want one with %s", kind, got, part)
		}
	}
}

func TestAFleetLeavesOthersObjectsAlone(t *testing.T) {
	theirs := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: big.Namespace, Name: "big-fleet", Labels: map[string]string{"app": "theirs"}}}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: big.Namespace, Name: "big-fleet-ca"}, Data: map[string][]byte{"tls.crt": []byte("theirs")}}
	w := newWorld(t, fleet(nil), theirs, secret)
	for range 3 {
		w.reconcile()
	}
	w.expect(v1alpha1.ConditionAvailable, "False NameTaken", "Deployment big-fleet", "Secret big-fleet-ca")
	if d := (&appsv1.Deployment{}); !w.there(d, "big-fleet") || d.Labels["app"] != "theirs" || len(d.OwnerReferences) != 0 {
		t.Errorf("the Deployment became %+v", d.ObjectMeta)
	}
	if s := (&corev1.Secret{}); !w.there(s, "big-fleet-ca") || string(s.Data["tls.crt"]) != "theirs" {
		t.Errorf("the Secret became %+v", s)
	}
	if w.there(&corev1.ConfigMap{}, "big-fleet-ca") {
		t.Error("reporters trust certificates that are not the fleet's")
	}
	if !w.there(&corev1.Service{}, "big-fleet") {
		t.Error("what is free was not made")
	}
}

func TestAFleetDeletesWhatItDoesNotWantAnyMore(t *testing.T) {
	theirs := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: big.Namespace, Name: "theirs", Labels: map[string]string{resources.LabelFleet: "big"}}}
	w := newWorld(t, fleet(nil), theirs)
	w.reconcile()
	if !w.there(&networkingv1.NetworkPolicy{}, "big.fleet") {
		t.Fatal("no NetworkPolicy was made")
	}
	f := &v1alpha1.PickerFleet{}
	w.there(f, big.Name)
	f.Spec.NetworkPolicy, f.Generation = v1alpha1.NetworkPolicyNone, 2
	if err := w.api.Update(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	if w.there(&networkingv1.NetworkPolicy{}, "big.fleet") || !w.there(&networkingv1.NetworkPolicy{}, "theirs") || !w.there(&appsv1.Deployment{}, "big-fleet") {
		t.Error("another object than the fleet's NetworkPolicy was deleted, or not that one")
	}
}

func TestWhatAFleetLeavesIsDeletedWithItsLastPool(t *testing.T) {
	pool := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: big.Namespace, Name: "chat", UID: "pool"}}
	pool.Spec.Picker.Mode, pool.Spec.Picker.FleetRef.Name = v1alpha1.PickerOfFleet, big.Name
	w := newWorld(t, fleet(nil), pool)
	w.reconcile()
	if err := w.api.Delete(t.Context(), fleet(nil)); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	if !w.there(&appsv1.Deployment{}, "big-fleet") || !w.there(&rbacv1.Role{}, "big-fleet") {
		t.Fatal("the pickers went though a pool needs them")
	}
	pool.Spec.Picker.Mode, pool.Spec.Picker.FleetRef.Name = v1alpha1.PickerManaged, ""
	pool.Status.Picker.FleetName = big.Name // its own pickers do not serve yet
	if err := w.api.Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	if !w.there(&appsv1.Deployment{}, "big-fleet") {
		t.Fatal("the pickers went before others served")
	}
	pool.Status.Picker.FleetName = ""
	if err := w.api.Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	if w.there(&appsv1.Deployment{}, "big-fleet") || w.there(&rbacv1.Role{}, "big-fleet") || w.there(&corev1.ServiceAccount{}, "big-fleet") {
		t.Error("objects of a fleet that is gone are still there")
	}
}

// TestACAThatCannotBeReadIsMadeAgain, and trusted.
func TestACAThatCannotBeReadIsMadeAgain(t *testing.T) {
	w := newWorld(t, fleet(nil))
	w.reconcile()
	w.expect(v1alpha1.ConditionAvailable, "False Unavailable")
	secret, trusted := &corev1.Secret{}, &corev1.ConfigMap{}
	if !w.there(secret, "big-fleet-ca") || !w.there(trusted, "big-fleet-ca") || trusted.Data["ca.crt"] != string(secret.Data["tls.crt"]) {
		t.Fatalf("trusted is %q, the CA %q", trusted.Data["ca.crt"], secret.Data["tls.crt"])
	}
	before := string(secret.Data["tls.crt"])
	secret.Data["tls.crt"] = []byte("garbage")
	if err := w.api.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	w.r.forget(big) // another replica of the operator, which reads the Secrets first
	w.reconcile()
	secret, trusted = &corev1.Secret{}, &corev1.ConfigMap{}
	if !w.there(secret, "big-fleet-ca") || !w.there(trusted, "big-fleet-ca") {
		t.Fatal("the CA is not there")
	}
	if now := string(secret.Data["tls.crt"]); now == "garbage" || now == before || !strings.Contains(trusted.Data["ca.crt"], now) {
		t.Errorf("trusted is %q, the CA %q", trusted.Data["ca.crt"], now)
	}
}

// TestProgrammedNamesThePoolThatIsNotServed, and why.
func TestProgrammedNamesThePoolThatIsNotServed(t *testing.T) {
	pool := func(name string, generation int64) *v1alpha1.InferencePool {
		p := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: big.Namespace, Name: name, UID: types.UID(name), Generation: generation}}
		p.Spec.Picker.Mode, p.Spec.Picker.FleetRef.Name = v1alpha1.PickerOfFleet, big.Name
		return p
	}
	w := newWorld(t, fleet(nil), pool("a", 2), pool("b", 1))
	w.reconcile()
	w.expect(v1alpha1.ConditionProgrammed, "Unknown NoPicker")
	d := &appsv1.Deployment{}
	w.there(d, "big-fleet")
	d.Status.ReadyReplicas, d.Status.AvailableReplicas, d.Status.Replicas = 2, 2, 2
	if err := w.api.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	key := func(name string) types.NamespacedName {
		return types.NamespacedName{Namespace: big.Namespace, Name: name}
	}
	state := func(generation int64) operatorfeed.View {
		return operatorfeed.View{Replicas: []operatorfeed.State{{Picker: "x", PoolGeneration: generation}, {Picker: "y", PoolGeneration: 2}}}
	}
	for _, tc := range []struct {
		a, b   operatorfeed.View
		prefix string
		part   string
	}{
		{state(2), operatorfeed.View{Silent: []string{"x"}}, "False Reconciling", "1 of 2 pools are served; pool b is not"},
		{state(1), state(2), "False Reconciling", "1 of 2 replicas serve a version of before"},
		{operatorfeed.View{}, state(2), "False Reconciling", "no replica has reported it yet"},
		{state(2), state(2), "True Programmed", "2 pools"},
	} {
		w.r.Pickers = feed{key("a"): tc.a, key("b"): tc.b}
		w.reconcile()
		w.expect(v1alpha1.ConditionProgrammed, tc.prefix, tc.part)
	}
	w.expect(v1alpha1.ConditionAvailable, "True Available", "2 of 2")
}

// TestAFleetMissesASecretThatIsDeletedLater, and one without an entry: Secrets are read again after secretsEvery.
func TestAFleetMissesASecretThatIsDeletedLater(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: big.Namespace, Name: "chat-tls"},
		Data: map[string][]byte{"tls.crt": []byte("x"), "tls.key": []byte("x")}}
	w := newWorld(t, fleet(func(s *v1alpha1.PickerFleetSpec) { s.ProxyTLS.SecretRef.Name = secret.Name }), secret)
	clock := w.r.Clock.(*testingclock.FakePassiveClock)
	for range 3 {
		w.reconcile()
		w.expect(v1alpha1.ConditionAvailable, "False Unavailable")
		if wake := w.reconciled().RequeueAfter; wake <= 0 || wake > secretsEvery {
			t.Errorf("the Secrets are looked for after %v", wake)
		}
		clock.SetTime(clock.Now().Add(secretsEvery))
	}
	delete(secret.Data, "tls.key")
	if err := w.api.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	w.expect(v1alpha1.ConditionAvailable, "False ReferenceNotFound", "chat-tls", "proxyTLS.secretRef", "tls.key")
	if err := w.api.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	clock.SetTime(clock.Now().Add(missingEvery))
	w.reconcile()
	w.expect(v1alpha1.ConditionAvailable, "False ReferenceNotFound", "chat-tls", "proxyTLS.secretRef")
}
