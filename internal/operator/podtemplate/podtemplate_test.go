package podtemplate

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

var update = flag.Bool("update", false, "write the golden files")

// defaulted is a shape's wiring with the schema's defaults.
func defaulted() Wiring {
	return Wiring{Type: "VLLM", Flags: "Inject", Source: "Auto", HTTP: 8000, Events: 5557, Replay: 5657, Drain: 9445, Ranks: 1}
}

func options() *Options {
	return &Options{
		Namespace: "llm", Pool: "chat", Name: "chat-bcdfghjklm-3", Revision: "bcdfghjklm", Slot: 3,
		Deadline: 10 * time.Minute, ReporterImage: "registry.example/kvasir/reporter:v1", Version: "v1",
	}
}

func template(t *testing.T, text string) corev1.PodTemplateSpec {
	t.Helper()
	var out corev1.PodTemplateSpec
	if err := yaml.UnmarshalStrict([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

const smallest = `
spec:
  containers:
  - {name: vllm, image: "vllm/vllm-openai:v0.24.0", args: [--model, m]}
`

// TestGolden compares complete pods. Each directory of testdata has a template.yaml; the other inputs are here.
func TestGolden(t *testing.T) {
	for name, change := range map[string]func(*Shape, *Options){
		"smallest": func(*Shape, *Options) {},
		"warm-up on an island": func(_ *Shape, o *Options) {
			o.Warm = true
			o.Island = &v1alpha1.Island{
				Name: "spot", NodeSelector: map[string]v1alpha1.LabelValue{"capacity": "spot"},
				Tolerations: []corev1.Toleration{{Key: "spot", Operator: corev1.TolerationOpExists}},
				Engine:      &v1alpha1.IslandEngine{ExtraArgs: []string{"--tensor-parallel-size=4"}, Resources: &corev1.ResourceRequirements{}},
			}
		},
		"everything set by the user": func(*Shape, *Options) {},
		"shell":                      func(*Shape, *Options) {},
		"image's own command":        func(*Shape, *Options) {},
		"subscribe":                  func(s *Shape, _ *Options) { s.Wiring.Source = "Subscribe" },
		"no events":                  func(s *Shape, _ *Options) { s.Wiring.Source = "None" },
		"engines dial the picker":    func(s *Shape, _ *Options) { s.Wiring.Source = "Listen" },
		"ranks and model files": func(s *Shape, _ *Options) {
			s.Wiring.Ranks, s.Wiring.ModelDir, s.Wiring.Container = 4, "/models/chat", "engine"
		},
		"TLS, a port for each rank": func(s *Shape, _ *Options) {
			s.Wiring.Ranks, s.Wiring.PerRank = 2, true
			s.Wiring.TLS = &WiringTLS{ServerName: "engine.llm", CASecret: "engine-ca", CAKey: "ca.crt"}
		},
		"a model found on a volume":      func(_ *Shape, o *Options) { o.FindModel = true },
		"a model found in a hub's cache": func(_ *Shape, o *Options) { o.FindModel = true },
		"a role": func(s *Shape, o *Options) {
			s.Roles, o.Role = roles(), v1alpha1.RolePrefill
		},
		"a role with a connector of the user's": func(s *Shape, o *Options) {
			s.Roles, o.Role = roles(), v1alpha1.RoleDecode
		},
		"a role behind the sidecar": func(s *Shape, o *Options) {
			s.Roles, o.Role = roles(), v1alpha1.RoleDecode
			behind(t, s)
		},
		"a role behind the sidecar, with settings of the user's": func(s *Shape, o *Options) {
			s.Roles, o.Role = roles(), v1alpha1.RoleDecode
			o.ReporterResources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")}}
			behind(t, s)
		},
		"sglang": func(s *Shape, _ *Options) { s.Wiring.Type = "SGLang" },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("testdata", strings.NewReplacer(" ", "-", "'", "", ",", "").Replace(name))
			text, err := os.ReadFile(filepath.Join(dir, "template.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			shape, o := &Shape{Template: template(t, string(text)), Wiring: defaulted()}, options()
			change(shape, o)
			pod, skipped, err := Pod(shape, o)
			if err != nil {
				t.Fatal(err)
			}
			got, err := yaml.Marshal(map[string]any{"pod": pod, "skipped": skipped})
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join(dir, "pod.yaml")
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("(-want +got; -update writes):\n%s", diff)
			}
		})
	}
}

// Requests through a gateway failed with "connection termination" when they met a connection that the engine was closing:
// the side that sends requests must close first.
func TestEnginesKeepIdleConnectionsLongerThanGateways(t *testing.T) {
	const longestOfGateways = 3600 // Envoy
	name := "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"
	for text, tc := range map[string]struct {
		engine  string // further fields of the container
		wiring  func(*Wiring)
		want    []string
		skipped bool
	}{
		"nothing is set":              {want: []string{"3900"}},
		"other variables are set":     {engine: "env: [{name: HF_HOME, value: /models}]", want: []string{"3900"}},
		"the user has set it":         {engine: "env: [{name: " + name + ", value: '7'}]", want: []string{"7"}},
		"a ConfigMap may have set it": {engine: "envFrom: [{configMapRef: {name: settings}}]", skipped: true},
		"nothing is to be injected":   {wiring: func(w *Wiring) { w.Flags = "None" }},
		"another engine":              {wiring: func(w *Wiring) { w.Type = "Other" }},
	} {
		t.Run(text, func(t *testing.T) {
			shape := &Shape{Template: template(t, smallest), Wiring: defaulted()}
			if tc.engine != "" {
				shape.Template = template(t, `spec: {containers: [{name: vllm, image: "vllm/vllm-openai:v0.24.0", args: [--model, m], `+tc.engine+`}]}`)
			}
			if tc.wiring != nil {
				tc.wiring(&shape.Wiring)
			}
			pod, skipped, err := Pod(shape, options())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range pod.Spec.Containers[0].Env {
				if e.Name == name {
					got = append(got, e.Value)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%s=%q, want %q", name, got, tc.want)
			}
			if len(tc.want) == 1 && tc.want[0] == "3900" && keepAliveSeconds <= longestOfGateways {
				t.Errorf("%d s, gateways keep connections for %d s", keepAliveSeconds, longestOfGateways)
			}
			if said := slices.ContainsFunc(skipped, func(s Skipped) bool { return s.What == name }); said != tc.skipped {
				t.Errorf("skipped %v", skipped)
			}
		})
	}
}

func TestFlagsThatAreSetAreLeftAlone(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want []string // flags that are added
	}{
		"none":                   {[]string{"--model", "m"}, []string{FlagEvents, FlagTokens, FlagShutdown}},
		"with a value behind":    {[]string{FlagEvents, "{}"}, []string{FlagTokens, FlagShutdown}},
		"with an equals sign":    {[]string{FlagShutdown + "=5"}, []string{FlagEvents, FlagTokens}},
		"with underscores":       {[]string{"--enable_prompt_tokens_details"}, []string{FlagEvents, FlagShutdown}},
		"as a key":               {[]string{FlagEvents + ".publisher", "zmq"}, []string{FlagTokens, FlagShutdown}},
		"a longer flag is other": {[]string{FlagShutdown + "-x", "1"}, []string{FlagEvents, FlagTokens, FlagShutdown}},
	} {
		t.Run(name, func(t *testing.T) {
			shape := &Shape{Template: template(t, smallest), Wiring: defaulted()}
			shape.Template.Spec.Containers[0].Args = tc.args
			pod, skipped, err := Pod(shape, options())
			if err != nil || len(skipped) > 0 {
				t.Fatalf("%v, skipped %v", err, skipped)
			}
			args := pod.Spec.Containers[0].Args
			if !slices.Equal(args[:len(tc.args)], tc.args) {
				t.Errorf("args begin with %q", args)
			}
			var got []string
			for _, a := range args[len(tc.args):] {
				if strings.HasPrefix(a, "--") {
					got = append(got, a)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("added (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatIsClosedIsNamed(t *testing.T) {
	for name, tc := range map[string]struct {
		command, args []string
		closed        bool
	}{
		"arguments":               {nil, []string{"--model"}, false},
		"a command":               {[]string{"vllm", "serve"}, nil, false},
		"nothing":                 {nil, nil, true},
		"a shell":                 {[]string{"/bin/sh", "-c"}, []string{"vllm serve"}, true},
		"a shell in args":         {nil, []string{"bash", "-ec", "exec vllm serve"}, true},
		"a shell behind env":      {[]string{"/usr/bin/env", "A=b", "bash", "-lc", "vllm serve"}, nil, true},
		"a script file":           {[]string{"bash", "run.sh"}, nil, false},
		"a model that is named c": {[]string{"vllm", "serve", "sh", "--c", "-c4"}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := closed(&corev1.Container{Command: tc.command, Args: tc.args}); (got != "") != tc.closed {
				t.Errorf("closed: %q", got)
			}
		})
	}
}

func TestPodsOfAnIslandConsumeTheirRequests(t *testing.T) {
	for name, tc := range map[string]struct {
		class string
		there bool
		want  string
	}{
		"asked for by request": {"queued.example", true, "chat-bcdfghjklm-3"},
		"without the API":      {"queued.example", false, ""},
		"without a class":      {"", true, ""},
	} {
		o := options()
		o.Island, o.Provisioning = &v1alpha1.Island{Name: "spot", ProvisioningClassName: tc.class}, tc.there
		pod, _, err := Pod(&Shape{Template: template(t, smallest), Wiring: defaulted()}, o)
		if err != nil {
			t.Fatal(err)
		}
		class := pod.Annotations[resources.AnnotationProvisioningClass]
		if got := pod.Annotations[resources.AnnotationConsumes]; got != tc.want || (class != "") != (tc.want != "") {
			t.Errorf("%s: consumes %q of class %q", name, got, class)
		}
	}
}

func TestTemplatesWithoutTheEngineAreRefused(t *testing.T) {
	shape := &Shape{Template: template(t, smallest), Wiring: defaulted()}
	shape.Wiring.Container = "engine"
	if _, _, err := Pod(shape, options()); !errors.Is(err, ErrTemplate) {
		t.Errorf("error %v", err)
	}
	if _, _, err := Pod(&Shape{Wiring: defaulted()}, options()); !errors.Is(err, ErrTemplate) {
		t.Errorf("error %v", err)
	}
}

func TestRevisionIsOfWhatShapesAPod(t *testing.T) {
	pool := &v1alpha1.InferencePool{}
	base := template(t, smallest)
	pool.Spec.Template = &base
	pool.Spec.Engine = v1alpha1.Engine{Type: "VLLM", Flags: "Inject", Ports: v1alpha1.EnginePorts{HTTP: 8000, Events: 5557, Replay: 5657}}
	revision := func() string {
		s := ShapeOf(pool)
		_, rev, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return rev
	}
	was := revision()
	// Written down: an upgrade that changes it restarts every engine.
	if want := "rcrm6lbqzl"; was != want {
		t.Errorf("revision %s, want %s", was, want)
	}
	for name, tc := range map[string]struct {
		change  func(s *v1alpha1.InferencePoolSpec)
		another bool
	}{
		"image":       {func(s *v1alpha1.InferencePoolSpec) { s.Template.Spec.Containers[0].Image = "x" }, true},
		"label":       {func(s *v1alpha1.InferencePoolSpec) { s.Template.Labels = map[string]string{"a": "b"} }, true},
		"events port": {func(s *v1alpha1.InferencePoolSpec) { s.Engine.Ports.Events = 1 }, true},
		"ranks":       {func(s *v1alpha1.InferencePoolSpec) { s.Engine.DataParallel.Ranks = 2 }, true},
		"TLS":         {func(s *v1alpha1.InferencePoolSpec) { s.Engine.TLS.Verification = v1alpha1.VerificationNone }, true},
		"ports of ranks": {func(s *v1alpha1.InferencePoolSpec) {
			s.Engine.DataParallel = v1alpha1.DataParallel{Ranks: 2, Addressing: v1alpha1.AddressByPort}
		}, true},
		"an empty map": {func(s *v1alpha1.InferencePoolSpec) { s.Template.Labels = map[string]string{} }, false},
		"warm-up":      {func(s *v1alpha1.InferencePoolSpec) { s.WarmUp = &v1alpha1.WarmUp{} }, false},
		"reporter": {func(s *v1alpha1.InferencePoolSpec) {
			s.Engine.Events.Reporter.Resources = &corev1.ResourceRequirements{}
		}, false},
		"the engine's key": {func(s *v1alpha1.InferencePoolSpec) { s.Engine.APIKey.Name = "k" }, false},
		"replicas":         {func(s *v1alpha1.InferencePoolSpec) { n := int32(3); s.Replicas = &n }, false},
		"islands": {func(s *v1alpha1.InferencePoolSpec) {
			s.Placement = &v1alpha1.Placement{Islands: []v1alpha1.Island{{Name: "x"}}}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			saved := pool.DeepCopy()
			defer func() { pool = saved }()
			tc.change(&pool.Spec)
			if got := revision(); (got != was) != tc.another {
				t.Errorf("revision %s, was %s", got, was)
			}
		})
	}
}

func TestShapesSurviveBeingStored(t *testing.T) {
	for name, text := range map[string]string{
		"smallest": smallest,
		"empty objects that mean something": `
spec:
  volumes: [{name: v, emptyDir: {}}]
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: z, whenUnsatisfiable: DoNotSchedule, labelSelector: {}}]
  securityContext: {fsGroup: 9007199254740993}
  containers: [{name: vllm, image: x, args: ["<&>"]}]
`,
	} {
		t.Run(name, func(t *testing.T) {
			s := Shape{Template: template(t, text), Wiring: defaulted()}
			raw, rev, err := s.Encode()
			if err != nil {
				t.Fatal(err)
			}
			got, err := Decode(raw)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&s, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if _, again, err := got.Encode(); err != nil || again != rev {
				t.Errorf("revision %s, was %s: %v", again, rev, err)
			}
		})
	}
	if _, err := Decode([]byte("{")); err == nil {
		t.Error("half a document is read")
	}
}

// FuzzPod makes pods of random templates: nothing panics, the shape is left alone, and what the user has set stays.
func FuzzPod(f *testing.F) {
	for seed := range int64(20) {
		f.Add(seed, []byte(`{"spec":{"containers":[{"name":"vllm","args":["--model","m"]}]}}`))
	}
	f.Add(int64(0), []byte(`{"metadata":{"labels":{"kvasir.dev/drain":"x"}},"spec":{"initContainers":[{"name":"kvasir-reporter"}],"containers":[{"name":"vllm","command":["sh","-c"]}]}}`))
	f.Fuzz(func(t *testing.T, seed int64, text []byte) {
		shape, o := &Shape{Wiring: defaulted()}, options()
		filler := randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 3).MaxDepth(9)
		filler.Fill(o)
		if seed%2 == 0 {
			if json.Unmarshal(text, &shape.Template) != nil {
				return
			}
		} else {
			filler.Fill(&shape.Template.ObjectMeta)
			filler.Fill(&shape.Template.Spec.Containers)
			filler.Fill(&shape.Template.Spec.InitContainers)
			filler.Fill(&shape.Template.Spec.Volumes)
			filler.Fill(&shape.Template.Spec.ReadinessGates)
		}
		if seed%3 == 0 {
			filler.Fill(&shape.Wiring)
		}
		before := &Shape{Template: *shape.Template.DeepCopy(), Wiring: shape.Wiring}
		pod, _, err := Pod(shape, o)
		if !equality.Semantic.DeepEqual(before, shape) {
			t.Fatalf("the shape is changed:\n%s", cmp.Diff(before, shape))
		}
		if err != nil {
			return
		}
		kept(t, &before.Template, pod, before.Wiring.engine(&before.Template.Spec), o)
	})
}

// kept makes sure that what the user has set stands in the pod.
func kept(t *testing.T, template *corev1.PodTemplateSpec, pod *corev1.Pod, engine *corev1.Container, o *Options) {
	t.Helper()
	for k, v := range template.Labels {
		if !strings.HasPrefix(k, "kvasir.dev/") && k != o.IslandLabel && pod.Labels[k] != v {
			t.Errorf("label %s is %q, was %q", k, pod.Labels[k], v)
		}
	}
	added := len(pod.Spec.InitContainers) - len(template.Spec.InitContainers)
	if added < 0 || added > 1 || !equality.Semantic.DeepEqual(pod.Spec.InitContainers[added:], template.Spec.InitContainers) {
		t.Error("init containers of the user are changed")
	}
	for i := range template.Spec.Containers {
		was, is := template.Spec.Containers[i], pod.Spec.Containers[i].DeepCopy()
		if &template.Spec.Containers[i] == engine {
			if len(is.Args) < len(was.Args) || !slices.Equal(is.Args[:len(was.Args)], was.Args) {
				t.Errorf("args %q, were %q", is.Args, was.Args)
			}
			is.Args = was.Args
			if len(is.Env) < len(was.Env) || !equality.Semantic.DeepEqual(is.Env[:len(was.Env)], was.Env) {
				t.Errorf("env %v, was %v", is.Env, was.Env)
			}
			is.Env = was.Env
			if len(is.VolumeMounts) < len(was.VolumeMounts) ||
				!equality.Semantic.DeepEqual(is.VolumeMounts[:len(was.VolumeMounts)], was.VolumeMounts) {
				t.Errorf("mounts %v, were %v", is.VolumeMounts, was.VolumeMounts)
			}
			is.VolumeMounts = was.VolumeMounts
			if was.Lifecycle == nil || was.Lifecycle.PreStop == nil {
				if was.Lifecycle == nil {
					is.Lifecycle = nil
				} else {
					is.Lifecycle.PreStop = nil
				}
			}
			if was.StartupProbe == nil {
				is.StartupProbe = nil
			}
			if was.ReadinessProbe == nil {
				is.ReadinessProbe = nil
			}
			if was.LivenessProbe == nil {
				is.LivenessProbe = nil
			}
			if o.Island != nil && o.Island.Engine != nil && o.Island.Engine.Resources != nil {
				is.Resources = was.Resources
			}
		}
		if !equality.Semantic.DeepEqual(&was, is) {
			t.Errorf("container %d is changed: %s", i, cmp.Diff(&was, is))
		}
	}
	if n := len(template.Spec.Volumes); len(pod.Spec.Volumes) < n || !equality.Semantic.DeepEqual(pod.Spec.Volumes[:n], template.Spec.Volumes) {
		t.Error("volumes of the user are changed")
	}
	if set := template.Spec.TerminationGracePeriodSeconds; set != nil && *pod.Spec.TerminationGracePeriodSeconds != *set {
		t.Error("the grace of the user is changed")
	}
}
