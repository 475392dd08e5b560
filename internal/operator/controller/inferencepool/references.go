package inferencepool

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// What a pool names is looked for again after foundEvery, and after missingEvery while something is not there: it is
// asked for one by one, because the operator is not allowed to watch Secrets.
const (
	foundEvery   = 10 * time.Minute
	missingEvery = 10 * time.Second
)

// references is the result of the last check of the objects that a pool names.
type references struct {
	generation int64
	at         time.Time
	missing    string // the missing object and the field that names it; empty when none is missing
}

// reference is an object that a field of the pool names.
type reference struct {
	kind, name, field string
	keys              []string // entries that it must have
}

// referencesOf returns the objects without which a pool's pickers do not become ready, or do not serve clients, or the pool does not match
// its spec.
func referencesOf(pool *v1alpha1.InferencePool) []reference {
	spec, all := &pool.Spec, []reference{}
	named := func(kind, name, field string, keys ...string) {
		if name != "" {
			all = append(all, reference{kind, name, field, keys})
		}
	}
	named("Secret", spec.KeySpace.SecretRef.Name, "keySpace.secretRef")
	for _, name := range spec.Engine.SecretNames() {
		named("Secret", name, "engine")
	}
	for _, name := range spec.Model.Tokenizer.SecretNames() {
		named("Secret", name, "model.tokenizer.hub.tokenSecretRef")
	}
	switch {
	case spec.Picker.Mode == v1alpha1.PickerOfFleet:
	case spec.Picker.Mode != v1alpha1.PickerExternal:
		named("Secret", spec.Picker.TLS.SecretRef.Name, "picker.tls.secretRef")
		proxy := &spec.Picker.ProxyTLS
		named("Secret", proxy.SecretRef.Name, "picker.proxyTLS.secretRef", corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
		named("Secret", proxy.ClientCASecretRef.Name, "picker.proxyTLS.clientCASecretRef", proxy.ClientCASecretRef.Key)
	case spec.Template != nil: // injected reporters mount it, and drains need the pickers' acknowledgement
		named("ConfigMap", resources.CAName(pool.Name), "picker.mode External (the CA of the pickers' certificates, ca.crt)")
	}
	if v := spec.Model.Tokenizer.Volume; v != nil {
		named("ConfigMap", v.ConfigMap.Name, "model.tokenizer.volume.configMap")
	}
	if p := spec.Placement; p != nil {
		named("ConfigMap", p.PricesFrom.Name, "placement.pricesFrom")
	}
	return all
}

// referenceCheck is the part that looks for what a pool names.
type referenceCheck struct{ *scope }

// findReferences returns the first missing object that the pool names. If the API server does not answer for an object, its
// last known state is used.
func (r *referenceCheck) findReferences(ctx context.Context) {
	all, known := referencesOf(r.pool), &r.memory.references
	every := foundEvery
	if known.missing != "" {
		every = missingEvery
	}
	if len(all) > 0 && (known.generation != r.pool.Generation || !r.now.Before(known.at.Add(every))) {
		missing, err := r.missing(ctx, all)
		if err != nil {
			missing = known.missing
		}
		*known = references{r.pool.Generation, r.now, missing}
		if every = foundEvery; missing != "" || err != nil {
			every = missingEvery
		}
	}
	if len(all) > 0 {
		r.problems.reference = known.missing
		r.wakeAt(known.at.Add(every))
	}
}

// missing names the first of some objects that is not there.
func (r *referenceCheck) missing(ctx context.Context, all []reference) (string, error) {
	for _, ref := range all {
		secret := &corev1.Secret{}
		var o client.Object = secret
		if ref.kind == "ConfigMap" {
			o = &corev1.ConfigMap{}
		}
		err := r.Direct.Get(ctx, types.NamespacedName{Namespace: r.key.Namespace, Name: ref.name}, o)
		if apierrors.IsNotFound(err) {
			return ref.kind + " " + ref.name + " of " + ref.field + " is not there", nil
		}
		if err != nil {
			return "", err
		}
		for _, key := range ref.keys {
			if len(secret.Data[key]) == 0 {
				return ref.kind + " " + ref.name + " of " + ref.field + " has no entry " + key, nil
			}
		}
	}
	return "", nil
}
