package routingpolicy

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAResponseCacheSaysWhereItHasNoEffect: gateways get no answers from a picker.
func TestAResponseCacheSaysWhereItHasNoEffect(t *testing.T) {
	w := newWorld(t, pool("m"), policy(t, "p", 1, `{targetRefs: [{name: m}], responseCache: {type: Exact}}`), policy(t, "q", 2, `{targetRefs: [{name: other}]}`), pool("other"))
	for name, want := range map[string]string{"p": "requests through gateways are not answered from the response cache", "q": ""} {
		w.mustReconcile(name)
		if c := w.get(name).Status.Ancestors[0].Conditions[0]; c.Status != metav1.ConditionTrue || c.Message != want {
			t.Errorf("%s: %s %q, want %q", name, c.Status, c.Message, want)
		}
	}
}
