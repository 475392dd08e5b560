package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

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

// TestTheThreatModelNamesItsTests: each test that docs/security.md names exists, and each protection against an attacker that is a
// matter of our code names one.
func TestTheThreatModelNamesItsTests(t *testing.T) {
	text, err := os.ReadFile(root + "/docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	// These are matters of the configuration, or of Kubernetes.
	untested := []string{
		"| another pod | read token ids from engines' event sockets", "| another pod | read the recommended sizes of pools",
		"| a user that can write an `InferencePool`",
	}
	names, named := testNames(t), regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`")
	_, threats, _ := strings.Cut(string(text), "## Threats and protections")
	threats, _, _ = strings.Cut(threats, "\n## ")
	for line := range strings.Lines(threats) {
		tests := named.FindAllStringSubmatch(line, -1)
		heading := strings.HasPrefix(line, "|--") || strings.HasPrefix(line, "| attacker |") || strings.HasPrefix(line, "| party |")
		known := slices.ContainsFunc(untested, func(prefix string) bool { return strings.HasPrefix(line, prefix) })
		if strings.HasPrefix(line, "|") && !heading && len(tests) == 0 && !known {
			t.Errorf("no test is named: %s", line)
		}
		for _, test := range tests {
			if !names[test[1]] {
				t.Errorf("there is no %s: %s", test[1], line)
			}
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	span    = regexp.MustCompile("`[^`\n]*`")
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	odd     = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)
