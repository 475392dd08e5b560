package lifecycle

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
	"github.com/kvasir-dev/kvasir/test/kube"
)

// TestAPoolWithAddressesOfIPv6: in a cluster of IPv6, or of both families, a pool comes up, its events are read, and it is scaled under
// load without a failed request. An engine whose template names no address listens where its pod is reached.
func TestAPoolWithAddressesOfIPv6(t *testing.T) {
	t.Parallel()
	if kube.Family() == kube.IPv4 {
		t.Skip("needs a network with IPv6: hack/test-ipv6.sh")
	}
	w := newWorld(t, 0)
	manifest, first := pool, strings.HasPrefix(kube.Family(), kube.IPv6)
	if first {
		manifest = strings.Replace(pool, "--host, 127.0.0.1, ", "", 1)
	}
	w.apply(manifest)
	w.until("serving", func(p *v1alpha1.InferencePool) bool { return settled(3)(p) && len(w.proxies()) == 2 })
	for _, p := range w.podsOf(v1alpha1.LabelSlot) {
		if injected := podtemplate.Injected(&p); slices.Contains(injected, podtemplate.FlagHost) != first {
			t.Errorf("injected into %s: %s", p.Name, injected)
		}
	}
	services, err := w.set.CoreV1().Services(namespace).List(t.Context(), metav1.ListOptions{})
	w.must(err)
	for _, s := range services.Items {
		if is := s.Spec.IPFamilies[0] == corev1.IPv6Protocol; is != first {
			t.Errorf("Service %s has addresses of %s", s.Name, s.Spec.IPFamilies)
		}
	}
	w.healthy()
	l := startLoad(w, *clients, *longest)
	w.answers(l, 50)
	w.patch(`{"spec":{"replicas":1}}`)
	w.until("smaller", settled(1))
	w.patch(`{"spec":{"replicas":2}}`)
	w.until("larger", settled(2))
	w.answers(l, 50)
	failures := l.end()
	t.Logf("%s: %d requests, %d failed", kube.Family(), l.asked.Load(), len(failures))
	for _, f := range failures[:min(10, len(failures))] {
		t.Error(f)
	}
}
