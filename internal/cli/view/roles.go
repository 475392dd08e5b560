package view

import (
	"fmt"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// Role is the pods of one role: the size that is wanted, those that stay, those that serve, and those of the newest revision.
type Role struct {
	Name    string `json:"name"`
	Desired int32  `json:"desired"`
	Pods    int32  `json:"pods"`
	Ready   int32  `json:"ready"`
	Updated int32  `json:"updated"`
}

// rolesOf are the roles of a pool by its status.
func rolesOf(s *v1alpha1.InferencePoolStatus) (all []Role) {
	for i := range s.Roles {
		r := &s.Roles[i]
		all = append(all, Role{
			Name: string(r.Name), Desired: ptr.Deref(r.DesiredReplicas, 0), Pods: ptr.Deref(r.Replicas, 0), Ready: ptr.Deref(r.ReadyReplicas, 0),
			Updated: ptr.Deref(r.UpdatedReplicas, 0),
		})
	}
	return all
}

// roles is a line with the pods of each role that serve, and how many are wanted; none for a pool without roles.
func (p *Pool) roles() []string {
	var all []string
	for i := range p.Roles {
		r := &p.Roles[i]
		text := fmt.Sprintf("%s %d/%d", r.Name, r.Ready, r.Desired)
		if r.Updated < r.Pods {
			text += fmt.Sprintf(" (%d of %d of the newest revision)", r.Updated, r.Pods)
		}
		all = append(all, text)
	}
	if len(all) == 0 {
		return nil
	}
	return []string{"  roles: " + strings.Join(all, ", ")}
}
