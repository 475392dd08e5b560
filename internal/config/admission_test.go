package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

const tenantPolicy = `admission: {
  waitBudgetMilliseconds: 250, maxSlowdownPercent: 250, holdSeconds: 0, shed: NewestFirst,
  queue: {maxRequests: 7, maxBytes: 1Mi, timeToLiveSeconds: 9},
  priorities: [{name: interactive, level: 100}, {name: batch, level: -10, timeToLiveSeconds: 600}],
  defaultPriority: batch, engineFields: [Priority], allowedOrigins: ["https://a.example"],
  tenants: {identification: APIKey, secretRefs: [{name: keys}], unknown: DefaultClass, cacheSalt: PerTenant, classes: [
    {name: default, requestsPerMinute: 60, maxConcurrent: 4, maxPriority: batch},
    {name: gold, weight: 8, tokensPerMinute: 5000000, models: [Qwen/*, sql-lora], engineFields: [KVTransfer]}]}}`

func keysSecret(entries ...string) string {
	return "{apiVersion: v1, kind: Secret, metadata: {name: keys, namespace: default}, stringData: {" + strings.Join(entries, ", ") + "}}"
}

func keyHash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

func TestAdmissionIsTranslated(t *testing.T) {
	policy := strings.Replace(smallPolicy, "strategy: {type: LeastLoad}", tenantPolicy, 1)
	s, problems := load(t, open(t, "pool.yaml", smallPool, "policy.yaml", policy,
		"keys.yaml", keysSecret(`acme: '{"class":"gold","sha256":["`+keyHash("k")+`"]}'`)))
	wantNoProblem(t, problems)
	got := only(t, s).Policy.Admission
	basic := &tenant.Class{Name: "default", Weight: 1, RequestsPerMinute: 60, MaxConcurrent: 4, Capped: true, MaxLevel: -10}
	want := picker.AdmissionSpec{
		Queue: true, WaitBudget: 250 * time.Millisecond, Slowdown: 2.5, GatewayLag: gatewayLag,
		Limits:     admission.Limits{Requests: 7, Bytes: 1 << 20, TTL: 9 * time.Second, NewestFirst: true},
		Priorities: map[string]picker.Priority{"interactive": {Level: 100}, "batch": {Level: -10, TTL: 10 * time.Minute}},
		Default:    picker.Priority{Level: -10, TTL: 10 * time.Minute}, SetsPriority: true, AllowedOrigins: []string{"https://a.example"},
		Tenants: &picker.TenantsSpec{
			Default: basic, Salts: true,
			Classes: map[string]*tenant.Class{
				"default": basic,
				"gold":    {Name: "gold", Weight: 8, TokensPerMinute: 5_000_000, Models: []string{"Qwen/*", "sql-lora"}, SetsTransfer: true},
			},
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(picker.TenantsSpec{}, "Known")); diff != "" {
		t.Errorf("admission (-want +got):\n%s", diff)
	}
	if e, ok := got.Tenants.Known.ByKey("k"); !ok || e.Name != "acme" || e.Class != "gold" {
		t.Errorf("the key is %v's", e)
	}
}

func TestTenantsFollowTheirSecret(t *testing.T) {
	policy := strings.Replace(smallPolicy, "strategy: {type: LeastLoad}", tenantPolicy, 1)
	d := open(t, "pool.yaml", smallPool, "policy.yaml", policy, "keys.yaml", keysSecret(`acme: '{"sha256":["`+keyHash("old")+`"]}'`))
	load(t, d)
	write(t, d.file("keys.yaml"), keysSecret(`acme: '{"sha256":["`+keyHash("new")+`"]}'`))
	s, problems := load(t, d)
	wantNoProblem(t, problems)
	known := only(t, s).Policy.Admission.Tenants.Known
	if _, ok := known.ByKey("old"); ok {
		t.Error("the old key is still known")
	}
	if _, ok := known.ByKey("new"); !ok {
		t.Error("the new key is not known")
	}
}

func TestEntriesOfTenantsThatCannotBeReadAreToldAndLeaveTheOthers(t *testing.T) {
	policy := strings.Replace(smallPolicy, "strategy: {type: LeastLoad}", tenantPolicy, 1)
	s, problems := load(t, open(t, "pool.yaml", smallPool, "policy.yaml", policy, "keys.yaml", keysSecret(
		`good: '{"sha256":["`+keyHash("k")+`"]}'`, `plain: 'a-secret-key'`, `classless: '{"class":"silver"}'`)))
	wantProblem(t, problems, "policy.yaml", "RoutingPolicy default/p", "spec.admission.tenants.secretRefs[0]", "entry plain")
	wantProblem(t, problems, "policy.yaml", "RoutingPolicy default/p", "spec.admission.tenants.secretRefs[0]", "no class silver")
	for _, p := range problems {
		if strings.Contains(p, "a-secret-key") {
			t.Errorf("a problem repeats what is in the Secret: %s", p)
		}
	}
	known := only(t, s).Policy.Admission.Tenants.Known
	if _, ok := known.ByKey("k"); !ok || known.Len() != 1 {
		t.Errorf("%d tenants are known", known.Len())
	}
}

func TestWithoutItsSecretAPolicyKnowsNobody(t *testing.T) {
	policy := strings.Replace(smallPolicy, "strategy: {type: LeastLoad}", tenantPolicy, 1)
	s, _ := load(t, open(t, "pool.yaml", smallPool, "policy.yaml", policy))
	if tenants := only(t, s).Policy.Admission.Tenants; tenants == nil || tenants.Known.Len() != 0 {
		t.Errorf("%+v", tenants)
	}
}

// TestAuthoritiesOfAnIssuerAreCertificates: what cannot be read is refused with a message that has nothing of a private key.
func TestAuthoritiesOfAnIssuerAreCertificates(t *testing.T) {
	t.Parallel()
	const policy = "targetRefs: [{name: llama}], admission: {tenants: {identification: JWT, classes: [{name: default}], jwt: {issuer: 'https://idp.example', " +
		`audiences: [a], caCertificates: "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"}}}`
	d := open(t, "pool.yaml", smallPool, "policy.yaml", "apiVersion: kvasir.dev/v1alpha1\nkind: RoutingPolicy\nmetadata: {name: p}\nspec: {"+policy+"}\n")
	_, problems := load(t, d)
	wantProblem(t, problems, "spec.admission.tenants.jwt.caCertificates", "reading a certificate")
	if text := fmt.Sprint(problems); strings.Contains(text, "c2VjcmV0") || strings.Contains(text, "MIIB") {
		t.Errorf("the problem shows what the field has: %s", text)
	}
}
