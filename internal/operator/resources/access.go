package resources

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

func (b *builder) serviceAccount() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		TypeMeta:                     typeMeta(corev1.SchemeGroupVersion.WithKind("ServiceAccount")),
		ObjectMeta:                   b.meta(PickerName(b.pool.Name)),
		AutomountServiceAccountToken: ptr.To(false),
	}
}

// role of the pickers: namespaced, and nothing but reading.
func (b *builder) role() *rbacv1.Role {
	read := []string{"get", "list", "watch"}
	r := &rbacv1.Role{
		TypeMeta:   typeMeta(rbacv1.SchemeGroupVersion.WithKind("Role")),
		ObjectMeta: b.meta(PickerName(b.pool.Name)),
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"inferencepools", "routingpolicies"}, Verbs: read},
			{APIGroups: []string{GIEKind.Group}, Resources: []string{"inferencepools"}, Verbs: read},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: read},
			{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"localsubjectaccessreviews"}, Verbs: []string{"create"}},
			{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: b.secrets(), Verbs: []string{"get"}},
		},
	}
	if maps := b.configMaps(); len(maps) > 0 {
		r.Rules = append(r.Rules, rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: maps, Verbs: []string{"get"},
		})
	}
	return r
}

// secrets that the pickers read by themselves: the key root, those of the engine, the token for the
// model hub, the tenants.
func (b *builder) secrets() []string {
	names := append([]string{KeySecretName(b.pool)}, b.pool.Spec.Engine.SecretNames()...)
	names = append(names, b.pool.Spec.Model.Tokenizer.SecretNames()...)
	names = append(names, b.TenantSecrets...)
	slices.Sort(names)
	return slices.Compact(names)
}

func (b *builder) configMaps() []string {
	var names []string
	if v := b.pool.Spec.Model.Tokenizer.Volume; v != nil && v.ConfigMap.Name != "" {
		names = append(names, v.ConfigMap.Name)
	}
	if p := b.pool.Spec.Placement; p != nil && p.PricesFrom.Name != "" {
		names = append(names, p.PricesFrom.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (b *builder) roleBinding() *rbacv1.RoleBinding {
	name := PickerName(b.pool.Name)
	return &rbacv1.RoleBinding{
		TypeMeta:   typeMeta(rbacv1.SchemeGroupVersion.WithKind("RoleBinding")),
		ObjectMeta: b.meta(name),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: b.pool.Namespace}},
	}
}
