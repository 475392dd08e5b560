package config

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/callout"
	"github.com/kvasir-dev/kvasir/internal/hosts"
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
	if r := &c.Store.Redis; r.URL != "" {
		scheme, address, _ := strings.Cut(r.URL, "://")
		spec.Redis = respcache.Redis{
			Address: address, Username: r.Username, TLS: scheme == "rediss", Prefix: r.KeyPrefix, Timeout: milliseconds(r.TimeoutMilliseconds),
		}
	}
	return spec
}

// originOf names what answers are made by: the pool's model and engine, and its policy, as they are configured. Answers in a store are
// shared only by pickers with the same.
func originOf(pool *v1alpha1.InferencePool, policy *v1alpha1.RoutingPolicy) (origin respcache.Key) {
	h := sha256.New()
	encoder := json.NewEncoder(h)
	for _, part := range []any{pool.Namespace, pool.Name, &pool.Spec.Model, &pool.Spec.Engine, &policy.Spec} {
		if err := encoder.Encode(part); err != nil {
			panic(err) // the types have come from JSON
		}
	}
	h.Sum(origin[:0])
	return origin
}

// responseCacheErrors are the errors of a response cache that the schema does not find.
func responseCacheErrors(c *v1alpha1.ResponseCache) (errs field.ErrorList) {
	path := field.NewPath("spec", "responseCache")
	if url := c.Semantic.Embeddings.URL; url != "" {
		if detail := callout.Fault(url); detail != "" {
			errs = append(errs, field.Invalid(path.Child("semantic", "embeddings", "url"), url, detail))
		}
	}
	if url := c.Store.Redis.URL; url != "" {
		_, address, _ := strings.Cut(url, "://")
		host, port, err := net.SplitHostPort(address)
		number, fault := strconv.Atoi(port)
		ip, _ := netip.ParseAddr(host)
		switch {
		case err != nil, fault != nil, number < 1, number > 65535:
			errs = append(errs, field.Invalid(path.Child("store", "redis", "url"), url, "want redis://HOST:PORT, or rediss"))
		case ip.IsValid() && hosts.Forbidden(ip):
			errs = append(errs, field.Invalid(path.Child("store", "redis", "url"), url, "a link-local address, or one of a metadata service, is not connected to"))
		}
	}
	return errs
}

// responseCacheSecrets reads the keys of a response cache into its spec. secret returns a Secret, nil where there is none: those are
// missing, by name. Of others, invalid says what is wrong. Without what it needs, a service is not used.
func responseCacheSecrets(c *v1alpha1.ResponseCache, spec *picker.ResponseCacheSpec, secret func(name string) *corev1.Secret,
) (missing []string, invalid field.ErrorList) {
	path := field.NewPath("spec", "responseCache")
	read := func(ref v1alpha1.SecretKey, into, why *string, usable func(string) bool, at *field.Path) {
		if ref.Name == "" {
			return
		}
		value, fault := entryOf(ref, secret, usable, at)
		switch {
		case fault == nil:
			*into = value
			return
		case fault.Type == field.ErrorTypeNotFound:
			missing = append(missing, ref.Name)
		default:
			invalid = append(invalid, fault)
		}
		*why = fault.Detail
	}
	redis, service := path.Child("store", "redis"), path.Child("semantic", "embeddings", "keySecretRef")
	read(c.Semantic.Embeddings.KeySecretRef, &spec.Similar.Embeddings.Key, &spec.Similar.Missing, isLine, service)
	read(c.Store.Redis.PasswordSecretRef, &spec.Redis.Password, &spec.Redis.Missing, isLine, redis.Child("passwordSecretRef"))
	read(c.Store.Redis.CASecretRef, &spec.Redis.CA, &spec.Redis.Missing, hasCertificate, redis.Child("caSecretRef"))
	return missing, invalid
}

// isLine reports whether a value has no control characters.
func isLine(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f })
}

func hasCertificate(value string) bool { return x509.NewCertPool().AppendCertsFromPEM([]byte(value)) }

// entryOf is an entry of a Secret, without white space around it. The error never has what is in the Secret.
func entryOf(ref v1alpha1.SecretKey, secret func(name string) *corev1.Secret, usable func(string) bool, path *field.Path,
) (string, *field.Error) {
	s := secret(ref.Name)
	if s == nil {
		return "", &field.Error{Type: field.ErrorTypeNotFound, Field: path.String(), BadValue: ref.Name, Detail: "there is no Secret " + ref.Name}
	}
	value := strings.TrimSpace(string(s.Data[ref.Key]))
	if value == "" || !usable(value) {
		return "", field.Invalid(path, ref.Name, "entry "+ref.Key+" is missing, empty, or has what cannot be used")
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
