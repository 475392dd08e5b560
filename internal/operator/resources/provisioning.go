package resources

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// ProvisioningKind asks a cluster's autoscaler for nodes.
var ProvisioningKind = schema.GroupVersionKind{Group: "autoscaling.x-k8s.io", Version: "v1", Kind: "ProvisioningRequest"}

// Annotations by which a pod takes the nodes that a request has brought.
const (
	AnnotationConsumes          = "autoscaling.x-k8s.io/consume-provisioning-request"
	AnnotationProvisioningClass = "autoscaling.x-k8s.io/provisioning-class-name"
)

// Provisioning requests a node for one pod: wanted is the pod to be made, which the function takes over; made is the
// existing one. Each pod has a request of its own, with the pod's name, because requests cannot be changed and a need can
// shrink by one. Both objects belong to the pod and are deleted with it, which cancels the request.
func Provisioning(pool *v1alpha1.InferencePool, wanted, made *corev1.Pod) (*corev1.PodTemplate, *unstructured.Unstructured) {
	b := builder{pool: pool}
	owner := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: made.Name, UID: made.UID, Controller: ptr.To(true)}}
	template := &corev1.PodTemplate{
		TypeMeta:   typeMeta(corev1.SchemeGroupVersion.WithKind("PodTemplate")),
		ObjectMeta: b.meta(made.Name),
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: wanted.Labels, Annotations: wanted.Annotations},
			Spec:       wanted.Spec,
		},
	}
	if template.Template.Spec.ServiceAccountName == "" { // what admission fills in for pods, and a template with a token needs
		template.Template.Spec.ServiceAccountName = made.Spec.ServiceAccountName
	}
	template.OwnerReferences = owner
	request := loose(ProvisioningKind, b.meta(made.Name), map[string]any{
		"provisioningClassName": made.Annotations[AnnotationProvisioningClass],
		"podSets":               []any{map[string]any{"podTemplateRef": map[string]any{"name": made.Name}, "count": int64(1)}},
	})
	request.SetOwnerReferences(owner)
	return template, request
}
