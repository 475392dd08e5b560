package docpage

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// Block is commands in a page: a fenced block of kind sh, bash, shell or console.
type Block struct {
	Page string // its path in the repository
	Line int    // of the fence
	// Mark is the mark above it, or of the entire page: "run: NAME", "needs: WHAT", "tested by: TESTS", "flags: PROGRAM".
	Mark string
	Text string
}

var (
	fence = regexp.MustCompile("^ *```([a-z]*)$")
	shell = regexp.MustCompile("^(sh|bash|shell|console)$")
	mark  = regexp.MustCompile(`^ *<!-- ((?:run|needs|tested by|flags): .+) -->$`)
	// whole marks all commands of a page that have no mark of their own.
	whole = regexp.MustCompile(`(?m)^<!-- commands (tested by: .+|need: .+) -->$`)
)

// Blocks are the commands of a page, in their order. Blanks that stand before a block in a list are taken away.
func Blocks(page, text string) (all []Block) {
	usual := ""
	if m := whole.FindStringSubmatch(text); m != nil {
		usual = strings.Replace(m[1], "need: ", "needs: ", 1)
	}
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		kind := fence.FindStringSubmatch(lines[i])
		if kind == nil {
			continue
		}
		b := Block{Page: page, Line: i + 1, Mark: usual}
		for j := i - 1; j >= 0 && j >= i-2; j-- {
			if m := mark.FindStringSubmatch(lines[j]); m != nil {
				b.Mark = m[1]
				break
			} else if strings.TrimSpace(lines[j]) != "" {
				break
			}
		}
		indent := lines[i][:strings.IndexByte(lines[i], '`')]
		for i++; i < len(lines) && strings.TrimSpace(lines[i]) != "```"; i++ {
			b.Text += strings.TrimPrefix(lines[i], indent) + "\n"
		}
		if shell.MatchString(kind[1]) {
			all = append(all, b)
		}
	}
	return all
}

// Unfenced are the lines of a page where a block of code begins by blanks alone, so that its kind is unknown.
func Unfenced(text string) (lines []int) {
	inside, before := false, ""
	for i, line := range strings.Split(text, "\n") {
		switch {
		case fence.MatchString(line):
			inside = !inside
		case !inside && strings.HasPrefix(line, "    ") && strings.TrimSpace(line) != "" && strings.TrimSpace(before) == "":
			lines = append(lines, i+1)
		}
		before = line
	}
	return lines
}

// Script are the commands of a page that have the mark "run: NAME", in their order.
func Script(page, name string) (string, error) {
	_, file, _, _ := runtime.Caller(0)
	text, err := os.ReadFile(filepath.Join(filepath.Dir(file), "..", "..", filepath.FromSlash(page)))
	if err != nil {
		return "", err
	}
	commands := ""
	for _, b := range Blocks(page, string(text)) {
		if b.Mark == "run: "+name {
			commands += b.Text
		}
	}
	if commands == "" {
		return "", fmt.Errorf("%s has no commands with the mark \"run: %s\"", page, name)
	}
	return commands, nil
}

// Scripts are the pages whose commands with the mark "run: NAME" are run by tests, by that name, in this order: hand,
// standalone and key by test/docs, install by test/chart/install on an API server, cluster by test/cluster.
var Scripts = map[string][]string{
	"hand":       {"docs/quickstart.md"},
	"standalone": {"docs/standalone.md"},
	"tls":        {"docs/tls.md"},
	"key":        {"docs/admission.md"},
	"install":    {"README.md", "docs/install.md", "docs/migration.md"},
	"cluster":    {"docs/quickstart.md", "docs/install.md", "docs/kubectl-kvasir.md", "docs/troubleshooting.md"},
}
