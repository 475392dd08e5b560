package podtemplate

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// TestATemplateOfOthersBecomesNoPodOfThePool: what is added is what a reporter needs, once, whatever is done again.
func TestATemplateOfOthersBecomesNoPodOfThePool(t *testing.T) {
	given := template(t, smallest)
	given.Labels = map[string]string{"app": "m", v1alpha1.LabelDrain: "manual"}
	one, wiring, o := *given.DeepCopy(), defaulted(), options()
	o.Warm = true
	done, skipped, err := Template(&one, &wiring, o)
	if want := []string{Reporter, FlagEvents, FlagTokens, FlagShutdown, keepAlives[v1alpha1.EngineVLLM], PreStop, GraceFor}; err != nil || len(skipped) > 0 || !slices.Equal(done, want) {
		t.Fatalf("%v, %v, %v", done, skipped, err)
	}
	if diff := cmp.Diff(given.Labels, one.Labels); diff != "" {
		t.Errorf("labels: %s", diff)
	}
	if len(one.Spec.ReadinessGates) > 0 {
		t.Error("the pods wait for a warm-up that never comes")
	}
	if got := one.Annotations[v1alpha1.AnnotationInjected]; got != "v1 "+strings.Join(done, " ") {
		t.Errorf("annotation %q", got)
	}
	again := *one.DeepCopy()
	if done, _, err = Template(&again, &wiring, o); err != nil || len(done) > 0 {
		t.Errorf("again: %v, %v", done, err)
	}
	if diff := cmp.Diff(one, again); diff != "" {
		t.Errorf("again: %s", diff)
	}
	o.ReporterImage = "another"
	if _, _, err = Template(&again, &wiring, o); err != nil || again.Spec.InitContainers[0].Image != "another" {
		t.Errorf("with another image: %v, %s", err, again.Spec.InitContainers[0].Image)
	}
	wiring.Container = "engine"
	if _, _, err = Template(&again, &wiring, o); !errors.Is(err, ErrTemplate) {
		t.Errorf("without an engine: %v", err)
	}
}

// TestTheReporterMeetsAnEngineThatItsUserHasConfigured: one of both listens, and both speak of one port.
func TestTheReporterMeetsAnEngineThatItsUserHasConfigured(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"nothing is set":               {nil, []string{"--events-listen=127.0.0.1:5557", "--replay=127.0.0.1:5657"}},
		"it listens to all":            {[]string{`--kv-events-config={"endpoint":"tcp://*:6000","replay_endpoint":"tcp://*:6001"}`}, []string{"--events-connect=127.0.0.1:6000", "--replay=127.0.0.1:6001"}},
		"it listens, in two words":     {[]string{"--kv_events_config", `{"endpoint":"tcp://[::]:6000"}`}, []string{"--events-connect=127.0.0.1:6000", "--replay=127.0.0.1:5657"}},
		"it listens by default":        {[]string{`--kv-events-config={"enable_kv_cache_events":true}`}, []string{"--events-connect=127.0.0.1:5557", "--replay=127.0.0.1:5657"}},
		"a shell's script says it":     {[]string{"exec vllm serve m --kv-events-config '{\"endpoint\":\"tcp://*:6000\"}' --port 8000"}, []string{"--events-connect=127.0.0.1:6000", "--replay=127.0.0.1:5657"}},
		"a script that escapes it":     {[]string{"exec vllm serve m --kv-events-config \"$CONFIG\" --port 8000"}, []string{"--events-listen=127.0.0.1:5557"}},
		"it connects":                  {[]string{`--kv-events-config={"endpoint":"tcp://127.0.0.1:6000"}`}, []string{"--events-listen=127.0.0.1:6000", "--replay=127.0.0.1:5657"}},
		"it says nothing that we know": {[]string{"--kv-events-config=@file"}, []string{"--events-listen=127.0.0.1:5557", "--replay=127.0.0.1:5657"}},
	} {
		t.Run(name, func(t *testing.T) {
			given, wiring := template(t, smallest), defaulted()
			given.Spec.Containers[0].Args = append(given.Spec.Containers[0].Args, tc.args...)
			if _, _, err := Template(&given, &wiring, options()); err != nil {
				t.Fatal(err)
			}
			c := given.Spec.InitContainers[0]
			for _, want := range tc.want {
				if !slices.Contains(c.Args, want) {
					t.Errorf("no %s in %v", want, c.Args)
				}
			}
		})
	}
}
