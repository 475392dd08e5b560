package chart

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/config/crd"
)

// cases are the files of values, without their directory and ending.
func cases(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no values (%v)", err)
	}
	for i := range files {
		files[i] = strings.TrimSuffix(filepath.Base(files[i]), ".yaml")
	}
	return files
}

func values(name string) []string { return []string{"--values", "testdata/values/" + name + ".yaml"} }

func TestRendered(t *testing.T) {
	for _, name := range cases(t) {
		t.Run(name, func(t *testing.T) {
			golden := filepath.Join("testdata", "rendered", name+".yaml")
			got := withoutFiles(t, rendered(t, slices.Concat(values(name), without)...))
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("rendered (-want +got), -update accepts it:\n%s", diff)
			}
		})
	}
}

// withoutFiles puts the names of the chart's files for their contents, which have their source elsewhere.
func withoutFiles(t *testing.T, text string) string {
	t.Helper()
	all := os.DirFS(filepath.Join(chart, "files"))
	for _, pattern := range []string{"*.yaml", "*/*"} {
		files, err := fs.Glob(all, pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no files %s (%v)", pattern, err)
		}
		for _, file := range files {
			content, err := fs.ReadFile(all, file)
			if err != nil {
				t.Fatal(err)
			}
			plain := strings.TrimRight(string(content), "\n")
			for _, indent := range []string{"", "    "} {
				text = strings.ReplaceAll(text, indent+strings.ReplaceAll(plain, "\n", "\n"+indent), indent+"# files/"+file)
			}
		}
	}
	return text
}

func TestTheDefinitionsAreThoseOfTheTypesAndAreKept(t *testing.T) {
	definitions, err := crd.Definitions()
	if err != nil {
		t.Fatal(err)
	}
	all := objects(t, rendered(t))
	for _, want := range definitions {
		u := all["CustomResourceDefinition /"+want.Name]
		if u == nil {
			t.Errorf("%s is missing", want.Name)
			continue
		}
		got := &apiextensionsv1.CustomResourceDefinition{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, got, true); err != nil {
			t.Fatal(err)
		}
		if got.Annotations["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s goes, with all its objects, when the chart is uninstalled", want.Name)
		}
		delete(got.Annotations, "helm.sh/resource-policy")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-config +chart):\n%s", want.Name, diff)
		}
	}
	for name := range objects(t, rendered(t, without...)) {
		if strings.HasPrefix(name, "CustomResourceDefinition") {
			t.Errorf("%s is there with crds.install=false", name)
		}
	}
}

func deployment(t *testing.T, text string) *appsv1.Deployment {
	t.Helper()
	for name, u := range objects(t, text) {
		if !strings.HasPrefix(name, "Deployment ") {
			continue
		}
		d := &appsv1.Deployment{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, d, true); err != nil {
			t.Fatal(err)
		}
		return d
	}
	t.Fatal("no Deployment")
	return nil
}

func TestTheOperatorKnowsItsFlags(t *testing.T) {
	manager := filepath.Join(t.TempDir(), "manager")
	if out, err := run(t.Context(), "go", "build", "-o", manager, root+"/cmd/manager"); err != nil {
		t.Fatalf("building the manager: %v\n%s", err, out)
	}
	texts := map[string]string{"kustomize": kustomized(t, "default"), "kustomize, namespaced": kustomized(t, "namespaced")}
	for _, name := range cases(t) {
		texts[name] = rendered(t, slices.Concat(values(name), without)...)
	}
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			args := deployment(t, text).Spec.Template.Spec.Containers[0].Args
			for i := range args { // as the kubelet does
				args[i] = strings.NewReplacer("$(NAMESPACE)", system, "$(POD_NAME)", "kvasir-operator-0").Replace(args[i])
			}
			// -h ends it with status 0 after the flags before it were read, and a wrong one ends it with another.
			if out, err := run(t.Context(), manager, append(args, "-h")...); err != nil {
				t.Errorf("manager %q: %v\n%s", args, err, out)
			}
		})
	}
}

// The reporter takes the flags of the manifest in docs/install-vllm.md.
func TestTheReporterKnowsItsFlags(t *testing.T) {
	reporter := filepath.Join(t.TempDir(), "reporter")
	if out, err := run(t.Context(), "go", "build", "-o", reporter, root+"/cmd/reporter"); err != nil {
		t.Fatalf("building the reporter: %v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "install-vllm.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		var d appsv1.Deployment
		if err := yaml.Unmarshal([]byte(m[1]), &d); err != nil || d.Kind != "Deployment" {
			continue
		}
		found = true
		args := d.Spec.Template.Spec.InitContainers[0].Args
		if out, err := run(t.Context(), reporter, append(args, "-h")...); err != nil {
			t.Errorf("reporter %q: %v\n%s", args, err, out)
		}
	}
	if !found {
		t.Error("there is no Deployment")
	}
}

// The network policies of pickers let pods with this name in; internal/operator/resources.
func TestPickersLetTheOperatorIn(t *testing.T) {
	for _, name := range cases(t) {
		d := deployment(t, rendered(t, slices.Concat(values(name), without)...))
		if got := d.Spec.Template.Labels["app.kubernetes.io/name"]; got != "kvasir-operator" {
			t.Errorf("%s: the pods are named %q", name, got)
		}
		for key, value := range d.Spec.Selector.MatchLabels {
			if d.Spec.Template.Labels[key] != value {
				t.Errorf("%s: the pods lack the label %s=%s, by which they are selected", name, key, value)
			}
		}
	}
}

func TestWrongValuesAreRefused(t *testing.T) {
	for name, set := range map[string]string{
		"a value that is not":             "replica=3",
		"one of a map that is not":        "images.manager.version=v1",
		"an old one":                      "image.repository=kvasir",
		"a word for a number":             "replicas=two",
		"a negative number":               "replicas=-1",
		"a number for a word":             "images.registry=7",
		"a level that is not":             "logLevel=loud",
		"a policy that is not":            "images.pullPolicy=Sometimes",
		"a digest that is none":           "images.picker.digest=latest",
		"a tag with a repository":         "images.tag=kvasir:v1",
		"an empty repository":             "images.picker.repository=",
		"a namespace that is not one":     "watch.namespaces={A}",
		"a namespace twice":               "watch.namespaces={a,a}",
		"a port that is none":             "metrics.port=70000",
		"a reader without a namespace":    "monitoring.readers[0].name=prometheus",
		"credentials without a key":       "monitoring.monitors.credentials.name=scraper",
		"a duration without a unit":       "monitoring.monitors.interval=15",
		"an injection that is not":        "reporter.injection=Webhook",
		"an account that is not said":     "serviceAccount.create=false",
		"memory in Kubernetes's spelling": "goMemoryLimit=460Mi",
	} {
		t.Run(name, func(t *testing.T) {
			if out, err := template(t, "--set", set); err == nil {
				t.Errorf("%s is taken:\n%.400s", set, out)
			}
		})
	}
}

// Without a registry, pods would never start: there are no public images.
func TestARegistryIsRequired(t *testing.T) {
	hosted := "images.manager.repository=r.example/m,images.picker.repository=r.example:5000/p,images.reporter.repository=localhost/r"
	for name, tc := range map[string]struct {
		set  string
		want string // of the error; empty for none
	}{
		"none":                           {"images.registry=", "make images TAG=v1 REGISTRY="},
		"one of the user's own":          {"images.registry=registry.example.com/team/", ""},
		"the nodes' own images":          {"images.registry=docker.io", ""},
		"in each repository":             {"images.registry=," + hosted, ""},
		"in one of the repositories":     {"images.registry=,images.manager.repository=r.example/m", "images.registry is not set"},
		"a repository that only has one": {"images.registry=,images.manager.repository=a/b.c/m", "images.registry is not set"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := template(t, "--set", "crds.install=false", "--set", tc.set)
			if (err != nil) != (tc.want != "") || !strings.Contains(out, tc.want) {
				t.Errorf("error %v, want one with %q: %.600s", err, tc.want, out)
			}
			if strings.Contains(out, "team//") {
				t.Error("a slash is doubled")
			}
		})
	}
}

func TestInjectionNeedsAnAPIServerThatCan(t *testing.T) {
	inject := []string{"--set", "reporter.injection=AdmissionPolicy", "--kube-version"}
	if out, err := template(t, append(inject, "1.35.9")...); err == nil || !strings.Contains(out, "1.36") {
		t.Errorf("Kubernetes 1.35 is given a policy that it does not know: %v %.400s", err, out)
	}
	rendered(t, append(inject, "1.36.0-gke.1")...)
}

// schema is as much of a JSON schema as values.schema.json uses for maps.
type schema struct {
	Ref        string            `json:"$ref"`
	Type       string            `json:"type"`
	Properties map[string]schema `json:"properties"`
	Additional any               `json:"additionalProperties"`
}

// The schema has each value of values.yaml, and no other, so that it refuses what nothing looks at.
func TestTheSchemaHasTheValues(t *testing.T) {
	var s struct {
		schema
		Definitions map[string]schema `json:"definitions"`
	}
	read(t, "values.schema.json", &s)
	var v map[string]any
	read(t, "values.yaml", &v)
	delete(s.Properties, "global") // Helm's own

	var compare func(path string, s2 schema, v map[string]any)
	compare = func(path string, at schema, v map[string]any) {
		if name, ok := strings.CutPrefix(at.Ref, "#/definitions/"); ok {
			at = s.Definitions[name]
		}
		if at.Additional != false {
			return // a map of the user's
		}
		if diff := cmp.Diff(slices.Sorted(maps.Keys(at.Properties)), slices.Sorted(maps.Keys(v))); diff != "" && !optional[path] {
			t.Errorf("%s (-schema +values):\n%s", path, diff)
		}
		for name, below := range at.Properties {
			if m, ok := v[name].(map[string]any); ok {
				compare(strings.TrimPrefix(path+"."+name, "."), below, m)
			}
		}
	}
	compare("", s.schema, v)
}

// optional values are nowhere in values.yaml, since nothing is their default.
var optional = map[string]bool{"resources": true, "monitoring.monitors.credentials": true}

func read(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chart, file))
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(file, ".json") {
		err = json.Unmarshal(text, into)
	} else {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Kustomize installs what the chart installs by default. Only the labels that name the installer differ.
func TestKustomizeInstallsTheSame(t *testing.T) {
	for dir, args := range map[string][]string{
		"default":    nil,
		"namespaced": {"--set", "watch.namespaces={llm}"},
	} {
		t.Run(dir, func(t *testing.T) {
			// Where the chart requires a registry, the images of config have none: kustomize cannot refuse.
			text := strings.ReplaceAll(rendered(t, args...), "docker.io/kvasir/", "kvasir/")
			want, got := objects(t, text), objects(t, kustomized(t, dir))
			delete(got, "Namespace /"+system) // helm install --create-namespace
			if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
				t.Fatalf("objects (-chart +config):\n%s", diff)
			}
			version := chartVersion(t)
			for name := range want {
				if diff := cmp.Diff(plain(want[name], version), plain(got[name], version)); diff != "" {
					t.Errorf("%s (-chart +config):\n%s", name, diff)
				}
			}
		})
	}
}

func chartVersion(t *testing.T) string {
	t.Helper()
	var c struct {
		AppVersion string `json:"appVersion"`
	}
	read(t, "Chart.yaml", &c)
	return c.AppVersion
}

// plain is an object without the permitted differences: labels of the installer, tags, and flags set to their defaults.
func plain(u *unstructured.Unstructured, version string) map[string]any {
	annotations := u.GetAnnotations()
	delete(annotations, "helm.sh/resource-policy")
	u.SetAnnotations(annotations)
	labelled(u.Object)
	if u.GetKind() != "Deployment" {
		return u.Object
	}
	containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
	manager := containers[0].(map[string]any)
	delete(manager, "imagePullPolicy")
	untagged := func(image string) string { return strings.TrimSuffix(image, ":"+version) }
	manager["image"] = untagged(manager["image"].(string))
	images := map[string]string{}
	manager["env"] = slices.DeleteFunc(manager["env"].([]any), func(one any) bool {
		name, _ := one.(map[string]any)["name"].(string)
		value, _ := one.(map[string]any)["value"].(string)
		images["$("+name+")"] = value
		return strings.HasSuffix(name, "_IMAGE")
	})
	var args []any
	for _, arg := range manager["args"].([]any) {
		flag, value, _ := strings.Cut(arg.(string), "=")
		if image, ok := images[value]; ok {
			value = image
		}
		if arg = flag + "=" + untagged(value); !slices.Contains([]any{"--log-level=info", "--picker-log-level=info", "--metrics-address=:8443"}, arg) {
			args = append(args, arg)
		}
	}
	manager["args"] = args
	_ = unstructured.SetNestedSlice(u.Object, containers, "spec", "template", "spec", "containers")
	return u.Object
}

// labelled leaves of all labels those that select, and of those of a ClusterRole where it is added to.
func labelled(value any) {
	switch v := value.(type) {
	case map[string]any:
		for _, key := range []string{"labels", "matchLabels", "selector"} {
			labels, ok := v[key].(map[string]any)
			if !ok {
				continue
			}
			maps.DeleteFunc(labels, func(name string, _ any) bool {
				return !strings.HasPrefix(name, "rbac.authorization.k8s.io/") && (key == "labels" || name != "app.kubernetes.io/name")
			})
			if len(labels) == 0 {
				delete(v, key)
			}
		}
		for _, below := range v {
			labelled(below)
		}
	case []any:
		for _, below := range v {
			labelled(below)
		}
	}
}
