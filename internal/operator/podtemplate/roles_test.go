package podtemplate

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

func roles() []ShapeRole {
	return []ShapeRole{
		{Name: v1alpha1.RoleDecode},
		{
			Name: v1alpha1.RolePrefill, ExtraArgs: []string{"--max-num-batched-tokens=16384"},
			Resources: &corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4")}},
		},
	}
}

// TestEnginesOfRolesCanHandOver: they get a connector and an address that other pods reach, unless the user has set these.
func TestEnginesOfRolesCanHandOver(t *testing.T) {
	for text, tc := range map[string]struct {
		engine           string // further fields of the container, in place of args
		role             v1alpha1.RoleName
		manual           bool
		connector, host  bool
		skipped, leftOut string
	}{
		"nothing is set":            {engine: "args: [--model, m]", role: "Decode", connector: true, host: true},
		"no role":                   {engine: "args: [--model, m]"},
		"flags are the user's":      {engine: "args: [--model, m]", role: "Decode", manual: true},
		"a connector of NIXL":       {engine: `args: ['--kv-transfer-config={"kv_connector":"NixlPushConnector"}']`, role: "Both", host: true},
		"another connector":         {engine: `args: ['--kv-transfer-config={"kv_connector":"MooncakeConnector"}']`, role: "Both"},
		"a connector as a document": {engine: `args: [--kv_transfer_config.kv_connector, NixlConnector]`, role: "Both", host: true},
		"a shell starts it":         {engine: `command: [sh, -c, vllm serve m]`, role: "Both", skipped: FlagTransfer},
		"a shell starts it with NIXL": {
			engine: `command: [sh, -c, 'vllm serve m --kv-transfer-config "$NixlConfig"']`, role: "Both", host: true,
		},
		"a ConfigMap may have set the address": {
			engine: "args: [--model, m]\n    envFrom: [{configMapRef: {name: settings}}]", role: "Both", connector: true, skipped: SideChannelHost,
		},
		"the user wants neither": {
			engine: "args: [--model, m]", role: "Both", leftOut: FlagTransfer + "," + SideChannelHost,
		},
	} {
		t.Run(text, func(t *testing.T) {
			shape := &Shape{Wiring: defaulted(), Roles: append(roles(), ShapeRole{Name: v1alpha1.RoleBoth})}
			shape.Template = template(t, "spec:\n  containers:\n  - name: vllm\n    image: vllm/vllm-openai:v0.24.0\n    "+tc.engine)
			if tc.leftOut != "" {
				shape.Template.Annotations = map[string]string{v1alpha1.AnnotationLeaveOut: tc.leftOut}
			}
			if tc.manual {
				shape.Wiring.Flags = string(v1alpha1.FlagsManual)
			}
			o := options()
			o.Role = tc.role
			pod, skipped, err := Pod(shape, o)
			if err != nil {
				t.Fatal(err)
			}
			engine := &pod.Spec.Containers[0]
			if got := slices.Contains(engine.Args, FlagTransfer); got != tc.connector {
				t.Errorf("the connector is added: %t, want %t: %q", got, tc.connector, engine.Args)
			}
			host := slices.ContainsFunc(engine.Env, func(e corev1.EnvVar) bool {
				return e.Name == SideChannelHost && e.ValueFrom != nil && e.ValueFrom.FieldRef.FieldPath == "status.podIP"
			})
			if host != tc.host {
				t.Errorf("the address is added: %t, want %t", host, tc.host)
			}
			said := slices.ContainsFunc(skipped, func(s Skipped) bool { return s.What == tc.skipped })
			if said != (tc.skipped != "") {
				t.Errorf("skipped %v, want %q", skipped, tc.skipped)
			}
			if got, want := pod.Labels[v1alpha1.LabelRole], strings.ToLower(string(tc.role)); got != want {
				t.Errorf("the label is %q, want %q", got, want)
			}
		})
	}
}

// TestTheRevisionIsOfAllRoles: sizes are no part of it, what differs in a role is, and pools without roles keep theirs.
func TestTheRevisionIsOfAllRoles(t *testing.T) {
	revision := func(roles ...v1alpha1.PoolRole) string {
		t.Helper()
		pool := &v1alpha1.InferencePool{}
		pool.Spec.Roles = roles
		shape := ShapeOf(pool)
		_, name, err := shape.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	prefill := v1alpha1.PoolRole{Name: v1alpha1.RolePrefill, Replicas: ptr.To[int32](1)}
	decode := v1alpha1.PoolRole{Name: v1alpha1.RoleDecode, Replicas: ptr.To[int32](1)}
	more := decode
	more.Replicas = ptr.To[int32](5)
	other := decode
	other.Engine = &v1alpha1.RoleEngine{ExtraArgs: []string{"--max-num-seqs=64"}}
	two := revision(prefill, decode)
	if got := revision(prefill, more); got != two {
		t.Error("another size is another revision")
	}
	if got := revision(decode, prefill); got != two {
		t.Error("another order is another revision")
	}
	if got := revision(prefill, other); got == two {
		t.Error("other arguments of a role are the same revision")
	}
	if got := revision(); got == two {
		t.Error("no roles are the same revision")
	}
	if raw, _, err := (&Shape{}).Encode(); err != nil || strings.Contains(string(raw), "roles") {
		t.Errorf("the revision of a pool without roles mentions roles: %s %v", raw, err)
	}
}
