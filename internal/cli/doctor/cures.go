package doctor

import (
	"regexp"
	"strings"

	"github.com/kvasir-dev/kvasir/docs"
)

// cures are what to do about a condition of a pool or a fleet, by condition and reason.
type cures map[[2]string]string

var (
	quoted = regexp.MustCompile("`([A-Za-z]+)`")
	links  = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
)

// readCures takes them from the table of the operations page.
func readCures() cures {
	out := cures{}
	for _, of := range []string{"pool", "fleet"} {
		_, page, _ := strings.Cut(docs.Operations, "\n## Conditions of a "+of+"\n")
		page, _, _ = strings.Cut(page, "\n## ")
		out.read(page)
	}
	return out
}

// read adds those of a table.
func (out cures) read(page string) {
	condition := ""
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 3 {
			continue
		}
		if name := quoted.FindStringSubmatch(cells[0]); name != nil {
			condition = name[1]
		}
		for _, reason := range quoted.FindAllStringSubmatch(cells[1], -1) {
			out[[2]string{condition, reason[1]}] = strings.ReplaceAll(links.ReplaceAllString(strings.TrimSpace(cells[2]), "$1"), "`", "")
		}
	}
}
