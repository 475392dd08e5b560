package config

import (
	"slices"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// fairnessHeader names the tenant where the policy does not name another header.
const fairnessHeader = "x-gateway-inference-fairness-id"

// gatewayLag is longer than it takes until Istio and Envoy know a pod that has become ready: changes are collected for 100 ms
// and more before they are sent.
const gatewayLag = 2 * time.Second

// admissionSpec translates a policy's rules for a full pool. The tenants themselves are in Secrets.
func admissionSpec(a *v1alpha1.Admission) picker.AdmissionSpec {
	spec := picker.AdmissionSpec{
		Queue:      a.Mode == v1alpha1.AdmissionQueue,
		WaitBudget: milliseconds(value(a.WaitBudgetMilliseconds)),
		Slowdown:   float64(a.MaxSlowdownPercent) / 100,
		Limits: admission.Limits{
			Requests: int(value(a.Queue.MaxRequests)), Bytes: a.Queue.MaxBytes.Value(),
			TTL: seconds(a.Queue.TimeToLiveSeconds), Hold: seconds(value(a.HoldSeconds)),
			NewestFirst: a.Shed == v1alpha1.ShedNewestFirst,
		},
		GatewayLag:     gatewayLag,
		Priorities:     map[string]picker.Priority{},
		AllowedOrigins: a.AllowedOrigins,
		SetsPriority:   slices.Contains(a.EngineFields, v1alpha1.EngineFieldPriority),
		SetsTransfer:   slices.Contains(a.EngineFields, v1alpha1.EngineFieldKVTransfer),
	}
	for _, p := range a.Priorities {
		spec.Priorities[p.Name] = picker.Priority{Level: int(value(p.Level)), TTL: seconds(p.TimeToLiveSeconds)}
	}
	spec.Default = spec.Priorities[a.DefaultPriority]
	if t := &a.Tenants; t.Identification != "" {
		spec.Tenants = tenantsSpec(t, spec.Priorities)
	}
	return spec
}

func tenantsSpec(t *v1alpha1.Tenants, priorities map[string]picker.Priority) *picker.TenantsSpec {
	spec := &picker.TenantsSpec{Reject: t.Unknown != v1alpha1.UnknownDefaultClass, Classes: map[string]*tenant.Class{},
		Salts: t.CacheSalt == v1alpha1.CacheSaltPerTenant}
	if j := &t.JWT; t.Identification == v1alpha1.IdentifyByJWT {
		spec.Issuer = &tenant.Issuer{
			URL: j.Issuer, Audiences: j.Audiences, KeysURL: j.KeysURL, Claim: j.TenantClaim, Authorities: j.CACertificates,
		}
	}
	spec.Certificate = t.Identification == v1alpha1.IdentifyByCertificate
	if t.Identification == v1alpha1.IdentifyByHeader {
		if spec.Header = strings.ToLower(t.HeaderName); spec.Header == "" {
			spec.Header = fairnessHeader
		}
	}
	for i := range t.Classes {
		c := &t.Classes[i]
		class := &tenant.Class{
			Name: c.Name, Weight: int(c.Weight), RequestsPerMinute: int(c.RequestsPerMinute), TokensPerMinute: c.TokensPerMinute,
			MaxConcurrent: int(c.MaxConcurrent), Models: c.Models,
			SetsPriority: slices.Contains(c.EngineFields, v1alpha1.EngineFieldPriority),
			SetsTransfer: slices.Contains(c.EngineFields, v1alpha1.EngineFieldKVTransfer),
		}
		if p, ok := priorities[c.MaxPriority]; ok {
			class.Capped, class.MaxLevel = true, p.Level
		}
		spec.Classes[c.Name] = class
	}
	spec.Default = spec.Classes[t.DefaultClass]
	return spec
}

// value is what a pointer points to, which the defaults have filled in.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
