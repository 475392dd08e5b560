package v1alpha1

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestPodsOfOthersAreNotCutOff: where Kvasir cannot know the clients of pods, it does not isolate them unasked.
func TestPodsOfOthersAreNotCutOff(t *testing.T) {
	own := &corev1.PodTemplateSpec{}
	from := []NetworkPeer{{IPBlock: IPBlock{CIDR: "10.0.0.0/8"}}}
	for name, tc := range map[string]struct {
		spec InferencePoolSpec
		want EngineNetworkMode
	}{
		"pods that the pool owns":              {InferencePoolSpec{Template: own}, EngineNetworkClosed},
		"pods that the pool selects":           {InferencePoolSpec{}, EngineNetworkNone},
		"the user makes the pickers' policies": {InferencePoolSpec{Template: own, Picker: Picker{PickerSettings: PickerSettings{NetworkPolicy: NetworkPolicyNone}}}, EngineNetworkNone},
		"pickers that are not known":           {InferencePoolSpec{Template: own, Picker: Picker{Mode: PickerExternal}}, EngineNetworkOpen},
		"pickers that the user names": {
			InferencePoolSpec{Template: own, Picker: Picker{Mode: PickerExternal}, Engine: Engine{NetworkPolicy: EngineNetworkPolicy{From: from}}},
			EngineNetworkClosed,
		},
		"selected pods with named clients": {InferencePoolSpec{Engine: Engine{NetworkPolicy: EngineNetworkPolicy{From: from}}}, EngineNetworkClosed},
		"a mode counts more than all":      {InferencePoolSpec{Engine: Engine{NetworkPolicy: EngineNetworkPolicy{Mode: EngineNetworkOpen}}}, EngineNetworkOpen},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.spec.EngineNetwork(); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}
