package v1alpha1_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/config/crd"
)

// specSchema returns the schema of the spec of a kind.
func specSchema(t *testing.T, kind string) schema.Structural {
	t.Helper()
	defs, err := crd.Definitions()
	if err != nil {
		t.Fatal(err)
	}
	for _, def := range defs {
		if def.Spec.Names.Kind != kind {
			continue
		}
		var internal apiextensions.JSONSchemaProps
		v1 := def.Spec.Versions[0].Schema.OpenAPIV3Schema
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v1, &internal, nil); err != nil {
			t.Fatal(err)
		}
		s, err := schema.NewStructural(&internal)
		if err != nil {
			t.Fatal(err)
		}
		return s.Properties["spec"]
	}
	t.Fatalf("there is no definition of %s", kind)
	return schema.Structural{}
}

// defaulted returns {} with the defaults of a schema.
func defaulted(t *testing.T, s schema.Structural) map[string]any {
	t.Helper()
	value := map[string]any{}
	defaulting.Default(value, &s)
	return generic(t, value)
}

// generic returns a value as JSON has it.
func generic(t *testing.T, v any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestACompletedRolloutIsTheSchemasForAnEmptyOne(t *testing.T) {
	spec := v1alpha1.InferencePoolSpec{Template: &corev1.PodTemplateSpec{}}
	want := defaulted(t, specSchema(t, v1alpha1.KindInferencePool).Properties["rollout"])
	if diff := cmp.Diff(want, generic(t, spec.WithDefaults().Rollout)); diff != "" {
		t.Errorf("(-schema +go):\n%s", diff)
	}
}

// TestDefaultsOfFieldsAreTheSchemas compares each constant with the default of its field.
func TestDefaultsOfFieldsAreTheSchemas(t *testing.T) {
	for path, want := range map[string]int32{
		"autoscaling.minReplicas":                  v1alpha1.DefaultMinReplicas,
		"autoscaling.down.utilizationFloorPercent": v1alpha1.DefaultUtilizationFloorPercent,
		"autoscaling.down.stabilizationSeconds":    v1alpha1.DefaultDownStabilization,
		"drain.deadlineSeconds":                    v1alpha1.DefaultDrainDeadlineSeconds,
		"picker.replicas":                          v1alpha1.DefaultPickerReplicas,
		"picker.tracing.samplePercent":             v1alpha1.DefaultSamplePercent,
		"engine.events.reporter.batchMilliseconds": v1alpha1.DefaultBatchMilliseconds,
	} {
		t.Run(path, func(t *testing.T) {
			field := specSchema(t, v1alpha1.KindInferencePool)
			for name := range strings.SplitSeq(path, ".") {
				field = field.Properties[name]
			}
			if got := fmt.Sprint(field.Default.Object); got != fmt.Sprint(want) {
				t.Errorf("the schema's default is %s, the constant %d", got, want)
			}
		})
	}
}

func TestAPoolOfSelectedPodsGetsNoRollout(t *testing.T) {
	spec := v1alpha1.InferencePoolSpec{}
	if rollout := spec.WithDefaults().Rollout; rollout != nil {
		t.Errorf("the rollout is %+v, want none", rollout)
	}
}

func TestARolloutThatIsSetStays(t *testing.T) {
	spec := v1alpha1.InferencePoolSpec{
		Template: &corev1.PodTemplateSpec{}, Rollout: &v1alpha1.Rollout{Type: v1alpha1.OnDelete},
	}
	if diff := cmp.Diff(spec, spec.WithDefaults()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// members maps the types of strategies with parameters to the JSON names of their members.
var members = map[v1alpha1.StrategyType]string{
	v1alpha1.StrategyMarginalCost:      "marginalCost",
	v1alpha1.StrategyStickyLeastLoaded: "stickyLeastLoaded",
	v1alpha1.StrategyLongestPrefix:     "longestPrefix",
	v1alpha1.StrategyLMetric:           "lMetric",
	v1alpha1.StrategyUnified:           "unified",
	v1alpha1.StrategyRendezvous:        "rendezvous",
	v1alpha1.StrategyApproximatePrefix: "approximatePrefix",
}

func TestACompletedMemberIsTheSchemasForAnEmptyOne(t *testing.T) {
	strategy := specSchema(t, v1alpha1.KindRoutingPolicy).Properties["strategy"]
	compared := 0
	for _, value := range strategy.Properties["type"].ValueValidation.Enum {
		kind := v1alpha1.StrategyType(value.Object.(string))
		t.Run(string(kind), func(t *testing.T) {
			given := v1alpha1.Strategy{Type: kind}
			want := map[string]any{"type": string(kind)}
			if member, ok := members[kind]; ok {
				compared++
				want[member] = defaulted(t, strategy.Properties[member])
			}
			if diff := cmp.Diff(want, generic(t, given.WithDefaults())); diff != "" {
				t.Errorf("(-schema +go):\n%s", diff)
			}
			if diff := cmp.Diff(v1alpha1.Strategy{Type: kind}, given); diff != "" {
				t.Errorf("the receiver was changed (-want +got):\n%s", diff)
			}
		})
	}
	if want := len(strategy.Properties) - 1; compared != want || len(members) != want {
		t.Errorf("%d members were compared, the schema has %d", compared, want)
	}
}

func TestAMemberThatIsSetStays(t *testing.T) {
	given := v1alpha1.Strategy{
		Type:              v1alpha1.StrategyStickyLeastLoaded,
		StickyLeastLoaded: &v1alpha1.StickyLeastLoaded{PrefixTokens: 7},
	}
	if diff := cmp.Diff(given, given.WithDefaults()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
