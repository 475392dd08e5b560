package server

import (
	"bytes"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

const goodSlice = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: a, labels: {kvasir.dev/pool: m}}
addressType: IPv4
endpoints: [{addresses: [127.0.0.1], targetRef: {kind: Pod, name: a}}]
`

// checked validates files, whose names alternate with their contents.
func checked(t *testing.T, args []string, parts ...string) (status int, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(parts); i += 2 {
		put(t, filepath.Join(dir, parts[i]), parts[i+1])
	}
	o, err := parse(append([]string{"--standalone", dir, "--validate"}, args...), io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out, said bytes.Buffer
	status = validate(t.Context(), o, &out, &said)
	return status, out.String(), said.String()
}

func TestValidateAcceptsWhatWouldBeServed(t *testing.T) {
	status, stdout, stderr := checked(t, nil, "pool.yaml", poolText("m", "m", ""), "pods.yaml", goodSlice, "notes.yaml", "# to come\n")
	if status != 0 || stdout != "The configuration is valid: pools 1, policies 0, endpoints 1.\n" || stderr != "" {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
}

func TestValidateNamesEveryProblemInALine(t *testing.T) {
	for name, tc := range map[string]struct {
		args, files []string
		want        []string
	}{
		"no file":            {nil, nil, []string{"no pool is served: /"}},
		"an empty file":      {nil, []string{"pool.yaml", ""}, []string{"pool.yaml: the file is empty"}},
		"no YAML":            {nil, []string{"pool.yaml", "spec: [\n"}, []string{"pool.yaml:1:8: reading YAML: "}},
		"engines, no pool":   {nil, []string{"pods.yaml", goodSlice}, []string{"pods.yaml:3:30: EndpointSlice default/a: "}},
		"one wrong of two":   {nil, []string{"a.yaml", poolText("m", "m", ""), "b.yaml", poolText("b", "b", ", nam: x")}, []string{"b.yaml:4:25: InferencePool default/b: spec.model.nam"}},
		"two wrong":          {nil, []string{"a.yaml", "x", "b.yaml", "y"}, []string{"a.yaml:1:1: ", "b.yaml:1:1: "}},
		"no such model root": {[]string{"--model-root", "/no/such"}, []string{"a.yaml", poolText("m", "m", "")}, []string{"--model-root /no/such: no such file or directory"}},
	} {
		t.Run(name, func(t *testing.T) {
			status, stdout, stderr := checked(t, tc.args, tc.files...)
			lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
			if status != 1 || stdout != "" || len(lines) != len(tc.want) {
				t.Fatalf("exit status %d, %q, %q; want 1 and %q", status, stdout, stderr, tc.want)
			}
			for i, want := range tc.want {
				if !strings.HasPrefix(lines[i], want) {
					t.Errorf("line %q, want %q", lines[i], want)
				}
			}
		})
	}
}

// Files that are not read because of their names are named if there are no others.
func TestAnEmptyDirectoryIsNamed(t *testing.T) {
	_, _, stderr := checked(t, nil, "pool.yaml.txt", poolText("m", "m", ""), ".pool.yaml.swp", "")
	if !strings.HasSuffix(stderr, " has no file *.yaml, *.yml or *.json; not read: pool.yaml.txt\n") {
		t.Errorf("%q", stderr)
	}
	if _, _, stderr := checked(t, nil); !strings.HasSuffix(stderr, " has no file *.yaml, *.yml or *.json\n") {
		t.Errorf("%q", stderr)
	}
}

func TestValidateIsNotForClusters(t *testing.T) {
	var said bytes.Buffer
	if status := Main([]string{"--pool", "n/p", "--validate"}, &said, &said); status != 2 || !strings.Contains(said.String(), "--validate needs --standalone") {
		t.Errorf("exit status %d, %q", status, said.String())
	}
}

// A picker that can serve nothing says so to whatever asks whether it is ready, and in its log, until there is a pool.
func TestAPickerWithoutAPoolIsNotReady(t *testing.T) {
	for name, content := range map[string]string{"a broken file": "spec: [\n", "an empty file": "", "no object": "# to come\n"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, filepath.Join(dir, "pool.yaml"), content)
			i := runOn(t, dir)
			i.eventually("the log says that no pool is served", func() bool { return strings.Contains(i.logs.String(), "no pool is served") })
			if status, body := i.get(i.listeners.health, "/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "no pool is served: ") {
				t.Errorf("readiness: status %d, %s", status, body)
			}
			put(t, filepath.Join(dir, "pool.yaml"), poolText("m", "m", ""))
			i.awaitReady()
		})
	}
}
