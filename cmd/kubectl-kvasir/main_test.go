package main

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kvasir-dev/kvasir/test/docpage"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// exec runs the program on input and returns what it wrote.
func exec(t *testing.T, input string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), args, stdio{In: strings.NewReader(input), Out: &out, Err: &errs})
	return status, out.String(), errs.String()
}

func TestCommandLine(t *testing.T) {
	for name, tc := range map[string]struct {
		args   string
		status int
		out    string // part of what is written: help that was asked for on standard output, all else on standard error
	}{
		"no command":                    {"", 2, "events"},
		"an unknown command":            {"bake", 2, `unknown command "bake"`},
		"help":                          {"help", 0, "events"},
		"an unknown command of a group": {"rollout bake", 2, `unknown command "bake"`},
		"the lab, which has moved":      {"lab run --speed 2", 2, "kvasir-lab"},
		"a file that is missing":        {"validate", 2, "the file is missing"},
		"a file that is not there":      {"validate testdata/none", 1, "reading testdata/none"},
		"no picker to gather":           {"sysdump --kubeconfig /dev/null", 1, "set KUBECONFIG or --kubeconfig"},
		"names of what has none":        {"explain -o name", 2, "want table, json, yaml"},
		"a path that is none":           {"status -o jsonpath={", 2, "--output"},
		"a picker under an old name":    {"trace --picker 127.0.0.1:1", 1, "connection refused"},
		"a command that is nearly one":  {"tokenise", 2, `did you mean "tokenize"?`},
		"help of a command":             {"events -h", 0, "--engine"},
		"a flag with a typo":            {"events --tpic x", 2, "unknown flag: --tpic, did you mean --topic?"},
		"an unknown flag":               {"events --heat", 2, "--heat"},
		"an argument too many":          {"events frame.hex", 2, `unexpected argument "frame.hex"`},
		"an unknown engine":             {"events --engine steam", 2, `unknown engine "steam"`},
		"no tokenizer":                  {"tokenize", 2, "--tokenizer is missing"},
		"a tokenizer that is none":      {"tokenize --tokenizer testdata", 1, "tokenizer.json"},
		"no template":                   {"render", 2, "--template is missing"},
		"a template that is gone":       {"render --template testdata/none", 1, "reading the template: "},
		"a time that is none":           {"render --template x --now noon", 2, "--now: "},
		"a time without a chat":         {"tokenize --tokenizer x --now 2026-11-20T08:00:00Z", 2, "need --chat"},
		"two routes":                    {"tokenize --tokenizer x --chat --completions", 2, "exclude"},
		"no pod":                        {"drain", 2, "the pod is missing"},
		"two pods":                      {"undrain a b", 2, `unexpected argument "b"`},
		"a deadline without an end":     {"drain a --deadline 5s", 2, "--deadline needs --replace"},
		"no request":                    {"explain", 2, "--filename is missing"},
		"a request that is gone":        {"explain -f testdata/none", 1, "reading testdata/none"},
		"an unknown format":             {"status -o xml", 2, "want table, json, yaml"},
		"a URL that is none":            {"status --picker ftp://a", 2, "--picker"},
		"a picker that is none":         {"prefixes --picker 127.0.0.1:1", 1, "connection refused"},
		"too many prefixes":             {"prefixes --limit 101", 2, "want 1 to 100"},
		"too many decisions":            {"decisions --tail 513", 2, "want 0 to 512"},
		"a picture every millisecond":   {"top --interval 1ms", 2, "want 200ms or more"},
		"a cluster that is not there":   {"status --kubeconfig /dev/null", 1, "set KUBECONFIG or --kubeconfig"},
		"names and all namespaces":      {"status a -A --picker 127.0.0.1:1", 2, "excludes names"},
		"no manifest":                   {"inject --pool a", 2, "--filename is missing"},
		"a publisher that is none":      {"events --connect tcp://127.0.0.1:1", 1, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			status, stdout, stderr := exec(t, "", strings.Fields(tc.args)...)
			if status != tc.status {
				t.Errorf("status is %d, want %d", status, tc.status)
			}
			if !strings.Contains(stdout+stderr, tc.out) {
				t.Errorf("nothing of %q in %q and %q", tc.out, stdout, stderr)
			}
			if tc.status == 2 && tc.args != "" && strings.Count(stderr, "\n") != 1 {
				t.Errorf("a wrong command line has more than a line: %q", stderr)
			}
			if (tc.status == 0) != (stdout != "") {
				t.Errorf("standard output has %q", stdout)
			}
		})
	}
}

// trickle gives its pieces one by one, each when the one before has been answered.
type trickle struct {
	pieces []string
	before func(i int)
	i      int
}

func (r *trickle) Read(p []byte) (int, error) {
	r.before(r.i)
	if r.i == len(r.pieces) {
		return 0, io.EOF
	}
	n := copy(p, r.pieces[r.i])
	r.i++
	return n, nil
}

func TestAnswersDoNotWaitForTheNextLine(t *testing.T) {
	var out bytes.Buffer
	want := []int{0, 1, 2}
	in := &trickle{pieces: []string{"zz\n", "zz\n"}, before: func(i int) {
		if got := strings.Count(out.String(), "\n"); got != want[i] {
			t.Errorf("%d answers before line %d is read", got, i)
		}
	}}
	if status := run(t.Context(), []string{"events"}, stdio{In: in, Out: &out, Err: io.Discard}); status != 0 {
		t.Errorf("status is %d", status)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
func (broken) Read([]byte) (int, error)  { return 0, io.ErrUnexpectedEOF }

func TestBrokenPipesAreTold(t *testing.T) {
	for name, tc := range map[string]struct {
		std  stdio
		want string
	}{
		"out": {stdio{In: strings.NewReader("90\n"), Out: broken{}}, "writing: "},
		"in":  {stdio{In: broken{}, Out: io.Discard}, "reading: "},
	} {
		t.Run(name, func(t *testing.T) {
			var errs bytes.Buffer
			tc.std.Err = &errs
			if status := run(t.Context(), []string{"events"}, tc.std); status != 1 || !strings.Contains(errs.String(), tc.want) {
				t.Errorf("status is %d, said %q", status, errs.String())
			}
		})
	}
}

func TestSignalsEndTheReading(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	in := &trickle{pieces: []string{"zz\n", "zz\n", "zz\n"}, before: func(i int) {
		if i == 1 {
			cancel()
		}
	}}
	if status := run(ctx, []string{"events"}, stdio{In: in, Out: &out, Err: io.Discard}); status != 0 {
		t.Errorf("status is %d", status)
	}
	if got := strings.Count(out.String(), "\n"); got != 2 {
		t.Errorf("%d answers", got)
	}
}

// TestInjectNeedsNoClusterWhereAllIsSaid: as the page shows it, with the pool in the file.
func TestInjectNeedsNoClusterWhereAllIsSaid(t *testing.T) {
	status, out, errs := exec(t, "", "inject", "-f", "../../internal/cli/workload/testdata/deployment.yaml", "--reporter-image", "kvasir/reporter:dev", "--kubeconfig", "/dev/null")
	if status != 0 || !strings.Contains(out, "image: kvasir/reporter:dev") {
		t.Errorf("status %d, %s", status, errs)
	}
	const command = "kubectl kvasir inject -f deployment.yaml --reporter-image kvasir/reporter:dev > injected.yaml"
	if err := docpage.Check("kubectl-kvasir.md", command, errs, *update); err != nil {
		t.Error(err)
	}
}

// TestEveryCommandIsOnThePage, and says what it does.
func TestEveryCommandIsOnThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/kubectl-kvasir.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range newRoot(stdio{}).Commands() {
		if c.Hidden {
			continue
		}
		if c.Short == "" || c.Long == "" {
			t.Errorf("%s does not say what it does", c.Name())
		}
		if !strings.Contains(string(page), "`"+c.Name()) && !strings.Contains(string(page), "`"+c.Name()+" ") {
			t.Errorf("%s is not on the page", c.Name())
		}
	}
}

// TestEveryHelpHasAnExample that names the command, and whose flags the command has.
func TestEveryHelpHasAnExample(t *testing.T) {
	seen := 0
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		if path := strings.TrimPrefix(strings.TrimPrefix(c.CommandPath(), program), " "); !c.Hidden {
			seen++
			if !strings.Contains(c.Example, "  "+strings.TrimSpace(program+" "+path)) {
				t.Errorf("the help of %q has no example of it: %q", path, c.Example)
			}
		}
		for line := range strings.Lines(c.Example) {
			command, is := strings.CutPrefix(strings.TrimSpace(line), program+" ")
			if !is {
				continue
			}
			command, _, _ = strings.Cut(command, " <")
			command, _, _ = strings.Cut(command, " |")
			target, rest, err := newRoot(stdio{}).Find(strings.Fields(command))
			if err != nil {
				t.Errorf("%s: %v", line, err)
				continue
			}
			if err := target.ParseFlags(rest); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
		for _, below := range c.Commands() {
			look(below)
		}
	}
	look(newRoot(stdio{}))
	if seen < 20 {
		t.Errorf("%d commands were looked at", seen)
	}
}

// TestValidateTellsGoodFilesFromBadOnes by its exit status.
func TestValidateTellsGoodFilesFromBadOnes(t *testing.T) {
	const pool = "apiVersion: kvasir.dev/v1alpha1\nkind: InferencePool\nmetadata: {name: chat}\nspec: {model: {name: m}, selector: {matchLabels: {app: m}}}\n"
	if status, out, errs := exec(t, pool, "validate", "-"); status != 0 || out != "1 pool, 0 policies, 0 problems\n" || errs != "" {
		t.Errorf("status %d, %s%s", status, out, errs)
	}
	dir := t.TempDir() // with two pools of one model
	for _, name := range []string{"chat", "other"} {
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(strings.Replace(pool, "name: chat", "name: "+name, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if status, out, _ := exec(t, "", "validate", dir); status != 1 || !strings.Contains(out, "a name of InferencePool default/chat") {
		t.Errorf("status %d, %s", status, out)
	}
	if status, out, _ := exec(t, strings.Replace(pool, "model:", "mode:", 1), "validate", "-"); status != 1 || !strings.Contains(out, "error: stdin.yaml:4:8: ") {
		t.Errorf("status %d, %s", status, out)
	}
}

// TestValuesAreCompleted: those of flags that take one of some, and contexts of the kubeconfig.
func TestValuesAreCompleted(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	const text = "apiVersion: v1\nkind: Config\ncontexts:\n- {name: east, context: {cluster: a, user: u}}\n- {name: west, context: {cluster: b, user: u}}\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"status -o":       "table\njson\nyaml\njsonpath=\nwide\nname\n:4\n",
		"explain -o":      "table\njson\nyaml\njsonpath=\n:4\n",
		"events --engine": "vllm\nsglang\n:4\n",
		"version -o":      "table\njson\nyaml\njsonpath=\n:4\n",
		"status --kubeconfig " + kubeconfig + " --context": "east\tcluster a\nwest\tcluster b\n:4\n",
	} {
		if status, out, _ := exec(t, "", append(append([]string{"__complete"}, strings.Fields(args)...), "")...); status != 0 || out != want {
			t.Errorf("%s: status %d, %q, want %q", args, status, out, want)
		}
	}
}
