package objects

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	pool = `apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: chat}
spec:
  model: {name: qwen}
  selector: {matchLabels: {app: chat}}
`
	policy = `apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: policy}
spec:
  targetRefs: [{group: kvasir.dev, kind: InferencePool, name: chat}]
`
	route = `apiVersion: kvasir.dev/v1alpha1
kind: ModelRoute
metadata: {name: route}
spec: {models: [talk], rules: [{backends: [{pool: chat}]}]}
`
)

func TestFilesAreCheckedAsPickersReadThem(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		stdin string
		args  []string // below the directory of the files
		valid bool
		want  string // of the problems, or of the error
	}{
		"a pool":                      {map[string]string{"pool.yaml": pool}, "", []string{"pool.yaml"}, true, ""},
		"a directory":                 {map[string]string{"pool.yaml": pool, "policy.yml": policy, "README": "x"}, "", []string{""}, true, ""},
		"a route and its pool":        {map[string]string{"pool.yaml": pool, "route.yaml": route}, "", []string{""}, true, ""},
		"a route alone":               {map[string]string{"route.yaml": route}, "", []string{""}, false, "spec.rules[0].backends[0].pool: Not found"},
		"a wrong route":               {map[string]string{"pool.yaml": pool, "route.yaml": strings.Replace(route, "pool: chat", "pool: chat, weight: 0", 1)}, "", []string{""}, false, "all weights are 0"},
		"standard input":              {nil, pool + "---\n" + policy, []string{"-"}, true, ""},
		"a file of another name":      {map[string]string{"pool": pool}, "", []string{"pool"}, true, ""},
		"a field that is unknown":     {map[string]string{"pool.yaml": pool + "  mode: {}\n"}, "", []string{"pool.yaml"}, false, "pool.yaml:7:3: "},
		"a file that is no YAML":      {map[string]string{"pool.yaml": pool, "b.yaml": "a: [\n"}, "", []string{""}, false, "b.yaml:1:5: "},
		"an empty file":               {map[string]string{"pool.yaml": "# nothing\n"}, "", []string{"pool.yaml"}, false, ""},
		"a file that is not there":    {nil, "", []string{"none.yaml"}, false, "none.yaml: no such file or directory"},
		"an empty directory":          {nil, "", []string{""}, false, "has no file"},
		"two files of the same name":  {map[string]string{"a/pool.yaml": pool, "b/pool.yaml": pool}, "", []string{"a/pool.yaml", "b/pool.yaml"}, false, "one by one"},
		"one of several that is sick": {map[string]string{"pool.yaml": pool, "policy.yaml": policy + "  strategi: {}\n"}, "", []string{"pool.yaml", "policy.yaml"}, false, "policy.yaml:6:3: "},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for path, content := range tc.files {
				path = filepath.Join(dir, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var args []string
			for _, a := range tc.args {
				if a != "-" {
					a = filepath.Join(dir, a)
				}
				args = append(args, a)
			}
			found, err := Check(t.Context(), strings.NewReader(tc.stdin), "", args)
			text, valid := fmt.Sprint(err), false
			if err == nil {
				text, valid = strings.Join(found.Problems, "\n"), found.Valid
			}
			if valid != tc.valid || !strings.Contains(text, tc.want) {
				t.Errorf("valid: %v, want %v: %s", valid, tc.valid, text)
			}
			if name == "a file that is not there" && strings.Count(text, "none.yaml") != 1 {
				t.Errorf("the file is not named once: %s", text)
			}
		})
	}
}
