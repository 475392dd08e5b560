package cluster

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestWhatIsMissingIsAskedForFirst: an API server answers some questions only, or the Role of the pickers comes later than a pool. A pool
// is not served without its key root, so that what is missing does not wait until all that is known was asked for again.
func TestWhatIsMissingIsAskedForFirst(t *testing.T) {
	const all, answered = 5 * askedAtOnce, 4 * askedAtOnce
	client, wanted := fake.NewClientset(), map[reference]bool{}
	for i := range all {
		ref := reference{name: fmt.Sprint("key-", i)}
		wanted[ref] = true
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: ref.name, ResourceVersion: "1"}}
		if err := client.Tracker().Add(secret); err != nil {
			t.Fatal(err)
		}
	}
	left := make(chan struct{}, all)
	for range answered {
		left <- struct{}{}
	}
	client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		select {
		case <-left:
			return false, nil, nil // it is answered
		default:
			return true, nil, errors.New("the API server is busy")
		}
	})
	n := newNamed(client.CoreV1(), "a")
	n.want(t.Context(), wanted)
	if got, _ := n.objects(); len(got) != answered {
		t.Fatalf("%d objects are known, want %d", len(got), answered)
	}
	questions := func() (changed bool, asked int) {
		before := len(client.Actions())
		changed = n.ask(t.Context())
		return changed, len(client.Actions()) - before
	}
	close(left)
	if changed, _ := questions(); !changed {
		t.Error("nothing has changed")
	}
	if got, _ := n.objects(); len(got) != all {
		t.Errorf("%d of %d objects are known after a question about those that were not", len(got), all)
	}
	if changed, asked := questions(); changed || asked != askedAtOnce {
		t.Errorf("%d questions when all are known, want %d; changed: %v", asked, askedAtOnce, changed)
	}
	// Many that are missing for good do not keep the others from being asked for.
	for i := range all {
		wanted[reference{name: fmt.Sprint("missing-", i)}] = true
	}
	n.want(t.Context(), wanted)
	if _, asked := questions(); asked != 3*askedAtOnce {
		t.Errorf("%d questions while many are missing, want %d", asked, 3*askedAtOnce)
	}
}
