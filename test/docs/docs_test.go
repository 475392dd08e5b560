// Package docs keeps the documentation true: commands in it are run by tests or say what they need, links lead somewhere,
// and lists are whole.
package docs

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
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

// block is commands in a page.
type block struct {
	page string
	line int
	mark string // what stands above it: "run: NAME", "needs: WHAT", "tested by: NAMES"
	text string
}

var (
	fence = regexp.MustCompile("^ *```(sh|bash|shell|console)$")
	mark  = regexp.MustCompile(`^ *<!-- ((?:run|needs|tested by): .+) -->$`)
	// whole marks all commands of a page that have no mark of their own.
	whole = regexp.MustCompile(`(?m)^<!-- commands (tested by: .+|need: .+) -->$`)
)

func blocks(page, text string) (all []block) {
	usual := ""
	if m := whole.FindStringSubmatch(text); m != nil {
		usual = strings.Replace(m[1], "need: ", "needs: ", 1)
	}
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		if !fence.MatchString(lines[i]) {
			continue
		}
		b := block{page: page, line: i + 1, mark: usual}
		for j := i - 1; j >= 0 && j >= i-2; j-- {
			if m := mark.FindStringSubmatch(lines[j]); m != nil {
				b.mark = m[1]
				break
			} else if strings.TrimSpace(lines[j]) != "" {
				break
			}
		}
		for i++; i < len(lines) && !strings.HasPrefix(strings.TrimSpace(lines[i]), "```"); i++ {
			b.text += lines[i] + "\n"
		}
		all = append(all, b)
	}
	return all
}

// needs are what commands may need that tests have not.
var needs = []string{"gpu", "cluster", "time"}

// scripts are those of the marks "run: NAME", and their pages. TestThePagesWorkAsWritten runs them.
var scripts = map[string]string{"hand": "docs/quickstart.md", "standalone": "docs/standalone.md"}

func TestEveryCommandIsTestedOrSaysWhatItNeeds(t *testing.T) {
	names, n := testNames(t), 0
	for page, text := range pages(t) {
		for _, b := range blocks(page, text) {
			n++
			kind, what, _ := strings.Cut(b.mark, ": ")
			switch kind {
			case "":
				t.Errorf("%s:%d: commands without a mark: <!-- tested by: TestName -->, <!-- run: NAME --> or <!-- needs: %s -->", b.page, b.line, strings.Join(needs, "|"))
			case "needs":
				if !slices.Contains(needs, what) {
					t.Errorf("%s:%d: nobody knows the need %q", b.page, b.line, what)
				}
			case "run":
				if scripts[what] != b.page {
					t.Errorf("%s:%d: nobody runs %q", b.page, b.line, what)
				}
			case "tested by":
				for name := range strings.SplitSeq(what, ",") {
					if !names[strings.TrimSpace(name)] {
						t.Errorf("%s:%d: there is no test %q", b.page, b.line, name)
					}
				}
			}
		}
	}
	if n < 10 {
		t.Errorf("only %d blocks of commands were found", n)
	}
}

var testName = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+|Fuzz[A-Za-z0-9_]+)\(`)

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

// TestFuzzTargetsAreListed: docs/security.md has all of them, and no other.
func TestFuzzTargetsAreListed(t *testing.T) {
	var lines []string
	source(t, func(path, text string) {
		dir := filepath.ToSlash(filepath.Dir(strings.TrimPrefix(path, root+string(filepath.Separator))))
		for _, m := range testName.FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(m[1], "Fuzz") {
				lines = append(lines, fmt.Sprintf("- `%s` `%s`\n", dir, m[1]))
			}
		}
	})
	slices.Sort(lines)
	path := root + "/docs/security.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- fuzz targets: begin -->\n", "<!-- fuzz targets: end -->"
	head, rest, ok := strings.Cut(string(text), begin)
	listed, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("docs/security.md has no place for the list")
	}
	want := "\n" + strings.Join(lines, "") + "\n"
	if *update {
		if err := os.WriteFile(path, []byte(head+begin+want+end+tail), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if listed != want {
		t.Errorf("docs/security.md lists\n%s\nand there are\n%s\n(go test ./test/docs -update)", listed, want)
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	span    = regexp.MustCompile("`[^`\n]*`")
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	odd     = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

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

// TestMetricsThatAreNamedAreThere: each metric that a page names is in the tables of docs/metrics.md, if not as a whole, as
// the beginning of several.
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

// TestEveryPageIsInTheIndex: docs/README.md leads to each.
func TestEveryPageIsInTheIndex(t *testing.T) {
	all := pages(t)
	for page := range all {
		if name, ok := strings.CutPrefix(page, "docs/"); ok && name != "README.md" && !strings.Contains(all["docs/README.md"], "("+name+")") {
			t.Errorf("docs/README.md does not lead to %s", name)
		}
	}
}

// TestThePagesWorkAsWritten runs their commands one after the other, in a network of its own, where nobody else has the
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
	} {
		t.Run(name, func(t *testing.T) {
			out := script(t, dir, name)
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
	text, err := os.ReadFile(root + "/" + scripts[name])
	if err != nil {
		t.Fatal(err)
	}
	commands := "set -eu -o pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\nip link set lo up\n"
	for _, b := range blocks(scripts[name], string(text)) {
		if b.mark == "run: "+name {
			commands += b.text
		}
	}
	run := exec.CommandContext(t.Context(), "unshare", "--net", "--pid", "--fork", "--kill-child", "bash", "-c", commands)
	run.Dir = dir
	run.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false", "PWD="+dir)
	var out bytes.Buffer
	run.Stdout, run.Stderr = &out, &out
	if err := run.Run(); err != nil {
		t.Fatalf("%v\n%s", err, tail(out.String()))
	}
	return strings.ToLower(out.String())
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
