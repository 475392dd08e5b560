package inferencepool

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

func TestAPoolThatNamesWhatIsNotThereSaysSo(t *testing.T) {
	for field, name := range map[string]func(*v1alpha1.InferencePoolSpec){
		"keySpace.secretRef":   func(s *v1alpha1.InferencePoolSpec) { s.KeySpace.SecretRef.Name = "x" },
		"engine":               func(s *v1alpha1.InferencePoolSpec) { s.Engine.APIKey.Name = "x" },
		"picker.tls.secretRef": func(s *v1alpha1.InferencePoolSpec) { s.Picker.TLS.SecretRef.Name = "x" },
	} {
		t.Run(field, func(t *testing.T) {
			w := newWorld(t, func(p *v1alpha1.InferencePool) { name(&p.Spec) })
			w.serve()
			w.lasting()
			if got := w.condition(v1alpha1.ConditionAccepted); got != "False ReferenceNotFound" {
				t.Errorf("without the Secret: %s", got)
			}
			if got := w.condition(v1alpha1.ConditionScaled); got != "True Settled" {
				t.Errorf("its pods are there all the same: %s", got)
			}
			w.must(w.api.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: poolKey.Namespace, Name: "x"}}))
			w.clock.SetTime(w.clock.Now().Add(missingEvery))
			w.lasting()
			if got := w.condition(v1alpha1.ConditionAccepted); got != "True Accepted" {
				t.Errorf("with the Secret: %s", got)
			}
		})
	}
}

func TestReferencesAreThoseOfWhatThePoolHas(t *testing.T) {
	pool := newPool()
	if got := referencesOf(pool); len(got) != 0 {
		t.Errorf("a pool without any: %v", got)
	}
	pool.Spec.Picker.TLS.SecretRef.Name, pool.Spec.Picker.Mode = "tls", v1alpha1.PickerExternal
	pool.Spec.Model.Tokenizer.Volume = &v1alpha1.TokenizerVolume{}
	pool.Spec.Model.Tokenizer.Volume.ConfigMap.Name = "files"
	pool.Spec.Placement = &v1alpha1.Placement{}
	pool.Spec.Placement.PricesFrom.Name = "prices"
	want := []reference{{kind: "ConfigMap", name: "files", field: "model.tokenizer.volume.configMap"},
		{kind: "ConfigMap", name: "prices", field: "placement.pricesFrom"}}
	ca := reference{kind: "ConfigMap", name: pool.Name + "-picker-ca", field: "picker.mode External (the CA of the pickers' certificates, ca.crt)"}
	if got := referencesOf(pool); !reflect.DeepEqual(got, append([]reference{ca}, want...)) {
		t.Errorf("got %v, want %v and the pickers' CA", got, want)
	}
	pool.Spec.Template = nil // the engines' pods are not the operator's: nothing of it waits for the CA
	if got := referencesOf(pool); !reflect.DeepEqual(got, want) {
		t.Errorf("without a template: got %v, want %v", got, want)
	}
}

// TestASecretForTheProxyMustHaveItsEntries: the pickers serve meanwhile, and the condition names the entry.
func TestASecretForTheProxyMustHaveItsEntries(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) {
		p.Spec.Picker.ProxyTLS.SecretRef.Name = "chat-tls"
		p.Spec.Picker.ProxyTLS.ClientCASecretRef = v1alpha1.SecretKey{Name: "clients", Key: "ca.crt"}
	})
	w.serve()
	expect := func(want, message string) {
		t.Helper()
		w.lasting()
		if got := w.condition(v1alpha1.ConditionAccepted); got != want {
			t.Errorf("Accepted is %s, want %s", got, want)
		}
		for _, c := range w.pool().Status.Conditions {
			if c.Type == v1alpha1.ConditionAccepted && !strings.Contains(c.Message, message) {
				t.Errorf("message %q, want %q", c.Message, message)
			}
		}
		w.clock.SetTime(w.clock.Now().Add(missingEvery))
	}
	create := func(name string, keys ...string) *corev1.Secret {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: poolKey.Namespace, Name: name}, Data: map[string][]byte{}}
		for _, key := range keys {
			s.Data[key] = []byte("x")
		}
		w.must(w.api.Create(t.Context(), s))
		return s
	}
	expect("False ReferenceNotFound", "Secret chat-tls of picker.proxyTLS.secretRef is not there")
	secret := create("chat-tls", "tls.crt")
	expect("False ReferenceNotFound", "Secret chat-tls of picker.proxyTLS.secretRef has no entry tls.key")
	secret.Data["tls.key"] = []byte("x")
	w.must(w.api.Update(t.Context(), secret))
	expect("False ReferenceNotFound", "Secret clients of picker.proxyTLS.clientCASecretRef is not there")
	create("clients", "ca.crt")
	expect("True Accepted", "")
}
