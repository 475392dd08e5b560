package config

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/callout"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/respcache"
)

// responseCacheSpec translates which answers are kept. Keys are in Secrets; responseCacheSecrets reads them.
func responseCacheSpec(c *v1alpha1.ResponseCache) picker.ResponseCacheSpec {
	if c.Type == "" {
		return picker.ResponseCacheSpec{}
	}
	spec := picker.ResponseCacheSpec{
		MaxBytes: c.MaxBytes.Value(), Life: seconds(c.TimeToLiveSeconds), OnRequest: c.Requests == v1alpha1.CachedOnRequest,
	}
	if c.Type == v1alpha1.ResponseCacheSemantic {
		e := &c.Semantic.Embeddings
		spec.Similar = picker.SimilarSpec{
			Embeddings: respcache.Embeddings{URL: e.URL, Model: e.Model, Timeout: milliseconds(e.TimeoutMilliseconds)},
			Least:      fraction(c.Semantic.MinSimilarityPercent),
		}
	}
	return spec
}

// responseCacheErrors are the errors of a response cache that the schema does not find.
func responseCacheErrors(c *v1alpha1.ResponseCache) (errs field.ErrorList) {
	path := field.NewPath("spec", "responseCache")
	if url := c.Semantic.Embeddings.URL; url != "" {
		if detail := callout.Fault(url); detail != "" {
			errs = append(errs, field.Invalid(path.Child("semantic", "embeddings", "url"), url, detail))
		}
	}
	return errs
}

// responseCacheSecrets reads the keys of a response cache into its spec. secret returns a Secret, nil where there is none: those are missing,
// by name. Of others, invalid says what is wrong. Without its key a service is not used.
func responseCacheSecrets(c *v1alpha1.ResponseCache, spec *picker.ResponseCacheSpec, secret func(name string) *corev1.Secret,
) (missing []string, invalid field.ErrorList) {
	path := field.NewPath("spec", "responseCache")
	if ref := c.Semantic.Embeddings.KeySecretRef; ref.Name != "" {
		key, fault := entryOf(ref, secret, path.Child("semantic", "embeddings", "keySecretRef"))
		switch {
		case fault == nil:
			spec.Similar.Embeddings.Key = key
		case fault.Type == field.ErrorTypeNotFound:
			missing = append(missing, ref.Name)
			spec.Similar.Missing = fault.Detail
		default:
			invalid = append(invalid, fault)
			spec.Similar.Missing = fault.Detail
		}
	}
	return missing, invalid
}

// entryOf is an entry of a Secret, without white space around it. The error never has what is in the Secret.
func entryOf(ref v1alpha1.SecretKey, secret func(name string) *corev1.Secret, path *field.Path) (string, *field.Error) {
	s := secret(ref.Name)
	if s == nil {
		return "", &field.Error{Type: field.ErrorTypeNotFound, Field: path.String(), BadValue: ref.Name, Detail: "there is no Secret " + ref.Name}
	}
	value := strings.TrimSpace(string(s.Data[ref.Key]))
	if value == "" || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", field.Invalid(path, ref.Name, "entry "+ref.Key+" is missing, empty, or has control characters")
	}
	return value, nil
}

// PolicySecrets reads all that a policy needs of Secrets. secret returns one of them, nil where there is none: those are missing, by name.
// The errors never have what is in a Secret.
func PolicySecrets(p *v1alpha1.RoutingPolicy, secret func(name string) *corev1.Secret) (missing []string, invalid field.ErrorList) {
	_, missing, invalid = PolicyTenants(p, secret)
	more, faults := responseCacheSecrets(&p.Spec.ResponseCache, &picker.ResponseCacheSpec{}, secret)
	return append(missing, more...), append(invalid, faults...)
}
