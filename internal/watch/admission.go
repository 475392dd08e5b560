package watch

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// fairnessHeader names the tenant where the policy does not say which header does.
const fairnessHeader = "x-gateway-inference-fairness-id"

// admissionSpec translates what a policy says of a full pool. The tenants themselves are in Secrets.
func admissionSpec(a *v1alpha1.Admission) picker.AdmissionSpec {
	spec := picker.AdmissionSpec{
		Queue:      a.Mode == v1alpha1.AdmissionQueue,
		WaitBudget: milliseconds(value(a.WaitBudgetMilliseconds)),
		Limits: admission.Limits{
			Requests: int(value(a.Queue.MaxRequests)), Bytes: a.Queue.MaxBytes.Value(),
			TTL: seconds(a.Queue.TimeToLiveSeconds), Hold: seconds(value(a.HoldSeconds)),
			NewestFirst: a.Shed == v1alpha1.ShedNewestFirst,
		},
		Priorities: map[string]picker.Priority{},
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
	spec := &picker.TenantsSpec{Reject: t.Unknown != v1alpha1.UnknownDefaultClass, Classes: map[string]*tenant.Class{}}
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
		}
		if p, ok := priorities[c.MaxPriority]; ok {
			class.Capped, class.MaxLevel = true, p.Level
		}
		spec.Classes[c.Name] = class
	}
	spec.Default = spec.Classes[t.DefaultClass]
	return spec
}

// readTenants reads the tenants of a policy from the Secrets that it names. Entries that cannot be read are problems
// of the policy, and leave the others alone.
func (n *turn) readTenants(p *v1alpha1.RoutingPolicy, spec *picker.TenantsSpec) {
	path := field.NewPath("spec", "admission", "tenants", "secretRefs")
	bad := func(i int, detail string) {
		n.problem(v1alpha1.KindRoutingPolicy, p, field.Invalid(path.Index(i), p.Spec.Admission.Tenants.SecretRefs[i].Name, detail), false)
	}
	var entries []tenant.Entry
	for i, ref := range p.Spec.Admission.Tenants.SecretRefs {
		secret := n.secrets[types.NamespacedName{Namespace: p.Namespace, Name: ref.Name}]
		if secret == nil {
			continue // told as a missing Secret
		}
		for _, name := range sortedKeys(secret.Data) {
			e, err := tenant.Parse(name, secret.Data[name])
			if err != nil {
				bad(i, "entry "+name+": "+err.Error())
				continue
			}
			if e.Class != "" && spec.Classes[e.Class] == nil {
				bad(i, "entry "+name+": the policy has no class "+e.Class)
				continue
			}
			entries = append(entries, e)
		}
	}
	directory, conflicts := tenant.NewDirectory(entries)
	for _, conflict := range conflicts {
		bad(0, conflict)
	}
	spec.Known = directory
}

// value is what a pointer points to, which the defaults have filled in.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
