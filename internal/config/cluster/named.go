package cluster

import (
	"context"

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
}

type held struct {
	secret    *corev1.Secret    // nil for none, and for a ConfigMap
	configMap *corev1.ConfigMap // nil for none, and for a Secret
	version   string            // of the object; empty for none
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
	for ref := range wanted {
		if n.held[ref] == nil {
			n.get(ctx, ref)
		}
	}
}

// ask asks for all of them, and reports whether one has changed.
func (n *named) ask(ctx context.Context) (changed bool) {
	for ref := range n.held {
		changed = n.get(ctx, ref) || changed
	}
	return changed
}

// get asks for one, and reports whether it has changed.
func (n *named) get(ctx context.Context, ref reference) bool {
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	next := &held{}
	var err error
	if ref.configMap {
		if next.configMap, err = n.client.ConfigMaps(n.namespace).Get(ctx, ref.name, metav1.GetOptions{}); err == nil {
			next.version = next.configMap.ResourceVersion
		}
	} else {
		if next.secret, err = n.client.Secrets(n.namespace).Get(ctx, ref.name, metav1.GetOptions{}); err == nil {
			next.version = next.secret.ResourceVersion
		}
	}
	before := n.held[ref]
	if err != nil {
		if before != nil && !apierrors.IsNotFound(err) {
			return false
		}
		next = &held{}
	}
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
