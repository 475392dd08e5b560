package podtemplate

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// sidecarOf is the reporter of the pod of a template.
func sidecarOf(t *testing.T, shape *Shape, o *Options) (*corev1.Container, []Skipped) {
	t.Helper()
	pod, skipped, err := Pod(shape, o)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == v1alpha1.ReporterContainer })
	if at < 0 {
		t.Fatal("no reporter")
	}
	return &pod.Spec.InitContainers[at], skipped
}

// toldOfModel is what a reporter is started with about the model, as flags. --model-dir is one; reporters of earlier releases, to which pods
// can be changed back, know none of the others and would not start with them, so those are variables.
func toldOfModel(c *corev1.Container) (told []string) {
	for _, arg := range c.Args {
		if strings.HasPrefix(arg, "--model-dir=") {
			told = append(told, arg)
		}
	}
	for _, v := range c.Env {
		if name, is := strings.CutPrefix(v.Name, "KVASIR_"); is {
			told = append(told, "--"+strings.ToLower(strings.ReplaceAll(name, "_", "-"))+"="+v.Value)
		}
	}
	return told
}

// TestReportersFindTheModelOfTheEngine: in pools without a setting, and only where the engine has it on a volume.
func TestReportersFindTheModelOfTheEngine(t *testing.T) {
	const models, cache = "{name: v, mountPath: /models}", "{name: v, mountPath: /root/.cache/huggingface}"
	for name, tc := range map[string]struct {
		engine string // fields of the container
		mount  string
		sglang bool
		want   string // arguments about the model
	}{
		"a directory":                   {"args: [--model, /models/a]", models, false, "--model-dir=/models/a --model-root=/models"},
		"the volume itself":             {"args: [--model=/models/]", models, false, "--model-dir=/models"},
		"served by its command":         {"command: [vllm, serve, /models/a]", models, false, "--model-dir=/models/a --model-root=/models"},
		"served by the image's":         {"args: [/models/a, --port, '8000']", models, false, "--model-dir=/models/a --model-root=/models"},
		"in a script":                   {"command: [sh, -c, 'exec vllm serve /models/a --port 8000']", models, false, "--model-dir=/models/a --model-root=/models"},
		"in a script with variables":    {"command: [sh, -c, 'exec vllm serve $MODEL']", models, false, ""},
		"by a variable":                 {"args: [--model, /models/$(M)]\nenv: [{name: M, value: a}]", models, false, "--model-dir=/models/a --model-root=/models"},
		"by a variable of a Secret":     {"args: [--model, /models/$(M)]\nenv: [{name: M, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]", models, false, ""},
		"a tokenizer of its own":        {"args: [--model, /models/a, --tokenizer, /models/b]", models, false, "--model-dir=/models/b --model-root=/models"},
		"the last one":                  {"args: [--model, /models/a, --model=/models/b]", models, false, "--model-dir=/models/b --model-root=/models"},
		"on no volume":                  {"args: [--model, /data/a]", models, false, ""},
		"beside the volume":             {"args: [--model, /models2/a]", models, false, ""},
		"a way out of the volume":       {"args: [--model, /models/../data/a]", models, false, ""},
		"a bucket":                      {"args: [--model, 's3://bucket/a']", models, false, ""},
		"a repository without a volume": {"args: [--model, org/a]", models, false, ""},
		"a repository":                  {"args: [--model, org/a]", cache, false, "--model-cache=/root/.cache/huggingface/hub --model-repository=org/a"},
		"a revision":                    {"args: [--model, org/a, --revision=v2]", cache, false, "--model-cache=/root/.cache/huggingface/hub --model-repository=org/a --model-revision=v2"},
		"HF_HOME":                       {"args: [--model, org/a]\nenv: [{name: HF_HOME, value: /models/hf}]", models, false, "--model-cache=/models/hf/hub --model-repository=org/a"},
		"HF_HUB_CACHE":                  {"args: [--model, org/a]\nenv: [{name: HF_HUB_CACHE, value: /models}]", models, false, "--model-cache=/models --model-repository=org/a"},
		"another user's home":           {"args: [org/a]\nenv: [{name: HOME, value: /home/vllm}]", "{name: v, mountPath: /home/vllm/.cache}", false, "--model-cache=/home/vllm/.cache/huggingface/hub --model-repository=org/a"},
		"another hub":                   {"args: [--model, org/a]\nenv: [{name: VLLM_USE_MODELSCOPE, value: 'true'}]", cache, false, ""},
		"no repository":                 {"args: [--model, org/a/../..]", cache, false, ""},
		"SGLang":                        {"args: [--model-path, /models/a]", models, true, "--model-dir=/models/a --model-root=/models"},
		"nothing known":                 {"args: [x]", models, false, ""},
		"nothing":                       {"image: i", models, false, ""},
		"variables in the mount":        {"args: [--model, /models/a]", "{name: v, mountPath: /models, subPathExpr: $(POD)}", false, ""},
		"over the sidecar's own":        {"args: [--model, /var/a]", "{name: v, mountPath: /var}", false, ""},
		"over the sidecar's program":    {"args: [--model, /a]", "{name: v, mountPath: /}", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			text := "spec:\n  containers:\n  - name: vllm\n    volumeMounts: [" + tc.mount + "]\n    " + strings.ReplaceAll(tc.engine, "\n", "\n    ")
			shape, o := &Shape{Template: template(t, text), Wiring: defaulted()}, options()
			if tc.sglang {
				shape.Wiring.Type = string(v1alpha1.EngineSGLang)
			}
			o.FindModel = true
			c, skipped := sidecarOf(t, shape, o)
			if got := toldOfModel(c); strings.Join(got, " ") != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			mounted := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "v" })
			if (mounted >= 0) != (tc.want != "") || mounted >= 0 && !c.VolumeMounts[mounted].ReadOnly {
				t.Errorf("mounts %v", c.VolumeMounts)
			}
			if slices.ContainsFunc(skipped, func(s Skipped) bool { return s.What == "--model-dir" }) {
				t.Errorf("what no user has asked for is missed: %v", skipped)
			}
			o.FindModel = false
			if c, _ := sidecarOf(t, shape, o); len(toldOfModel(c)) > 0 {
				t.Errorf("in a pool with another source of tokens: %q", toldOfModel(c))
			}
		})
	}
}

// TestAModelThatIsFoundIsNoPartOfTheRevision, so that an upgrade restarts no engine: where the reporter finds the model is no part of the revision.
func TestAModelThatIsFoundIsNoPartOfTheRevision(t *testing.T) {
	pool := &v1alpha1.InferencePool{}
	pool.Spec.Model.Tokenizer.Type = v1alpha1.TokenizerAuto
	found, engine := ShapeOf(pool), pool.DeepCopy()
	engine.Spec.Model.Tokenizer.Type = v1alpha1.TokenizerFromEngine
	asked := ShapeOf(engine)
	_, a, err := found.Encode()
	_, b, err2 := asked.Encode()
	if err != nil || err2 != nil || a != b {
		t.Errorf("revisions %s and %s, %v, %v", a, b, err, err2)
	}
	if !For(pool).FindModel || For(engine).FindModel {
		t.Error("the model is found for pools of the type Auto, and no others")
	}
}
