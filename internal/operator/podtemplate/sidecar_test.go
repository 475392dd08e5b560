package podtemplate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
)

// behind puts the engines of a shape that decode behind the sidecar.
func behind(t *testing.T, s *Shape) {
	t.Helper()
	if why := s.BehindSidecar(&v1alpha1.InferencePool{}); why != "" || s.Wiring.Behind == 0 {
		t.Fatalf("port %d: %s", s.Wiring.Behind, why)
	}
}

// TestOnlyEnginesThatDecodeAreBehindTheSidecar: the pool's port is that of the reporter there, and that of the engine in pods that prefill.
func TestOnlyEnginesThatDecodeAreBehindTheSidecar(t *testing.T) {
	shape := &Shape{Template: template(t, smallest), Wiring: defaulted(), Roles: append(roles(), ShapeRole{Name: v1alpha1.RoleBoth})}
	bare := *shape
	behind(t, shape)
	for role, is := range map[v1alpha1.RoleName]bool{v1alpha1.RoleDecode: true, v1alpha1.RoleBoth: true, v1alpha1.RolePrefill: false} {
		o := options()
		o.Role = role
		pod, _, err := Pod(shape, o)
		if err != nil {
			t.Fatal(err)
		}
		if got := config.ReporterServes(pod); got != is {
			t.Errorf("%s: the reporter serves the pool's port: %t", role, got)
		}
		if got := valueOf(pod.Spec.Containers[0].Args, FlagPort); got != map[bool]string{true: "8200"}[is] {
			t.Errorf("%s: the port of the engine is %q", role, got)
		}
		if got := slices.Contains(Injected(pod), Sidecar); got != is {
			t.Errorf("%s: the annotation names the sidecar: %t", role, got)
		}
		without, _, err := Pod(&bare, o)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(without, pod); (diff == "") == is {
			t.Errorf("%s: what the sidecar changes (-without +with):\n%s", role, diff)
		}
	}
}

// TestTheSidecarIsPartOfTheRevision, and a shape without it has the revision that it had before there was one.
func TestTheSidecarIsPartOfTheRevision(t *testing.T) {
	shape := &Shape{Template: template(t, smallest), Wiring: defaulted(), Roles: roles()}
	raw, before, err := shape.Encode()
	if err != nil || strings.Contains(string(raw), "behind") {
		t.Fatalf("%s %v", raw, err)
	}
	behind(t, shape)
	raw, after, err := shape.Encode()
	if err != nil || before == after {
		t.Fatalf("revisions %s and %s: %v", before, after, err)
	}
	kept, err := Decode(raw)
	if err != nil || kept.Wiring != shape.Wiring {
		t.Errorf("the revision keeps %+v, of %+v: %v", kept.Wiring, shape.Wiring, err)
	}
}

// TestWhereTheSidecarCannotBeItIsSaid, and the shape stays as it is.
func TestWhereTheSidecarCannotBeItIsSaid(t *testing.T) {
	const container = "spec: {containers: [{name: vllm, image: v, %s}]}"
	with := func(fields string) string { return fmt.Sprintf(container, fields) }
	type inputs struct {
		shape *Shape
		pool  *v1alpha1.InferencePool
	}
	for name, tc := range map[string]struct {
		template string
		change   func(*inputs)
		why      string // a part of the reason
		port     int32
	}{
		"nothing is set":         {port: 8200},
		"the pool's port is set": {template: with("args: [--model, m, --port, '8000']"), port: 8200},
		"its port is taken": {change: func(in *inputs) {
			in.shape.Wiring.HTTP, in.shape.Wiring.Events, in.shape.Wiring.Drain = 8200, 8201, 8202
		}, port: 8203},
		"another port is set": {template: with("args: [--model, m, --port, '8100']"), why: "--port 8100"},
		"a role that decodes has another port": {change: func(in *inputs) {
			in.shape.Roles[0].ExtraArgs = []string{"--port=8100"}
		}, why: "--port 8100"},
		"the role that prefills has another port": {change: func(in *inputs) {
			in.shape.Roles[1].ExtraArgs = []string{"--port=8100"}
		}, port: 8200},
		"a shell starts it":           {template: with("command: [sh, -c, vllm serve m]"), why: "started by a shell"},
		"the image's own command":     {template: "spec: {containers: [{name: vllm, image: v}]}", why: "neither command nor args"},
		"a socket":                    {template: with("args: [--uds=/s]"), why: "--uds"},
		"a reporter of the user's":    {template: "spec: {initContainers: [{name: kvasir-reporter}], containers: [{name: vllm, args: [a]}]}", why: "without --serve-address"},
		"the user's serves the port":  {template: "spec: {initContainers: [{name: kvasir-reporter, args: [--serve-address, ':8000']}], containers: [{name: vllm, args: [a]}]}"},
		"the author leaves it out":    {template: "metadata: {annotations: {kvasir.dev/leave-out: sidecar}}\n" + with("args: [a]"), why: "leave-out"},
		"no roles":                    {change: func(in *inputs) { in.shape.Roles = nil }, why: "spec.roles"},
		"no reporter":                 {change: func(in *inputs) { in.shape.Wiring.Source = "Subscribe" }, why: "engine.events.source is Subscribe"},
		"flags are the user's":        {change: func(in *inputs) { in.shape.Wiring.Flags = "Manual" }, why: "engine.flags is Manual"},
		"TLS":                         {change: func(in *inputs) { in.shape.Wiring.TLS = &WiringTLS{} }, why: "engine.tls"},
		"HTTP/2":                      {change: func(in *inputs) { in.pool.Spec.Engine.Protocol = v1alpha1.ProtocolH2C }, why: "H2C"},
		"ranks":                       {change: func(in *inputs) { in.shape.Wiring.Ranks = 2 }, why: "ranks"},
		"a port of the system's":      {change: func(in *inputs) { in.shape.Wiring.HTTP = 80 }, why: "below 1024"},
		"a template that is refused":  {change: func(in *inputs) { in.shape.Wiring.Container = "other" }, port: 8200},
		"ports of another container":  {template: "spec: {containers: [{name: vllm, args: [a]}, {name: b, ports: [{containerPort: 8200}]}]}", port: 8201},
		"the port is a variable's":    {template: with("args: [--port=$(PORT)], env: [{name: PORT, value: '8000'}]"), port: 8200},
		"the port is not known":       {template: with("args: [--port=$(PORT)]"), why: "$(PORT)"},
		"the last port is the pool's": {template: with("args: [--port=1, --port=8000]"), port: 8200},
	} {
		t.Run(name, func(t *testing.T) {
			text := tc.template
			if text == "" {
				text = smallest
			}
			in := &inputs{&Shape{Template: template(t, text), Wiring: defaulted(), Roles: roles()}, &v1alpha1.InferencePool{}}
			if tc.change != nil {
				tc.change(in)
			}
			_, before, _ := in.shape.Encode()
			why := in.shape.BehindSidecar(in.pool)
			if (why == "") != (tc.why == "") || !strings.Contains(why, tc.why) || in.shape.Wiring.Behind != tc.port {
				t.Errorf("port %d, want %d; reason %q, want %q", in.shape.Wiring.Behind, tc.port, why, tc.why)
			}
			if _, after, _ := in.shape.Encode(); (before == after) != (tc.port == 0) {
				t.Errorf("the revision was %s, is %s", before, after)
			}
		})
	}
}

// TestASidecarFitsIntoItsContainer: the soft limit of the process, and twice the bodies that it holds, which it adds, stay below the limit of
// the container.
func TestASidecarFitsIntoItsContainer(t *testing.T) {
	for limit := int64(64); limit < 4096; limit += 16 {
		r := &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(limit<<20, resource.BinarySI)}}
		w := &work{behind: true, wiring: &Wiring{}, options: &Options{ReporterResources: r}}
		held := int64(serveMemory)
		for _, arg := range w.serveArgs() {
			_, _ = fmt.Sscanf(arg, "--serve-memory=%d", &held)
		}
		own := softLimit(ownMemory(limit << 20))
		if held < 1 || held > serveMemory || own+2*held >= limit*7/8 {
			t.Errorf("of %d MiB, %d are the reporter's and %d for bodies", limit, own, held)
		}
	}
	if held := heldMemory(sidecarLimit << 20); held != serveMemory {
		t.Errorf("the default container holds %d MiB of bodies", held)
	}
}
