package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/bench"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// pickerProgram builds the picker once.
var pickerProgram = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "kvasir-bench-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "picker")
	if out, err := exec.Command("go", "build", "-o", path, "../picker").CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the picker: %w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := pickerProgram(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// engines starts simulated engines with small caches and returns what --engines says of them.
func engines(t *testing.T, n int) string {
	t.Helper()
	var list []string
	for range n {
		e, err := vllmsim.Start(vllmsim.Config{ServedModelNames: []string{"m"}, SpeedUp: 50, NumBlocks: 4096,
			Events: vllmsim.EventsConfig{Endpoint: "127.0.0.1:0", ReplayEndpoint: "127.0.0.1:0"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		list = append(list, "http://"+e.Addr())
	}
	return strings.Join(list, ",")
}

// small is a load that is over soon.
var small = []string{"--model", "m", "--length", "2s", "--sessions", "900", "--apps", "6", "--system-words", "150", "--answer", "8",
	"--think", "10ms", "--seed", "7"}

func command(t *testing.T, out string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var a, b bytes.Buffer
	code = run(t.Context(), append(append(args, "--out", out), small...), &a, &b)
	return code, a.String(), b.String()
}

func read(t *testing.T, dir string) bench.Report {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r bench.Report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// The whole: a picker in front of engines, turns with both strategies, and reports of what the engines counted.
func TestOneCommandComparesRoundRobinWithKvasir(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the picker")
	}
	program, err := pickerProgram()
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	code, stdout, stderr := command(t, out, "--engines", engines(t, 3), "--picker", program)
	if code != 0 {
		log, _ := os.ReadFile(filepath.Join(out, "picker.log"))
		t.Fatalf("status %d\n%s\n%s\n%s", code, stdout, stderr, log)
	}
	r := read(t, out)
	log, err := os.ReadFile(filepath.Join(out, "picker.log"))
	if err != nil {
		t.Fatal(err)
	}
	// On a busy machine an engine can stand still for so long that another one serves its requests, too. The picker says so.
	most := 1.0
	if strings.Contains(string(log), "shows no progress") {
		most = 1.05
	}
	var order []string
	hits := map[string]float64{}
	for i := range r.Turns {
		turn := &r.Turns[i]
		order = append(order, turn.Way)
		hits[turn.Way] += turn.Figures.HitRatio
		f := &turn.Figures
		if f.Requests < 20 || f.Failed > 0 || f.TTFT.P50 <= 0 || f.PerToken.P50 <= 0 || f.Goodput <= 0 ||
			f.PromptTokens < f.UsagePromptTokens || f.PromptTokens > f.UsagePromptTokens*most {
			t.Errorf("figures %+v\n%s", f, log)
		}
	}
	if diff := cmp.Diff([]string{"RoundRobin", "Kvasir", "Kvasir", "RoundRobin"}, order); diff != "" {
		t.Error(diff)
	}
	if hits["Kvasir"] <= hits["RoundRobin"] {
		t.Errorf("hits by the engines' counters: Kvasir %v, round robin %v (sums of two turns)", hits["Kvasir"], hits["RoundRobin"])
	}
	for _, want := range []string{"turn 1 of 4: RoundRobin", "Prompt tokens from cache", "report.html"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not printed:\n%s", want, stdout)
		}
	}
}

// Two addresses of the user's own, and a load tool of the user's own.
func TestOtherAddressesAndAnotherLoad(t *testing.T) {
	list := engines(t, 2)
	first, second, _ := strings.Cut(list, ",")
	out := t.TempDir()
	code, stdout, stderr := command(t, out, "--engines", list, "--before", first, "--after", second)
	if code != 0 {
		t.Fatalf("status %d\n%s\n%s", code, stdout, stderr)
	}
	for _, turn := range read(t, out).Turns {
		if others := turn.Engines[map[string]int{"Before": 1, "After": 0}[turn.Way]].PromptTokens; others != 0 {
			t.Errorf("the other address got %v tokens in a turn of %s", others, turn.Way)
		}
	}
	out = t.TempDir()
	ask := `echo seed {seed}; curl -sf {url}/v1/completions -H 'content-type: application/json' -d '{"model": "m", "max_tokens": 1, "prompt": "` + strings.Repeat("word ", 99) + `"}'`
	code, stdout, stderr = command(t, out, "--engines", list, "--before", first, "--after", second, "--pairs", "1", "--command", ask)
	if code != 0 {
		t.Fatalf("status %d\n%s\n%s", code, stdout, stderr)
	}
	if log, err := os.ReadFile(filepath.Join(out, "turn-1-Before.log")); err != nil || !strings.Contains(string(log), "seed 1793") {
		t.Errorf("the command's output is %q, error %v", log, err)
	}
	code, _, stderr = command(t, t.TempDir(), "--engines", list, "--before", first, "--after", second, "--command", "exit 3; {url}")
	if code != exitWrong || !strings.Contains(stderr, "exit status 3") {
		t.Errorf("a command that fails: status %d, %q", code, stderr)
	}
}

func TestWhatCannotBeMeasuredIsSaid(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"an engine that is not there":  {[]string{"--engines", "127.0.0.1:1", "--before", "http://a:1", "--after", "http://b:1"}, exitWrong, "reading the counters of http://127.0.0.1:1"},
		"no engines":                   {nil, exitUsage, "want --engines"},
		"one address only":             {[]string{"--engines", "a:1", "--after", "http://b:1"}, exitUsage, "need each other"},
		"the same address":             {[]string{"--engines", "a:1", "--after", "http://b:1", "--before", "http://b:1"}, exitUsage, "same address"},
		"addresses and a picker":       {[]string{"--engines", "a:1", "--after", "http://b:1", "--before", "http://c:1", "--picker", "p"}, exitUsage, "exclude"},
		"an address that is none":      {[]string{"--engines", "a:1", "--after", "b:1", "--before", "http://c:1"}, exitUsage, `"b:1" is no URL`},
		"a command without its target": {[]string{"--engines", "a:1", "--command", "true"}, exitUsage, "lacks {url}"},
		"the same strategy":            {[]string{"--engines", "a:1", "--baseline", "MarginalCost"}, exitUsage, "turns after"},
		"no turns":                     {[]string{"--engines", "a:1", "--pairs", "0"}, exitUsage, "--pairs"},
		"a load of nothing":            {[]string{"--engines", "a:1", "--apps", "0"}, exitUsage, "applications"},
		"a stray word":                 {[]string{"--engines", "a:1", "b:1"}, exitUsage, "unexpected argument"},
		"a model's directory":          {[]string{"--engines", "a:1", "--model-dir", dir}, exitUsage, "tokenizer.json"},
		"a key that is not there":      {[]string{"--engines", "a:1", "--key-file", dir + "/none"}, exitUsage, "--key-file"},
		"an unknown flag":              {[]string{"--engine", "a:1"}, exitUsage, "did you mean --engines?"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := append([]string{"--model", "m", "--out", dir}, tc.args...)
			code := run(t.Context(), args, &stdout, &stderr)
			if code != tc.code || !strings.Contains(stderr.String(), tc.want) || strings.Count(stderr.String(), "\n") != 1 {
				t.Errorf("status %d, %q; want %d and one line with %q", code, stderr.String(), tc.code, tc.want)
			}
		})
	}
}

func TestHelpAndVersion(t *testing.T) {
	for arg, want := range map[string]string{"--help": "Example:\n  kvasir-bench --engines", "--version": "kvasir-bench dev"} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), []string{arg}, &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), want) || stderr.Len() > 0 {
			t.Errorf("%s: status %d, stdout %q, stderr %q", arg, code, stdout.String(), stderr.String())
		}
	}
}

func TestCommandsAreQuoted(t *testing.T) {
	if got, want := fill("x {url} {model} {seed}", "http://a", "it's", 3), `x 'http://a' 'it'\''s' 3`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
