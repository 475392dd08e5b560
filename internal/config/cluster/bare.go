package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// gatewayResource is the pool of Gateway API's inference extension.
var gatewayResource = schema.GroupVersionResource{Group: "inference.networking.k8s.io", Version: "v1", Resource: "inferencepools"}

const (
	// modelTimeout bounds a question for a model's name, and askAtMost how many engines are asked in a row.
	modelTimeout = 2 * time.Second
	askAtMost    = 3
)

// bare makes a Kvasir pool from a pool of the inference extension that has none. Such a pool has all defaults; selector and
// ports are the object's, and the name of the model is that of the first engine that answers.
type bare struct {
	pool     types.NamespacedName
	objects  cache.SharedIndexInformer
	admitter *crdadmission.Admitter
	modelOf  func(ctx context.Context, address string, wire endpoint.Wire) (string, error)

	model string // once known
	made  *v1alpha1.InferencePool
	ports []int32                    // of made's ranks
	of    *unstructured.Unstructured // that made was made of
}

// find makes the pool; nil while it cannot be made, with the reason.
func (b *bare) find(ctx context.Context, pods []*corev1.Pod) (*v1alpha1.InferencePool, error) {
	o, there, err := b.objects.GetStore().GetByKey(b.pool.String())
	if err != nil || !there {
		return nil, fmt.Errorf("there is no InferencePool %s of %s", b.pool, gatewayResource.Group)
	}
	raw := o.(*unstructured.Unstructured)
	if b.of == raw {
		return b.made, nil
	}
	for _, owner := range raw.GetOwnerReferences() {
		if owner.Kind == v1alpha1.KindInferencePool && owner.APIVersion == v1alpha1.GroupVersion.String() {
			return nil, fmt.Errorf("the gateways' pool %s is made for the InferencePool %s of %s: serve that one", b.pool, owner.Name,
				v1alpha1.GroupName)
		}
	}
	made, _, err := barePool(ctx, b.admitter, raw, "unknown")
	if err != nil {
		return b.made, err
	}
	if b.model == "" {
		if b.model, err = b.ask(ctx, made, pods); err != nil {
			return nil, err
		}
	}
	made, ports, err := barePool(ctx, b.admitter, raw, b.model)
	if err != nil {
		return b.made, err
	}
	b.made, b.ports, b.of = made, ports, raw
	return made, nil
}

// waiting reports whether the result can change without a change of objects.
func (b *bare) waiting() bool { return b != nil && b.model == "" }

// ask some engines that are ready for the name of their model.
func (b *bare) ask(ctx context.Context, pool *v1alpha1.InferencePool, pods []*corev1.Pod) (string, error) {
	err := errors.New("no ready pod has reported the name of its model")
	asked, wire := 0, endpoint.Wire{H2C: pool.Spec.Engine.Protocol == v1alpha1.ProtocolH2C}
	for _, pod := range pods {
		if config.PoolOf(pod, []*v1alpha1.InferencePool{pool}) == nil || pod.Status.PodIP == "" || config.Leaving(pod) || !config.PodReady(pod) {
			continue
		}
		timed, cancel := context.WithTimeout(ctx, modelTimeout)
		name, failure := b.modelOf(timed, net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(pool.Spec.Engine.Ports.HTTP))), wire)
		cancel()
		if failure == nil {
			return name, nil
		}
		err = fmt.Errorf("asking pod %s for the name of its model: %w", pod.Name, failure)
		if asked++; asked == askAtMost {
			break
		}
	}
	return "", err
}

// gatewaySpec is what is read of the extension's pool.
type gatewaySpec struct {
	Selector struct {
		MatchLabels map[string]v1alpha1.LabelValue `json:"matchLabels"`
	} `json:"selector"`
	TargetPorts []struct {
		Number int32 `json:"number"`
	} `json:"targetPorts"`
	AppProtocol string `json:"appProtocol"`
}

// barePool returns the Kvasir pool for a pool of the extension, admitted like one written by a user, and the ports of its
// ranks: one rank for each target port, in the object's order.
func barePool(ctx context.Context, admitter *crdadmission.Admitter, raw *unstructured.Unstructured,
	model string) (*v1alpha1.InferencePool, []int32, error) {
	fail := func(err error) (*v1alpha1.InferencePool, []int32, error) {
		return nil, nil, fmt.Errorf("the gateways' pool %s/%s: %w", raw.GetNamespace(), raw.GetName(), err)
	}
	text, err := json.Marshal(raw.Object["spec"])
	if err != nil {
		return fail(err)
	}
	var spec gatewaySpec
	if err := json.Unmarshal(text, &spec); err != nil {
		return fail(err)
	}
	ports := make([]int32, len(spec.TargetPorts))
	for i := range spec.TargetPorts {
		ports[i] = spec.TargetPorts[i].Number
	}
	if len(ports) == 0 {
		return fail(errors.New("it names no target port"))
	}
	// A Kvasir pool counts ports up from the first one. The smallest stays in range; ports has the ports of the ranks.
	engine := map[string]any{"ports": map[string]any{"http": slices.Min(ports)}}
	if len(ports) > 1 {
		engine["dataParallel"] = map[string]any{"ranks": len(ports), "addressing": v1alpha1.AddressByPort}
	}
	if spec.AppProtocol == "kubernetes.io/h2c" {
		engine["protocol"] = v1alpha1.ProtocolH2C
	}
	// The name can be longer than a Kvasir pool's; nothing is derived from it except that of the Secret.
	text, err = json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.KindInferencePool,
		"metadata": map[string]any{"name": "bare", "namespace": raw.GetNamespace()},
		"spec": map[string]any{
			"model": map[string]any{"name": model}, "selector": map[string]any{"matchLabels": spec.Selector.MatchLabels},
			"engine": engine, "gateway": map[string]any{"mode": v1alpha1.GatewayExisting},
		},
	})
	if err != nil {
		return fail(err)
	}
	admitted, err := admitter.Admit(ctx, text, nil)
	if err != nil {
		return fail(err)
	}
	pool, err := crdadmission.Pool(admitted)
	if err != nil {
		return fail(err)
	}
	pool.Name, pool.UID, pool.Generation, pool.CreationTimestamp = raw.GetName(), raw.GetUID(), raw.GetGeneration(), raw.GetCreationTimestamp()
	return pool, ports, nil
}
