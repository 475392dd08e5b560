// Package charts tests the Helm chart without Helm: templates keep to what render_test.go knows of its functions.
package charts

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/internal/watch"
)

const (
	root  = "../.."
	chart = root + "/charts/kvasir"
)

// full sets every value that is empty by default.
const full = `
image: {tag: v9}
imagePullSecrets: [{name: pull}]
replicas: 3
keySecret: {name: roots, key: first}
extraArgs: [--model-root=/models, --pprof]
extraVolumes: [{name: models, emptyDir: {}}]
extraVolumeMounts: [{name: models, mountPath: /models}]
serviceAccount: {name: someone, annotations: {a: b}}
podLabels: {c: d}
podAnnotations: {e: f}
nodeSelector: {g: h}
tolerations: [{key: i, operator: Exists}]
affinity: {podAntiAffinity: {}}
service: {extraPorts: [{name: kv-events, port: 5557, targetPort: 5557}]}
`

func TestTheChartHasTheDefinitions(t *testing.T) {
	want, got := contents(t, root+"/config/crd/bases"), contents(t, chart+"/crds")
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Fatalf("files (-definitions +chart):\n%s", diff)
	}
	for name := range want {
		if want[name] != got[name] {
			t.Errorf("crds/%s is stale: run hack/generate.sh", name)
		}
	}
}

func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(dir + "/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no definitions in %s (%v)", dir, err)
	}
	all := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(file)] = string(text)
	}
	return all
}

func TestThePickerRunsInARestrictedNamespace(t *testing.T) {
	for name, values := range map[string]string{"by default": "", "with every value": full} {
		t.Run(name, func(t *testing.T) {
			d := deployment(t, values)
			pod := &d.Spec.Template.Spec
			if s := pod.SecurityContext; !*s.RunAsNonRoot || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("pod %+v", s)
			}
			if *pod.AutomountServiceAccountToken {
				t.Error("the token of the service account is mounted, which nothing uses")
			}
			c := &pod.Containers[0]
			if s := c.SecurityContext; *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("container %+v", s)
			}
			if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
				t.Errorf("resources %+v", c.Resources)
			}
			for path, probe := range map[string]*corev1.Probe{"/readyz": c.ReadinessProbe, "/healthz": c.LivenessProbe} {
				if probe.HTTPGet.Path != path || portOf(t, c, probe.HTTPGet.Port.String()) != 9003 {
					t.Errorf("probe %+v, want %s at 9003", probe.HTTPGet, path)
				}
			}
			for key, value := range d.Spec.Selector.MatchLabels {
				if d.Spec.Template.Labels[key] != value {
					t.Errorf("the pods lack the label %s=%s, by which they are selected", key, value)
				}
			}
			mounted := map[string]bool{}
			for _, v := range pod.Volumes {
				mounted[v.Name] = true
			}
			for _, m := range c.VolumeMounts {
				if !mounted[m.Name] {
					t.Errorf("there is no volume %s to mount", m.Name)
				}
			}
		})
	}
}

// portOf is the number of a container's named port.
func portOf(t *testing.T, c *corev1.Container, name string) int32 {
	t.Helper()
	for _, p := range c.Ports {
		if p.Name == name {
			return p.ContainerPort
		}
	}
	t.Fatalf("no port %s", name)
	return 0
}

// The picker takes the flags that the chart gives it.
func TestThePickerKnowsItsFlags(t *testing.T) {
	picker := filepath.Join(t.TempDir(), "picker")
	if out, err := exec.Command("go", "build", "-o", picker, root+"/cmd/picker").CombinedOutput(); err != nil {
		t.Fatalf("building the picker: %v\n%s", err, out)
	}
	for name, values := range map[string]string{"by default": "", "with every value": full} {
		t.Run(name, func(t *testing.T) {
			d := deployment(t, values)
			args := d.Spec.Template.Spec.Containers[0].Args
			// -h ends it with status 0 after the flags before it were read, and a wrong one ends it with another.
			if out, err := exec.Command(picker, append(slices.Clone(args), "-h")...).CombinedOutput(); err != nil {
				t.Errorf("picker %q: %v\n%s", args, err, out)
			}
			drain := fmt.Sprintf("--lame-duck=5s --drain-timeout=60s of %ds", *d.Spec.Template.Spec.TerminationGracePeriodSeconds)
			if want := "--lame-duck=5s --drain-timeout=60s of 75s"; drain != want || !strings.Contains(strings.Join(args, " "), "--lame-duck=5s --drain-timeout=60s") {
				t.Errorf("the end takes %s, want %s: %q", drain, want, args)
			}
		})
	}
}

// What is given as files is what the picker reads, mounted where it looks.
func TestFilesAreWhatThePickerReads(t *testing.T) {
	values := map[string]any{"files": map[string]string{}}
	samples, err := filepath.Glob(root + "/config/samples/standalone/*.yaml")
	if err != nil || len(samples) == 0 {
		t.Fatalf("no samples (%v)", err)
	}
	for _, sample := range samples {
		text, err := os.ReadFile(sample)
		if err != nil {
			t.Fatal(err)
		}
		values["files"].(map[string]string)[filepath.Base(sample)] = string(text)
	}
	text, err := yaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	files := only[corev1.ConfigMap](t, "configmap.yaml", string(text))
	dir := t.TempDir()
	for name, text := range files.Data {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	directory, err := watch.NewDirectory(dir, watch.Settings{Root: bytes.Repeat([]byte{7}, 32)}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	state, _ := directory.Load(context.Background())
	if len(state.Specs) != 1 || len(state.Specs[0].Endpoints) != 2 || len(state.Problems) != 0 {
		t.Errorf("%d pools with problems %v, want the sample's", len(state.Specs), state.Problems)
	}

	d := deployment(t, string(text))
	c := d.Spec.Template.Spec.Containers[0]
	if c.VolumeMounts[0].MountPath != "/etc/kvasir/objects" || c.Args[0] != "--standalone=/etc/kvasir/objects" || d.Spec.Template.Spec.Volumes[0].ConfigMap.Name != files.Name {
		t.Errorf("mount %+v, arguments %q, volume %+v", c.VolumeMounts[0], c.Args, d.Spec.Template.Spec.Volumes[0])
	}
}

func TestTheKeySecretIsOptional(t *testing.T) {
	flag := func(d *appsv1.Deployment) bool {
		return slices.Contains(d.Spec.Template.Spec.Containers[0].Args, "--key-file=/etc/kvasir/key/root")
	}
	if d := deployment(t, ""); flag(d) || len(d.Spec.Template.Spec.Volumes) != 1 {
		t.Error("there is a key file by default")
	}
	d := deployment(t, full)
	want := &corev1.SecretVolumeSource{SecretName: "roots", Items: []corev1.KeyToPath{{Key: "first", Path: "root"}}}
	if diff := cmp.Diff(want, d.Spec.Template.Spec.Volumes[1].Secret); diff != "" || !flag(d) {
		t.Errorf("key file given: %v; volume (-want +got):\n%s", flag(d), diff)
	}
}

func TestTheServiceSelectsThePicker(t *testing.T) {
	s := only[corev1.Service](t, "service.yaml", "")
	d := deployment(t, "")
	if diff := cmp.Diff(d.Spec.Selector.MatchLabels, s.Spec.Selector); diff != "" {
		t.Errorf("selector (-Deployment +Service):\n%s", diff)
	}
	for i, want := range []int32{8080, 9002} { // the proxy's, and the gateways'
		if port := s.Spec.Ports[i]; portOf(t, &d.Spec.Template.Spec.Containers[0], port.TargetPort.String()) != want {
			t.Errorf("port %+v, want that of %d", port, want)
		}
	}
	if ports := only[corev1.Service](t, "service.yaml", full).Spec.Ports; len(ports) != 3 || ports[2].Port != 5557 {
		t.Errorf("ports %+v, want the one that was asked for, too", ports)
	}
	for _, values := range []string{"", full} {
		account := only[corev1.ServiceAccount](t, "serviceaccount.yaml", values)
		if got := deployment(t, values).Spec.Template.Spec.ServiceAccountName; got != account.Name {
			t.Errorf("the pods are of service account %q, which is called %q", got, account.Name)
		}
	}
}

func TestTheNotesSayWhatIsNotThere(t *testing.T) {
	for values, advice := range map[string]bool{"": true, "files: {a.yaml: b}": false} {
		notes := render(t, "NOTES.txt", values)
		if !strings.Contains(notes, "The operator is not part of this version") || strings.Contains(notes, "There are no files yet") != advice {
			t.Errorf("with %q the notes are\n%s", values, notes)
		}
	}
}

func deployment(t *testing.T, values string) *appsv1.Deployment {
	t.Helper()
	return only[appsv1.Deployment](t, "deployment.yaml", values)
}

// only reads the one object of a template, strictly.
func only[T any](t *testing.T, template, values string) *T {
	t.Helper()
	text := render(t, template, values)
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		t.Fatalf("%s: %v\n%s", template, err, text)
	}
	return object
}
