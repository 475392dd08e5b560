package podtemplate

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// runsAs is the user that a container runs as where each pod must run as one of a range of users, as OpenShift's
// restricted-v2 demands; image is the user that its image names. Without such a range, first and last are 0.
func runsAs(pod *corev1.PodSpec, c *corev1.Container, image, first, last int64) (int64, error) {
	user := c.SecurityContext.RunAsUser
	if user == nil && pod.SecurityContext != nil {
		user = pod.SecurityContext.RunAsUser
	}
	switch {
	case last == 0 && user == nil:
		user = &image
	case user == nil:
		user = &first
	case last != 0 && (*user < first || *user > last):
		return 0, fmt.Errorf("user %d is outside %d to %d", *user, first, last)
	}
	if ptr.Deref(c.SecurityContext.RunAsNonRoot, false) && *user == 0 {
		return 0, fmt.Errorf("the container must not run as root")
	}
	return *user, nil
}

func TestTheSidecarRunsWhereverItsPodDoes(t *testing.T) {
	for name, tc := range map[string]struct {
		context     *corev1.PodSecurityContext
		first, last int64
		want        int64
	}{
		"nothing said":                    {nil, 0, 0, 65532},
		"groups only":                     {&corev1.PodSecurityContext{FSGroup: ptr.To[int64](7)}, 0, 0, 65532},
		"a user":                          {&corev1.PodSecurityContext{RunAsUser: ptr.To[int64](1000)}, 0, 0, 1000},
		"root":                            {&corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0)}, 0, 0, 65532},
		"a range":                         {nil, 1000650000, 1000659999, 1000650000},
		"a range, and a user that is one": {&corev1.PodSecurityContext{RunAsUser: ptr.To[int64](1000650007)}, 1000650000, 1000659999, 1000650007},
	} {
		t.Run(name, func(t *testing.T) {
			shape := &Shape{Template: template(t, smallest), Wiring: defaulted()}
			shape.Template.Spec.SecurityContext = tc.context
			pod, _, err := Pod(shape, options())
			if err != nil {
				t.Fatal(err)
			}
			got, err := runsAs(&pod.Spec, &pod.Spec.InitContainers[0], 65532, tc.first, tc.last)
			if err != nil || got != tc.want {
				t.Errorf("user %d, %v; want %d", got, err, tc.want)
			}
		})
	}
}
