package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/hack/images/oci"
)

func TestTheSameSourcesMakeTheSameImageAndList(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	var runs []map[string][]byte
	for range 2 {
		o, err := parse([]string{"-out", t.TempDir(), "-tag", "v9", "vllmsim"}, "1700000000", io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if err := o.run(t.Context(), io.Discard); err != nil {
			t.Fatal(err)
		}
		files := map[string][]byte{}
		for _, pattern := range []string{"vllmsim.tar", "vllmsim_*.spdx.json"} {
			names, err := filepath.Glob(filepath.Join(o.out, pattern))
			if err != nil || len(names) != 1 {
				t.Fatalf("%s: %v %v", pattern, names, err)
			}
			if files[filepath.Base(names[0])], err = os.ReadFile(names[0]); err != nil {
				t.Fatal(err)
			}
		}
		runs = append(runs, files)
	}
	for name, content := range runs[0] {
		if !bytes.Equal(content, runs[1][name]) {
			t.Errorf("%s differs between two runs", name)
		}
		if bytes.Contains(content, []byte(root)) {
			t.Errorf("%s contains the path where it was built", name)
		}
		if list, ok := strings.CutSuffix(name, ".spdx.json"); ok {
			checkList(t, list, content)
		}
	}
}

func checkList(t *testing.T, name string, raw []byte) {
	t.Helper()
	var d document
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{"SPDXRef-DOCUMENT": true}
	modules := map[string]string{}
	for _, p := range d.Packages {
		if ids[p.ID] {
			t.Errorf("%s has %s twice", name, p.ID)
		}
		ids[p.ID] = true
		modules[p.Name] = p.Version
	}
	for _, r := range d.Relationships {
		if !ids[r.From] || !ids[r.To] {
			t.Errorf("%s relates what is not there: %+v", name, r)
		}
	}
	// Of what the simulator is linked from, one module that will stay and the library that is always there.
	if modules["stdlib"] == "" || modules["github.com/go-logr/logr"] == "" {
		t.Errorf("%s lists %v", name, modules)
	}
	if p := d.Packages[0]; p.Version != "v9" || p.Name != "github.com/kvasir-dev/kvasir/cmd/vllmsim" || len(p.Checksums) != 1 {
		t.Errorf("%s describes %+v", name, p)
	}
	if d.Creation.Created != "2023-11-14T22:13:20Z" {
		t.Errorf("%s was made at %s", name, d.Creation.Created)
	}
}

// Images have no file with certificates of authorities. Programs that verify certificates by authorities include them.
func TestProgramsThatSpeakTLSBringTheAuthorities(t *testing.T) {
	const roots, module = "golang.org/x/crypto/x509roots/fallback", "github.com/kvasir-dev/kvasir/"
	speakers := []string{module + "internal/engines/transport", module + "internal/tracing", module + "internal/usageotlp"} // to engines, and to collectors
	asked := 0
	for _, component := range components {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", module+"cmd/"+component).Output()
		if err != nil {
			t.Fatal(err)
		}
		deps := strings.Fields(string(out))
		if !slices.ContainsFunc(speakers, func(s string) bool { return slices.Contains(deps, s) }) {
			continue
		}
		asked++
		if !slices.Contains(deps, roots) {
			t.Errorf("%s trusts no certificate where there is no file of authorities", component)
		}
	}
	if asked < 3 {
		t.Errorf("%d programs speak TLS", asked)
	}
}

// The Dockerfile makes images with the same program, users, labels and way to start.
func TestTheDockerfileMakesTheSameImages(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	o := &options{tag: "v9", revision: "abc"}
	i, err := o.image("picker", "arm64", "LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	docker := strings.NewReplacer("${COMPONENT}", "picker", "${VERSION}", "v9", "${REVISION}", "abc", "\\\n", " ",
		"$PACKAGE", "github.com/kvasir-dev/kvasir/internal/version", "$VERSION", "v9", "$REVISION", "abc").Replace(string(text))
	labels := map[string]string{}
	for _, m := range regexp.MustCompile(`(org\.opencontainers\.[a-z.]+)="([^"]*)"`).FindAllStringSubmatch(docker, -1) {
		labels[m[1]] = m[2]
	}
	if diff := cmp.Diff(i.Labels, labels); diff != "" {
		t.Errorf("labels (-images +Dockerfile):\n%s", diff)
	}
	entry, err := json.Marshal(i.Entrypoint)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"USER " + oci.User, "ENTRYPOINT " + string(entry)} {
		if !strings.Contains(docker, "\n"+line+"\n") {
			t.Errorf("the Dockerfile has no line %q", line)
		}
	}
	for _, flag := range o.buildFlags() {
		if !strings.Contains(strings.ReplaceAll(docker, `"`, ""), " "+flag+" ") {
			t.Errorf("the Dockerfile builds without %s", flag)
		}
	}
	users := regexp.MustCompile(`printf '([^']*)' >/out(/etc/[a-z]+)`).FindAllStringSubmatch(docker, -1)
	written := map[string]string{}
	for _, m := range users {
		written[m[2]] = strings.ReplaceAll(m[1], `\n`, "\n")
	}
	want := map[string]string{}
	for _, f := range oci.Users() {
		want[f.Path] = string(f.Content)
	}
	if diff := cmp.Diff(want, written); diff != "" {
		t.Errorf("users (-images +Dockerfile):\n%s", diff)
	}
}

func TestWrongFlagsAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		args  []string
		epoch string
	}{
		"a component that there is not": {args: []string{"pickers"}},
		"an architecture twice":         {args: []string{"-arch", "amd64,amd64"}},
		"no architecture":               {args: []string{"-arch", "amd64,"}},
		"a time that is none":           {epoch: "yesterday"},
	} {
		if _, err := parse(tc.args, tc.epoch, io.Discard); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// TestTheListHasEachModuleOfTheProgram: as the go command reads them from it, with their versions and checksums, and no other.
func TestTheListHasEachModuleOfTheProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT RUN: it links all programs")
	}
	t.Chdir(filepath.Join("..", ".."))
	for _, component := range components {
		o, err := parse([]string{"-out", t.TempDir(), "-tag", "v9", component}, "1700000000", io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		binary, err := o.build(t.Context(), component, o.arches[0])
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "go", "version", "-m", binary).Output()
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{}
		for line := range strings.Lines(string(out)) {
			switch f := append(strings.Fields(line), "", "", ""); f[0] {
			case binary + ":":
				want["stdlib"] = strings.TrimPrefix(f[1], "go") + " "
			case "path":
				want[f[1]] = "v9 "
			case "dep":
				want[f[1]] = f[2] + " " + f[3]
			case "=>":
				t.Fatalf("%s has a replaced module, which this test does not know: %s", component, line)
			}
		}
		raw, err := spdx(o.name(component), o.tag, o.arches[0], binary, o.created)
		if err != nil {
			t.Fatal(err)
		}
		var list document
		if err := json.Unmarshal(raw, &list); err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, p := range list.Packages {
			got[p.Name] = p.Version + " " + strings.TrimPrefix(p.Comment, "go.sum ")
			if name := "pkg:golang/" + p.Name + "@" + p.Version; len(p.Checksums) == 0 && (len(p.Refs) != 1 || p.Refs[0].Locator != name) {
				t.Errorf("%s: %s has the references %v, want %s", component, p.Name, p.Refs, name)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || len(want) < 3 {
			t.Errorf("%s: %s", component, diff)
		}
	}
}
