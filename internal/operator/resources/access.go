package resources

import (
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

func (p *pickers) serviceAccount() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		TypeMeta:                     typeMeta(corev1.SchemeGroupVersion.WithKind("ServiceAccount")),
		ObjectMeta:                   p.meta(p.names.Pickers),
		AutomountServiceAccountToken: ptr.To(false),
	}
}

// role of the pickers: namespaced, and nothing but reading.
func (p *pickers) role() *rbacv1.Role {
	read := []string{"get", "list", "watch"}
	r := &rbacv1.Role{
		TypeMeta:   typeMeta(rbacv1.SchemeGroupVersion.WithKind("Role")),
		ObjectMeta: p.meta(p.names.Pickers),
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{v1alpha1.GroupName}, Resources: p.kinds, Verbs: read},
			{APIGroups: []string{GIEKind.Group}, Resources: []string{"inferencepools"}, Verbs: read},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: read},
			{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"localsubjectaccessreviews"}, Verbs: []string{"create"}},
		},
	}
	// A rule without names would grant all of them.
	if len(p.secrets) > 0 {
		r.Rules = append(r.Rules, rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: p.secrets, Verbs: []string{"get"},
		})
	}
	if len(p.configMaps) > 0 {
		r.Rules = append(r.Rules, rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: p.configMaps, Verbs: []string{"get"},
		})
	}
	return r
}

func (p *pickers) roleBinding() *rbacv1.RoleBinding {
	name := p.names.Pickers
	return &rbacv1.RoleBinding{
		TypeMeta:   typeMeta(rbacv1.SchemeGroupVersion.WithKind("RoleBinding")),
		ObjectMeta: p.meta(name),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: p.namespace}},
	}
}
