package cluster

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// named holds Secrets and ConfigMaps that are asked for by name. One that cannot be read any more stays as it was; one
// that is not there, or that could never be read, is none.
type named struct {
	client    corev1client.CoreV1Interface
	namespace string
	held      map[reference]*held
	asked     int // answered questions so far
}

const (
	// askedAtOnce is how many are asked for again each time: of more, each is asked for less often, so that a fleet of many pools does not
	// keep the API server busy. Of what is not there yet, which a pool can wait for, twice as many are asked for. askedTogether is how many
	// questions are under way at a time.
	askedAtOnce, askedTogether = 200, 8
)

type held struct {
	secret    *corev1.Secret    // nil for none, and for a ConfigMap
	configMap *corev1.ConfigMap // nil for none, and for a Secret
	version   string            // of the object; empty for none
	asked     int               // which question was the last about it
}

func newNamed(client corev1client.CoreV1Interface, namespace string) *named {
	return &named{client: client, namespace: namespace, held: map[reference]*held{}}
}

// want makes the objects those, and asks for the ones that are new.
func (n *named) want(ctx context.Context, wanted map[reference]bool) {
	for ref := range n.held {
		if !wanted[ref] {
			delete(n.held, ref)
		}
	}
	var missing []reference
	for ref := range wanted {
		if n.held[ref] == nil {
			missing = append(missing, ref)
		}
	}
	n.get(ctx, missing)
}

// ask asks for those that were not asked for the longest time, and reports whether one has changed. Those that are not there come first, or
// could never be read: the right to it can come later than a pool, as its key root can.
func (n *named) ask(ctx context.Context) (changed bool) {
	refs := slices.SortedFunc(maps.Keys(n.held), func(a, b reference) int { return cmp.Compare(n.held[a].asked, n.held[b].asked) })
	var absent, there []reference
	for _, ref := range refs {
		if n.held[ref].version == "" {
			absent = append(absent, ref)
		} else {
			there = append(there, ref)
		}
	}
	return n.get(ctx, append(absent[:min(len(absent), 2*askedAtOnce)], there[:min(len(there), askedAtOnce)]...))
}

// get asks for some, several at a time, and reports whether one has changed.
func (n *named) get(ctx context.Context, refs []reference) (changed bool) {
	ctx, cancel := context.WithTimeout(ctx, pollEvery)
	defer cancel()
	answers, group := make([]answer, len(refs)), errgroup.Group{}
	group.SetLimit(askedTogether)
	for i, ref := range refs {
		group.Go(func() error { answers[i] = n.question(ctx, ref); return nil })
	}
	_ = group.Wait() // they return nil
	for i, ref := range refs {
		changed = n.take(ref, answers[i]) || changed
	}
	return changed
}

// answer is what the API server has returned.
type answer struct {
	held
	err error
}

func (n *named) question(ctx context.Context, ref reference) (a answer) {
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	if ref.configMap {
		if a.configMap, a.err = n.client.ConfigMaps(n.namespace).Get(ctx, ref.name, metav1.GetOptions{}); a.err == nil {
			a.version = a.configMap.ResourceVersion
		}
		return a
	}
	if a.secret, a.err = n.client.Secrets(n.namespace).Get(ctx, ref.name, metav1.GetOptions{}); a.err == nil {
		a.version = a.secret.ResourceVersion
	}
	return a
}

// take keeps an answer, and reports whether it is another one than before.
func (n *named) take(ref reference, a answer) bool {
	n.asked++
	before := n.held[ref]
	next := &a.held
	if a.err != nil {
		if before != nil && !apierrors.IsNotFound(a.err) {
			before.asked = n.asked
			return false
		}
		next = &held{}
	}
	next.asked = n.asked
	n.held[ref] = next
	return before == nil || before.version != next.version
}

// objects are those that there are.
func (n *named) objects() (secrets []*corev1.Secret, configMaps []*corev1.ConfigMap) {
	for _, h := range n.held {
		if h.version == "" {
			continue
		}
		if h.secret != nil {
			secrets = append(secrets, h.secret)
		}
		if h.configMap != nil {
			configMaps = append(configMaps, h.configMap)
		}
	}
	return secrets, configMaps
}
