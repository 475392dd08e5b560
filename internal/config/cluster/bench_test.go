package cluster

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
)

// BenchmarkFleet is what a change of one object costs a picker of a fleet before the picks follow it: all pools, with one pod each, are
// translated again.
func BenchmarkFleet(b *testing.B) {
	a, err := crdadmission.New()
	if err != nil {
		b.Fatal(err)
	}
	defaults, err := a.DefaultPolicy()
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{1, 50, 1000} {
		b.Run(fmt.Sprintf("pools=%d", n), func(b *testing.B) {
			var pools []*v1alpha1.InferencePool
			var pods []*corev1.Pod
			var secrets []*corev1.Secret
			for i := range n {
				name := fmt.Sprintf("p%d", i)
				text, err := json.Marshal(map[string]any{
					"apiVersion": "kvasir.dev/v1alpha1", "kind": "InferencePool", "metadata": map[string]any{"name": name},
					"spec": map[string]any{"model": map[string]any{"name": name}, "picker": map[string]any{"mode": "Fleet"},
						"selector": map[string]any{"matchLabels": map[string]any{"app": name}}},
				})
				if err != nil {
					b.Fatal(err)
				}
				raw, err := a.Admit(b.Context(), text, nil)
				if err != nil {
					b.Fatal(err)
				}
				p, err := crdadmission.Pool(raw)
				if err != nil {
					b.Fatal(err)
				}
				pools = append(pools, p)
				pods = append(pods, &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + "-0", UID: types.UID(name), Labels: map[string]string{"app": name}},
					Status:     corev1.PodStatus{PodIP: fmt.Sprintf("10.%d.%d.1", i/250, i%250)},
				})
				secrets = append(secrets, &corev1.Secret{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + keySecret},
					Data:       map[string][]byte{v1alpha1.SecretKeyRoot: []byte(strings.Repeat("r", 32))},
				})
			}
			translator, err := config.NewTranslator(config.Settings{}, defaults)
			if err != nil {
				b.Fatal(err)
			}
			s := &Source{scope: scope{namespace: "default", fleet: "default"}, departed: map[string]*departed{}, log: logr.Discard()}
			b.ReportAllocs()
			for b.Loop() {
				o := objectsOf(s.isServed, s.keep(pools, pods, time.Now()), nil, pods)
				o.Secrets = secrets
				if state := translator.Translate(o); len(state.Specs) != n {
					b.Fatalf("%d pools are served: %v", len(state.Specs), state.Problems)
				}
			}
		})
	}
}
