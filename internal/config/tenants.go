package config

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// PolicyTenants reads the tenants of a policy from the Secrets that it names. secret returns one of them, nil where there is
// none: those are missing, by name. Entries that cannot be read, or that two tenants share, are invalid, and leave the
// others alone; the errors never have what is in a Secret.
func PolicyTenants(p *v1alpha1.RoutingPolicy,
	secret func(name string) *corev1.Secret) (known *tenant.Directory, missing []string, invalid field.ErrorList) {
	t := &p.Spec.Admission.Tenants
	path := field.NewPath("spec", "admission", "tenants", "secretRefs")
	bad := func(i int, detail string) {
		invalid = append(invalid, field.Invalid(path.Index(i), t.SecretRefs[i].Name, detail))
	}
	classes := map[string]bool{}
	for i := range t.Classes {
		classes[t.Classes[i].Name] = true
	}
	var entries []tenant.Entry
	for i, ref := range t.SecretRefs {
		s := secret(ref.Name)
		if s == nil {
			missing = append(missing, ref.Name)
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(s.Data)) {
			e, err := tenant.Parse(name, s.Data[name])
			switch {
			case err != nil:
				bad(i, "entry "+name+": "+err.Error())
			case e.Class != "" && !classes[e.Class]:
				bad(i, "entry "+name+": the policy has no class "+e.Class)
			default:
				entries = append(entries, e)
			}
		}
	}
	known, conflicts := tenant.NewDirectory(entries)
	for _, conflict := range conflicts {
		bad(0, conflict)
	}
	return known, missing, invalid
}
