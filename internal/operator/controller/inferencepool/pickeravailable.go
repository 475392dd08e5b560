package inferencepool

import (
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// certificateError means that the certificates of a pool's pickers cannot be made from those in its Secrets.
type certificateError struct {
	pool types.NamespacedName
	err  error
}

func (e *certificateError) Error() string {
	return fmt.Sprintf("certificates of pool %s: %v", e.pool, e.err)
}

func (e *certificateError) Unwrap() error { return e.err }

func (r *verdict) pickerAvailable(err error) metav1.Condition {
	if r.pool.Spec.Picker.Mode == v1alpha1.PickerExternal {
		return status.PickerAvailable.True("External", "the pickers run outside the operator")
	}
	if r.fleets.target != "" || r.move.Clients != "" {
		return r.fleetAvailable()
	}
	if errors.As(err, new(*certificateError)) {
		return status.PickerAvailable.False(status.ReasonCertificateInvalid, "%s", err.Error())
	}
	after := r.pickersAfter
	if after != "" {
		after = "pool " + after
	}
	failure := PickerFailure(r.picker, r.stuckPicker, r.pickerTrouble)
	return JudgePickers(status.PickerAvailable, r.pool.Spec.Picker.Replicas, r.picker, failure, after)
}

// JudgePickers is the condition of a type that says whether the pickers of a Deployment are available, and get their updates. want is
// how many there should be, 0 for the default; pickers is nil if there is no Deployment; failure is why it does not get its pods, as
// PickerFailure has it; after is whose pickers are updated first, such as "pool a", empty for none.
func JudgePickers(condition status.Type, want int32, pickers *appsv1.Deployment, failure, after string) metav1.Condition {
	ready := int32(0)
	if pickers != nil {
		ready = pickers.Status.ReadyReplicas
	}
	if want == 0 {
		want = v1alpha1.DefaultPickerReplicas
	}
	switch {
	case ready == 0:
		return condition.False(status.ReasonUnavailable, "0 of %d replicas are ready%s", want, failure)
	case ready < want:
		return condition.False("SomeUnavailable", "%d of %d replicas are ready%s", ready, want, failure)
	case failure != "":
		return condition.False("UpdateStopped", "%d of %d replicas are ready, and serve on; the Deployment %s does not get new ones%s",
			ready, want, pickers.Name, failure)
	case after != "":
		return condition.True("UpdateWaiting", "%d of %d replicas are ready; they are updated when the pickers of %s are available with the image of this operator",
			ready, want, after)
	}
	return condition.True("Available", "%d of %d replicas are ready", ready, want)
}

// PickerFailure is why a Deployment of pickers does not get its pods, to be appended to a message; "" when it does, or
// might still. stuck is the pod that does not start, and trouble why.
func PickerFailure(pickers *appsv1.Deployment, stuck string, trouble lifecycle.Trouble) string {
	if pickers == nil {
		return ""
	}
	if stuck != "" {
		return "; " + stuck + ": " + trouble.Reason + ": " + trouble.Message
	}
	for i := range pickers.Status.Conditions {
		c := &pickers.Status.Conditions[i]
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue ||
			c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse {
			return "; " + c.Reason + ": " + c.Message
		}
	}
	return ""
}
