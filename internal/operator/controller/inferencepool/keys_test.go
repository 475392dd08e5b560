package inferencepool

import (
	"bytes"
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// keepsKey lets the controller look at the key root of a pool whose annotation asks for it, and returns the root.
func (w *world) keepsKey(asked string) (root []byte, r *secrets) {
	w.t.Helper()
	pool := w.pool()
	if asked != "" {
		pool.Annotations = map[string]string{v1alpha1.AnnotationRotateKey: asked}
	}
	r = &secrets{w.r.begin(pool), nil}
	w.must(r.keepKey(context.Background()))
	got := &corev1.Secret{}
	if w.api.Get(context.Background(), types.NamespacedName{Namespace: poolKey.Namespace, Name: resources.KeyName(poolKey.Name)}, got) != nil {
		return nil, r
	}
	return got.Data[v1alpha1.SecretKeyRoot], r
}

func TestTheKeyRootRotatesWhenAskedOnce(t *testing.T) {
	w := newWorld(t)
	first, _ := w.keepsKey("")
	if len(first) < v1alpha1.MinRootBytes {
		t.Fatalf("a root of %d bytes", len(first))
	}
	secret := &corev1.Secret{}
	name := types.NamespacedName{Namespace: poolKey.Namespace, Name: resources.KeyName(poolKey.Name)}
	w.must(w.api.Get(context.Background(), name, secret))
	secret.Data["somebody's"] = []byte("own")
	w.must(w.api.Update(context.Background(), secret))

	second, _ := w.keepsKey("leaked on Monday")
	if bytes.Equal(first, second) || len(second) < v1alpha1.MinRootBytes {
		t.Fatal("the root is what it was")
	}
	for range 2 {
		if again, _ := w.keepsKey("leaked on Monday"); !bytes.Equal(second, again) {
			t.Error("one demand rotates the root twice")
		}
		w.start() // a controller without memory
	}
	if again, _ := w.keepsKey(""); !bytes.Equal(second, again) {
		t.Error("the end of a demand rotates the root")
	}
	if third, _ := w.keepsKey("and on Tuesday"); bytes.Equal(second, third) {
		t.Error("another demand does not")
	}
	w.must(w.api.Get(context.Background(), name, secret))
	if string(secret.Data["somebody's"]) != "own" {
		t.Errorf("what else the Secret had is gone: %v", secret.Data)
	}
}

func TestADeletedKeyRootIsMadeAgain(t *testing.T) {
	w := newWorld(t)
	first, r := w.keepsKey("")
	if want := w.clock.Now().Add(foundEvery); !r.wake.Equal(want) {
		t.Errorf("next reconcile at %s, want %s", r.wake, want)
	}
	secret := &corev1.Secret{}
	name := types.NamespacedName{Namespace: poolKey.Namespace, Name: resources.KeyName(poolKey.Name)}
	w.must(w.api.Get(context.Background(), name, secret))
	w.must(w.api.Delete(context.Background(), secret))
	w.clock.SetTime(w.clock.Now().Add(foundEvery - time.Second))
	if root, _ := w.keepsKey(""); root != nil {
		t.Error("it is asked for all the time")
	}
	w.clock.SetTime(w.clock.Now().Add(2 * time.Second))
	if root, _ := w.keepsKey(""); root == nil || bytes.Equal(root, first) {
		t.Error("the root was not made again")
	}
}

func TestSomebodyElsesSecretIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	theirs := &corev1.Secret{Data: map[string][]byte{v1alpha1.SecretKeyRoot: []byte("theirs")}}
	theirs.Namespace, theirs.Name = poolKey.Namespace, resources.KeyName(poolKey.Name)
	w.must(w.api.Create(context.Background(), theirs))
	root, r := w.keepsKey("now")
	if string(root) != "theirs" || len(r.problems.taken) != 1 {
		t.Errorf("root %q, taken %v", root, r.problems.taken)
	}
}

func TestARootThatThePoolNamesIsItsOwnersAffair(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) { p.Spec.KeySpace.SecretRef.Name = "mine" })
	if root, _ := w.keepsKey("now"); root != nil {
		t.Error("a Secret was made that is not used")
	}
}
