package config

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

func cacheOf() *v1alpha1.ResponseCache {
	ref := func(key string) v1alpha1.SecretKey { return v1alpha1.SecretKey{Name: "s", Key: key} }
	return &v1alpha1.ResponseCache{
		Type: v1alpha1.ResponseCacheSemantic,
		Semantic: v1alpha1.SemanticMatch{MinSimilarityPercent: 95, Embeddings: v1alpha1.EmbeddingService{
			URL: "http://e:8000/v1/embeddings", Model: "m", KeySecretRef: ref("key"), TimeoutMilliseconds: 200,
		}},
		Store: v1alpha1.ResponseStore{Redis: v1alpha1.RedisStore{URL: "rediss://r:6379", PasswordSecretRef: ref("password"), KeyPrefix: "p", TimeoutMilliseconds: 50}},
	}
}

// TestKeysOfAResponseCache: they are read from their Secrets; without one, what needs it is not used, and no error has a key in it.
func TestKeysOfAResponseCache(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		data             map[string][]byte // nil for no Secret
		key, password    string
		missing, invalid int
	}{
		"both":               {map[string][]byte{"key": []byte("k1\n"), "password": []byte("p1")}, "k1", "p1", 0, 0},
		"no Secret":          {nil, "", "", 2, 0},
		"no entry":           {map[string][]byte{"key": []byte("k1")}, "k1", "", 0, 1},
		"a key of two lines": {map[string][]byte{"key": []byte("k1\nk2"), "password": []byte("p1")}, "", "p1", 0, 1},
	} {
		c := cacheOf()
		spec := responseCacheSpec(c)
		missing, invalid := responseCacheSecrets(c, &spec, func(string) *corev1.Secret {
			if tc.data == nil {
				return nil
			}
			return &corev1.Secret{Data: tc.data}
		})
		if spec.Similar.Embeddings.Key != tc.key || spec.Redis.Password != tc.password || len(missing) != tc.missing || len(invalid) != tc.invalid ||
			(spec.Similar.Missing != "") != (tc.key == "") || (spec.Redis.Missing != "") != (tc.password == "") {
			t.Errorf("%s: %+v %v %v", name, spec, missing, invalid)
		}
		if text := invalid.ToAggregate(); text != nil && (strings.Contains(text.Error(), "k1") || strings.Contains(text.Error(), "p1")) {
			t.Errorf("%s: the error has a key: %v", name, text)
		}
	}
}

// TestAddressesThatAPolicyCannotName: those of metadata services.
func TestAddressesThatAPolicyCannotName(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*v1alpha1.ResponseCache)
		errors int
	}{
		"none of them":                 {func(*v1alpha1.ResponseCache) {}, 0},
		"embeddings at metadata":       {func(c *v1alpha1.ResponseCache) { c.Semantic.Embeddings.URL = "http://169.254.169.254/v1/embeddings" }, 1},
		"Redis at metadata":            {func(c *v1alpha1.ResponseCache) { c.Store.Redis.URL = "redis://169.254.169.254:6379" }, 1},
		"Redis at a port out of range": {func(c *v1alpha1.ResponseCache) { c.Store.Redis.URL = "redis://r:99999" }, 1},
	} {
		c := cacheOf()
		tc.change(c)
		if errs := responseCacheErrors(c); len(errs) != tc.errors {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

// TestTheOriginOfAnswers: it is equal for equal objects, and another one for another model, engine, policy or pool. The size of a pool is
// none of it.
func TestTheOriginOfAnswers(t *testing.T) {
	t.Parallel()
	pool := v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}}
	pool.Spec.Model.Name = "m"
	policy := v1alpha1.RoutingPolicy{Spec: v1alpha1.RoutingPolicySpec{ResponseCache: *cacheOf()}}
	want := originOf(&pool, &policy)
	for name, tc := range map[string]struct {
		change func(*v1alpha1.InferencePool, *v1alpha1.RoutingPolicy)
		same   bool
	}{
		"nothing":        {func(*v1alpha1.InferencePool, *v1alpha1.RoutingPolicy) {}, true},
		"a size":         {func(p *v1alpha1.InferencePool, _ *v1alpha1.RoutingPolicy) { n := int32(7); p.Spec.Replicas = &n }, true},
		"another model":  {func(p *v1alpha1.InferencePool, _ *v1alpha1.RoutingPolicy) { p.Spec.Model.Name = "n" }, false},
		"another engine": {func(p *v1alpha1.InferencePool, _ *v1alpha1.RoutingPolicy) { p.Spec.Engine.Type = "SGLang" }, false},
		"another pool":   {func(p *v1alpha1.InferencePool, _ *v1alpha1.RoutingPolicy) { p.Name = "q" }, false},
		"another time":   {func(_ *v1alpha1.InferencePool, p *v1alpha1.RoutingPolicy) { p.Spec.ResponseCache.TimeToLiveSeconds++ }, false},
		"another service": {func(_ *v1alpha1.InferencePool, p *v1alpha1.RoutingPolicy) {
			p.Spec.ResponseCache.Semantic.Embeddings.Model = "n"
		}, false},
	} {
		pool, policy := pool.DeepCopy(), policy.DeepCopy()
		tc.change(pool, policy)
		if got := originOf(pool, policy); (got == want) != tc.same {
			t.Errorf("%s: the same origin is %v", name, got == want)
		}
	}
}
