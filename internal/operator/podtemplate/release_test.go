package podtemplate

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// An engine exits on a flag that its release does not have. Each flag is added only where the release is known to have it.
func TestFlagsAreThoseOfTheRelease(t *testing.T) {
	old := []string{FlagEvents, FlagTokens}
	middle := append(slices.Clone(old), FlagShutdown)
	all := append(slices.Clone(middle), FlagScaleOut)
	for _, tc := range []struct {
		image, stated string
		want          []string
		unknown       bool
	}{
		{image: "vllm/vllm-openai:v0.17.1", want: old},
		{image: "vllm:0.9", want: old},
		{image: "vllm:0.17-cu130", want: old},
		{image: "vllm/vllm-openai:v0.18.0", want: middle},
		{image: "vllm/vllm-openai:v0.29.0", want: middle},
		{image: "vllm/vllm-openai:v0.30.0", want: all},
		{image: "vllm/vllm-openai:v0.32.1-cu130", want: all},
		{image: "host:5000/vLLM-cpu:v0.33.0@sha256:0123", want: all},
		{image: "vllm/vllm-openai-rocm:v0.30.0", want: all},
		{image: "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.30.0", want: all},
		{image: "vllm/vllm-openai:latest", want: old, unknown: true},
		{image: "vllm/vllm-openai", want: old, unknown: true},
		{image: "registry:5000/vllm", want: old, unknown: true},
		{image: "vllm/vllm-openai@sha256:0.32", want: old, unknown: true},
		{image: "vllm/vllm-openai:v0x30", want: old, unknown: true},
		// Tags of vendors, and of programs that contain vLLM, are other releases.
		{image: "nvcr.io/nvidia/vllm:26.01-py3", want: old, unknown: true},
		{image: "registry.redhat.io/rhaiis/vllm-cuda-rhel9:3.2.1", want: old, unknown: true},
		{image: "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.2.0", want: old, unknown: true},
		{image: "nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.8.1", want: old, unknown: true},
		{image: "opea/vllm:1.2", want: old, unknown: true},
		{image: "lmcache/vllm-openai:v0.3.9", want: old, unknown: true},
		{image: "registry.example/llm-server:0.35.2", want: old, unknown: true},
		{image: "registry.example/llm-server:0.2", want: old, unknown: true},
		{image: "nvcr.io/nvidia/vllm:26.01-py3", stated: "0.32", want: all},
		{image: "vllm/vllm-openai:latest", stated: "v0.19.1", want: middle},
		{image: "vllm/vllm-openai:v0.32.0", stated: "0.17.1+own", want: old},
		{image: "vllm/vllm-openai:v0.32.0", stated: "newest", want: old, unknown: true},
	} {
		t.Run(tc.image+" "+tc.stated, func(t *testing.T) {
			shape := &Shape{Template: template(t, smallest), Wiring: defaulted()}
			shape.Template.Spec.Containers[0].Image = tc.image
			if tc.stated != "" {
				shape.Template.Annotations = map[string]string{v1alpha1.AnnotationEngineRelease: tc.stated}
			}
			pod, skipped, err := Pod(shape, options())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, what := range Injected(pod) {
				if strings.HasPrefix(what, "--") {
					got = append(got, what)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("flags (-want +got):\n%s", diff)
			}
			var missed []string
			if tc.unknown {
				missed = []string{FlagShutdown, FlagScaleOut}
			}
			var named []string
			for _, s := range skipped {
				if s.Why == ReleaseUnknown {
					named = append(named, s.What)
				}
			}
			if diff := cmp.Diff(missed, named); diff != "" || len(named) != len(skipped) {
				t.Errorf("skipped %v; unknown (-want +got):\n%s", skipped, diff)
			}
		})
	}
}

// A release without KV events would exit on their flag, and the pool works without events.
func TestAReleaseBeforeEventsIsNamed(t *testing.T) {
	shape := &Shape{Template: template(t, smallest), Wiring: defaulted()}
	shape.Template.Annotations = map[string]string{v1alpha1.AnnotationEngineRelease: "0.8.5"}
	pod, skipped, err := Pod(shape, options())
	if err != nil {
		t.Fatal(err)
	}
	if args := pod.Spec.Containers[0].Args; !slices.Equal(args, []string{"--model", "m"}) {
		t.Errorf("args %q", args)
	}
	if len(skipped) == 0 || skipped[0].What != FlagEvents || !strings.Contains(skipped[0].Why, "0.8") {
		t.Errorf("skipped %v", skipped)
	}
}

// The flag of the render routes is not missed where it cannot be added: nothing needs it.
func TestAFlagThatNothingNeedsIsNotMissed(t *testing.T) {
	for _, image := range []string{"vllm/vllm-openai:v0.32.0", "vllm/vllm-openai:latest"} {
		shape := &Shape{Template: template(t, smallest), Wiring: defaulted()}
		engine := &shape.Template.Spec.Containers[0]
		engine.Image, engine.Command, engine.Args = image, []string{"sh", "-c"}, []string{"vllm serve m"}
		_, skipped, err := Pod(shape, options())
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(skipped, func(s Skipped) bool { return s.What == FlagScaleOut }) {
			t.Errorf("%s: skipped %v", image, skipped)
		}
	}
}

// Everything that is added to the engine's container can be refused, one by one, and is then neither added nor missed.
func TestWhatIsInjectedCanBeRefused(t *testing.T) {
	shape := &Shape{Template: template(t, smallest), Wiring: defaulted()}
	shape.Template.Spec.Containers[0].Image = "vllm/vllm-openai:v0.32.0"
	plain, _, err := Pod(shape, options())
	if err != nil {
		t.Fatal(err)
	}
	all := Injected(plain)
	want := []string{
		Reporter, FlagEvents, FlagTokens, FlagShutdown, FlagScaleOut, "VLLM_HTTP_TIMEOUT_KEEP_ALIVE",
		StartupProbe, ReadinessProbe, LivenessProbe, Shm, PreStop, GraceFor,
	}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("injected (-want +got):\n%s", diff)
	}
	inEngine := slices.DeleteFunc(slices.Clone(want), func(s string) bool { return s == Reporter || s == GraceFor })
	for _, one := range append(slices.Clone(inEngine), strings.Join(inEngine, ", ")) {
		refused := strings.Split(one, ", ")
		shape.Template.Annotations = map[string]string{v1alpha1.AnnotationLeaveOut: one}
		pod, skipped, err := Pod(shape, options())
		if err != nil || len(skipped) > 0 {
			t.Fatalf("%s: %v, skipped %v", one, err, skipped)
		}
		left := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(refused, s) })
		if diff := cmp.Diff(left, Injected(pod)); diff != "" {
			t.Errorf("without %s (-want +got):\n%s", one, diff)
		}
	}
	pod, _, err := Pod(shape, options())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(shape.Template.Spec.Containers[0], pod.Spec.Containers[0]); diff != "" {
		t.Errorf("the engine with everything refused (-template +pod):\n%s", diff)
	}
}

// The workers of vLLM pass tensors through /dev/shm; without a volume a container has 64 MiB there.
func TestEnginesHaveSharedMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		spec   string
		wiring func(*Wiring)
		want   bool
	}{
		"nothing is set":         {spec: "containers: [{name: vllm, image: v}]", want: true},
		"the user mounts it":     {spec: "containers: [{name: vllm, image: v, volumeMounts: [{name: own, mountPath: /dev/shm/}]}], volumes: [{name: own, emptyDir: {}}]"},
		"another mount":          {spec: "containers: [{name: vllm, image: v, volumeMounts: [{name: own, mountPath: /dev/shmem}]}], volumes: [{name: own, emptyDir: {}}]", want: true},
		"the node's":             {spec: "hostIPC: true, containers: [{name: vllm, image: v}]"},
		"the name is taken":      {spec: "containers: [{name: vllm, image: v}], volumes: [{name: kvasir-shm, emptyDir: {}}]"},
		"nothing is to be added": {spec: "containers: [{name: vllm, image: v}]", wiring: func(w *Wiring) { w.Flags = string(v1alpha1.FlagsManual) }},
		"another engine":         {spec: "containers: [{name: vllm, image: v}]", wiring: func(w *Wiring) { w.Type = string(v1alpha1.EngineSGLang) }},
	} {
		t.Run(name, func(t *testing.T) {
			shape := &Shape{Template: template(t, "spec: {"+tc.spec+"}"), Wiring: defaulted()}
			if tc.wiring != nil {
				tc.wiring(&shape.Wiring)
			}
			pod, _, err := Pod(shape, options())
			if err != nil {
				t.Fatal(err)
			}
			mounted := ""
			for _, m := range pod.Spec.Containers[0].VolumeMounts {
				if m.MountPath == "/dev/shm" {
					mounted = m.Name
				}
			}
			volumes := 0
			for _, v := range pod.Spec.Volumes {
				if v.Name == mounted && v.EmptyDir != nil && v.EmptyDir.Medium == "Memory" {
					volumes++
				}
			}
			if got := mounted != "" && volumes == 1; got != tc.want {
				t.Errorf("mounted %q, %d volumes of memory; want it: %t", mounted, volumes, tc.want)
			}
		})
	}
}
