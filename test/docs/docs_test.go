// Package docs keeps the documentation correct: commands in it are run by tests or declare what they need, links lead
// somewhere, and lists are complete.
package docs

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/test/docpage"
)

var update = flag.Bool("update", false, "write the list of fuzz targets in docs/security.md")

const root = "../.."

// pages are those that are looked at: all of docs/, and the repository's own.
func pages(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(root + "/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, path := range append(paths, root+"/README.md", root+"/CONTRIBUTING.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimPrefix(path, root+"/")] = string(text)
	}
	if len(all) < 15 {
		t.Fatalf("only %d pages", len(all))
	}
	return all
}

// needs are what commands can need that tests lack: a GPU, a gateway's own programs, a registry, more time than a test has.
var needs = []string{"gpu", "gateway", "registry", "time"}

func TestEveryCommandIsTestedOrSaysWhatItNeeds(t *testing.T) {
	names, n := testNames(t), 0
	for page, text := range pages(t) {
		for _, line := range docpage.Unfenced(text) {
			t.Errorf("%s:%d: code without a fence: cannot decide if it is commands", page, line)
		}
		for _, b := range docpage.Blocks(page, text) {
			n++
			kind, what, _ := strings.Cut(b.Mark, ": ")
			switch kind {
			case "":
				t.Errorf("%s:%d: commands without a mark: <!-- tested by: TestName -->, <!-- run: NAME -->, <!-- flags: PROGRAM --> or <!-- needs: %s -->",
					b.Page, b.Line, strings.Join(needs, "|"))
			case "needs":
				if !slices.Contains(needs, what) {
					t.Errorf("%s:%d: unknown need %q", b.Page, b.Line, what)
				}
			case "run":
				if !slices.Contains(docpage.Scripts[what], b.Page) {
					t.Errorf("%s:%d: no test runs %q", b.Page, b.Line, what)
				}
			case "tested by":
				for name := range strings.SplitSeq(what, ",") {
					if !names[strings.TrimSpace(name)] {
						t.Errorf("%s:%d: there is no test %q", b.Page, b.Line, name)
					}
				}
			}
		}
	}
	if n < 60 {
		t.Errorf("only %d blocks of commands were found", n)
	}
	for name, pages := range docpage.Scripts {
		for _, page := range pages {
			if _, err := docpage.Script(page, name); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestWhatIsNotRunIsThereAllTheSame: targets of make, tests, benchmarks, scripts, and the flags of programs, in commands that
// take too long or whose program is started otherwise.
func TestWhatIsNotRunIsThereAllTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds programs")
	}
	names := testNames(t)
	for page, text := range pages(t) {
		for _, b := range docpage.Blocks(page, text) {
			program, flags := strings.CutPrefix(b.Mark, "flags: ")
			if b.Mark != "needs: time" && !flags {
				continue
			}
			for line := range strings.Lines(strings.ReplaceAll(b.Text, "\\\n", " ")) {
				line, _, _ = strings.Cut(line, " #")
				words := strings.Fields(quotedCommand.ReplaceAllString(line, "'…'"))
				for len(words) > 0 && strings.Contains(words[0], "=") {
					words = words[1:] // the environment
				}
				if len(words) == 0 || words[0] == "#" {
					continue
				}
				if err := isThere(t, words, names); err != nil {
					t.Errorf("%s:%d: %s: %v", b.Page, b.Line, strings.TrimSpace(line), err)
				}
				if flags && filepath.Base(words[0]) != program && words[0] != "go" {
					t.Errorf("%s:%d: %s is not %s", b.Page, b.Line, words[0], program)
				}
			}
		}
	}
}

// quotedCommand is a command with flags of its own in single quotes.
var quotedCommand = regexp.MustCompile(`'[^']* --[^']*'`)

// isThere says why a command could not be run.
func isThere(t *testing.T, words []string, names map[string]bool) error {
	t.Helper()
	switch name := filepath.Base(words[0]); name {
	case "make":
		return inRoot(t, append([]string{"make", "-n"}, words[1:]...)...)
	case "go":
		if words[1] == "build" {
			return inRoot(t, append([]string{"go", "list"}, words[len(words)-1])...)
		}
		if err := inRoot(t, "go", "list", words[slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "./") })]); err != nil {
			return err
		}
		for _, flag := range []string{"-run", "-bench"} {
			pattern := strings.Trim(after(words, flag), "'")
			if pattern != "" && pattern != "^$" && !slices.ContainsFunc(slices.Collect(maps.Keys(names)), regexp.MustCompile(pattern).MatchString) {
				return fmt.Errorf("there is no %s %s", flag, pattern)
			}
		}
		return nil
	case "picker", "reporter", "kubectl-kvasir", "kvasir-bench", "kvasir-lab":
		args := []string{"go", "run", "./cmd/" + name}
		for _, w := range words[1:] { // the subcommands
			if strings.HasPrefix(w, "-") {
				break
			}
			args = append(args, w)
		}
		usage, err := output(t, append(args, "--help")...)
		if err != nil {
			return err
		}
		for _, w := range words[1:] {
			flag, _, _ := strings.Cut(w, "=")
			if name, ok := strings.CutPrefix(flag, "--"); ok && !regexp.MustCompile(`(?m)^ +(-., )?--?`+name+`\b`).MatchString(usage) {
				return fmt.Errorf("%s has no flag %s", strings.Join(args[2:], " "), flag)
			}
		}
		return nil
	}
	_, err := exec.LookPath(filepath.Join(root, words[0]))
	return err
}

func after(words []string, flag string) string {
	if i := slices.Index(words, flag); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

func inRoot(t *testing.T, args ...string) error {
	t.Helper()
	_, err := output(t, args...)
	return err
}

func output(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, tail(string(out)))
	}
	return string(out), nil
}

var testName = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Za-z0-9_]+)\(`)

// source calls f for every Go test file of the repository, in an order of its own.
func source(t *testing.T, f func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "bin" || d.Name() == "out"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		f(path, string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func testNames(t *testing.T) map[string]bool {
	names := map[string]bool{}
	source(t, func(_, text string) {
		for _, m := range testName.FindAllStringSubmatch(text, -1) {
			names[m[1]] = true
		}
	})
	return names
}

// anchors of a page, as they are made of its headings.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		name := strings.ReplaceAll(strings.ToLower(odd.ReplaceAllString(strings.TrimSpace(m[1]), "")), " ", "-")
		for unique, i := name, 1; ; i++ {
			if !all[unique] {
				all[unique] = true
				break
			}
			unique = fmt.Sprintf("%s-%d", name, i)
		}
	}
	return all
}

// TestLinksLeadSomewhere: files are there, and headings.
func TestLinksLeadSomewhere(t *testing.T) {
	all := pages(t)
	for page, text := range all {
		for _, m := range link.FindAllStringSubmatch(span.ReplaceAllString(text, ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			to := page
			if file != "" {
				to = filepath.ToSlash(filepath.Join(filepath.Dir(page), file))
				if _, err := os.Stat(filepath.Join(root, to)); err != nil {
					t.Errorf("%s links to %s, which is not there", page, m[1])
					continue
				}
			}
			if known, ok := all[to]; ok && anchor != "" && !anchors(known)[anchor] {
				t.Errorf("%s links to %s, and %s has no such heading", page, m[1], to)
			}
		}
	}
}

var metric = regexp.MustCompile("`(kvasir_[a-z0-9_]+)")

// TestMetricsThatAreNamedAreThere: each metric that a page names is in the tables of docs/metrics.md, if not under its full
// name, as the beginning of several.
func TestMetricsThatAreNamedAreThere(t *testing.T) {
	all := pages(t)
	for page, text := range all {
		for _, m := range metric.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(all["docs/metrics.md"], "`"+m[1]) {
				t.Errorf("%s names %s, which docs/metrics.md does not", page, m[1])
			}
		}
	}
}

var (
	asksForExplanation = regexp.MustCompile(`x-kvasir-explain: true`)
	allowsExplanation  = regexp.MustCompile(`answerHeaders: (OnRequest|Always)|config/samples/standalone`)
)

// TestExplanationsThatPagesAskForAreAllowed: by default answers carry no explanation, so that a page which asks for one
// shows before it, in the same section or an earlier one, the policy that allows it, or uses samples that have it.
func TestExplanationsThatPagesAskForAreAllowed(t *testing.T) {
	sample, err := os.ReadFile(filepath.Join(root, "config/samples/standalone/policy.yaml"))
	if err != nil || !strings.Contains(string(sample), "answerHeaders: OnRequest") {
		t.Errorf("config/samples/standalone allows no explanations (%v)", err)
	}
	for page, text := range pages(t) {
		asks := asksForExplanation.FindStringIndex(text)
		if asks == nil {
			continue
		}
		allows := allowsExplanation.FindStringIndex(text)
		if allows == nil || allows[0] > asks[0] {
			t.Errorf("%s asks for an explanation and shows no policy that allows it before", page)
		}
	}
}

var conditionName = regexp.MustCompile(`(?m)^\tCondition[A-Za-z]+ += "([A-Za-z./]+)"`)

// TestTroubleshootingBeginsWithEveryCondition of pools and policies. What each reason means stands in docs/operations.md.
func TestTroubleshootingBeginsWithEveryCondition(t *testing.T) {
	source, err := os.ReadFile(root + "/api/v1alpha1/names.go")
	if err != nil {
		t.Fatal(err)
	}
	all := conditionName.FindAllStringSubmatch(string(source), -1)
	if len(all) < 14 {
		t.Errorf("only %d conditions were found", len(all))
	}
	page := pages(t)["docs/troubleshooting.md"]
	for _, m := range all {
		if !strings.Contains(page, "\n| `"+m[1]+"` |") {
			t.Errorf("docs/troubleshooting.md does not begin with %s", m[1])
		}
	}
}

// The places where the code of an error is written: as a field, as a constant, as a reason of a limit, and as an argument of the
// functions that make errors.
var (
	errorCode  = regexp.MustCompile(`(?:[cC]ode: +|[cC]ode[A-Z][A-Za-z]+ += |refusal\(Refused\w+, http\.Status\w+, |(?:unavailable|badGateway)\()"([a-z_]+)"`)
	limitCodes = regexp.MustCompile(`return \[\.\.\.\]string\{"", ([^}]+)\}`)
	codeRow    = regexp.MustCompile("(?m)^\\| ((?:`[a-z_]+`(?:, )?)+) \\| [0-9]{3}")
)

// TestTheClientAPIHasEveryError of the proxy and of the endpoint picker, and no others.
func TestTheClientAPIHasEveryError(t *testing.T) {
	got := map[string]bool{}
	for _, pattern := range []string{"internal/picker/errors.go", "internal/tenant/meter.go", "internal/gateway/extproc/*.go", "internal/gateway/httpproxy/*.go",
		"internal/gateway/request/*.go"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range errorCode.FindAllStringSubmatch(string(source), -1) {
				got[m[1]] = true
			}
			if m := limitCodes.FindStringSubmatch(string(source)); m != nil && strings.HasSuffix(file, "meter.go") {
				for code := range strings.SplitSeq(m[1], ", ") {
					got[strings.Trim(code, `"`)] = true
				}
			}
		}
	}
	want := map[string]bool{}
	for _, m := range codeRow.FindAllStringSubmatch(pages(t)["docs/client-api.md"], -1) {
		for code := range strings.SplitSeq(m[1], ", ") {
			want[strings.Trim(code, "`")] = true
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || len(got) < 20 {
		t.Errorf("%d codes; (-page +code):\n%s", len(got), diff)
	}
}

// TestEveryPageIsInTheIndex: docs/README.md leads to each.
func TestEveryPageIsInTheIndex(t *testing.T) {
	all := pages(t)
	for page := range all {
		if name, ok := strings.CutPrefix(page, "docs/"); ok && name != "README.md" && !strings.Contains(all["docs/README.md"], "("+name+")") {
			t.Errorf("docs/README.md does not lead to %s", name)
		}
	}
}

// TestThePagesWorkAsWritten runs their commands one after the other, in a network of its own, where no other process has the
// ports.
func TestThePagesWorkAsWritten(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds programs and starts them")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	if err := exec.CommandContext(ctx, "unshare", "--net", "ip", "link", "set", "lo", "up").Run(); err != nil {
		t.Skipf("no network of its own can be had here (%v), and the ports of the pages may be in use", err)
	}
	// A copy of the sources, so that what is built lies elsewhere. Modules are fetched and compiled while there is a network.
	dir := t.TempDir()
	fetch := exec.CommandContext(ctx, "bash", "-c", `set -eu -o pipefail; go build -trimpath -o "$1/.built/" ./cmd/...; git ls-files -co --exclude-standard -z | tar -c --null -T - | tar -x -C "$1"`, "fetch", dir)
	fetch.Dir = root
	if out, err := fetch.CombinedOutput(); err != nil {
		t.Fatalf("copying the sources: %v\n%s", err, out)
	}
	for name, wants := range map[string][]string{
		"hand":       {"x-kvasir-endpoint: pod-", `"unit":"seconds"`, `"candidates":[{"pod":"pod-`},
		"standalone": {"x-kvasir-endpoint: ", "http/1.1 200 ok", "kind: inferencepool"},
		"tls":        {"http/2 200", `"finish_reason":"length"`},
		"key":        {"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"},
	} {
		t.Run(name, func(t *testing.T) {
			out := script(t, dir, name)
			if line := firstError(out); line != "" {
				t.Errorf("the commands cause an error: %s", line)
			}
			for _, want := range wants {
				if !strings.Contains(out, want) {
					t.Errorf("no %s in\n%s", want, tail(out))
				}
			}
		})
	}
}

// script runs the commands of a name in a directory, and gives what they print, in lower case.
func script(t *testing.T, dir, name string) string {
	t.Helper()
	commands := "set -eu -o pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\nip link set lo up\n"
	for _, page := range docpage.Scripts[name] {
		text, err := docpage.Script(page, name)
		if err != nil {
			t.Fatal(err)
		}
		commands += text
	}
	run := exec.CommandContext(t.Context(), "unshare", "--net", "--pid", "--fork", "--kill-child", "bash", "-c", commands)
	run.Dir = dir
	run.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false", "PWD="+dir, "KEY=test")
	var out bytes.Buffer
	run.Stdout, run.Stderr = &out, &out
	if err := run.Run(); err != nil {
		t.Fatalf("%v\n%s", err, tail(out.String()))
	}
	return strings.ToLower(out.String())
}

// firstError is the first line of a log in a text that reports an error, in either format; empty without one.
func firstError(out string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, "level=error") || strings.Contains(line, `"level":"error"`) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// TestErrorsOfPagesAreFound: a page whose commands make a program log an error fails.
func TestErrorsOfPagesAreFound(t *testing.T) {
	fine := "time=x level=info msg=started err=none\nno error here\n"
	for out, want := range map[string]string{
		fine: "", fine + "time=x level=error msg=bad\n" + fine: "time=x level=error msg=bad", "{\"level\":\"error\"}\n": `{"level":"error"}`,
	} {
		if got := firstError(out); got != want {
			t.Errorf("%q: %q, want %q", out, got, want)
		}
	}
}

// TestCommandsDoNotNeedGNUTools: BSD's sed takes the argument of -i for a suffix, and macOS has services at ports 5000 and 7000.
func TestCommandsDoNotNeedGNUTools(t *testing.T) {
	gnu := regexp.MustCompile(`\bsed -i\b|\bgrep -\w*P|\breadlink -f\b|\bdate -d\b|\bxargs -r\b|\bbase64 -w|-port 500|-port 700`)
	for _, name := range []string{"hand", "standalone", "key", "tls"} {
		for _, page := range docpage.Scripts[name] {
			text, err := docpage.Script(page, name)
			if err != nil {
				t.Fatal(err)
			}
			if found := gnu.FindString(text); found != "" {
				t.Errorf("%s: %q", page, found)
			}
		}
	}
}

func tail(s string) string { return s[max(0, len(s)-4000):] }

// TestTheVulnerabilityCheckNeverFailsWithoutItsDatabase: it says that nothing was checked.
func TestTheVulnerabilityCheckNeverFailsWithoutItsDatabase(t *testing.T) {
	run := exec.CommandContext(t.Context(), root+"/hack/vulncheck.sh")
	run.Env = append(os.Environ(), "GOVULNDB=http://127.0.0.1:1")
	out, err := run.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "cannot be reached: nothing was checked") {
		t.Errorf("%v\n%s", err, out)
	}
}
