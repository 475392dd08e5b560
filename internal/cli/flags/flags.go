// Package flags reads the flags of the daemons: help goes to stdout, in groups, and a mistake is one line.
package flags

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/spelling"
)

// Program is what the help of a program says besides its flags.
type Program struct {
	Name string
	// About is a sentence on what the program does, Example a command line that works.
	About, Example string
	// Groups of flags, in their order; flags of no group come last.
	Groups []Group
}

// Group is some flags under a title.
type Group struct {
	Title string
	// Prefixes of the flags' names. The first group with one of a flag's prefixes has the flag.
	Prefixes []string
}

// Parse reads arguments. It returns flag.ErrHelp after it has written the help to stdout, and another error after it has
// written one line about it to stderr.
func Parse(f *flag.FlagSet, p *Program, args []string, stdout, stderr io.Writer) error {
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		p.help(f, stdout)
	case err != nil:
		fmt.Fprintf(stderr, "%s: %s; %s --help lists the flags\n", p.Name, plain(f, err), p.Name)
	}
	return err
}

// plain is an error of package flag with flags spelled as in the documentation, and the flag that was probably meant.
func plain(f *flag.FlagSet, err error) string {
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
		text = "unknown flag --" + name
		if meant := nearest(f, name); meant != "" {
			text += ", did you mean --" + meant + "?"
		}
		return text
	}
	text = strings.NewReplacer("for flag -", "for --", "for -", "for --", "argument: -", "argument: --").Replace(text)
	if m := unread.FindStringSubmatchIndex(text); m != nil {
		if form := formOf(f.Lookup(text[m[2]:m[3]])); form != "" {
			text = text[:m[3]] + ": want " + form
		}
	}
	return text
}

// unread is package flag's end of an error about a value that it cannot read, which does not say how values look.
var unread = regexp.MustCompile(`for --(\S+): parse error$`)

// formOf says how the values of a flag look, for those of package flag.
func formOf(one *flag.Flag) string {
	if one == nil {
		return ""
	}
	value, ok := one.Value.(flag.Getter)
	if !ok {
		return ""
	}
	switch value.Get().(type) {
	case time.Duration:
		return "a time with its unit, such as 500ms, 10s or 5m"
	case int, int64, uint, uint64:
		return "a whole number"
	case float64:
		return "a number"
	case bool:
		return "true or false"
	}
	return ""
}

// nearest is the name of the flag that differs least from a wrong one, empty if none is near.
func nearest(f *flag.FlagSet, wrong string) string {
	var known []string
	f.VisitAll(func(one *flag.Flag) { known = append(known, one.Name) })
	return spelling.Nearest(wrong, known)
}

// help writes the description, the example and the flags by group.
func (p *Program) help(f *flag.FlagSet, w io.Writer) {
	fmt.Fprintf(w, "%s\n\nUsage: %s [flags]\n\nExample:\n  %s\n", p.About, p.Name, p.Example)
	groups := append(append([]Group{}, p.Groups...), Group{Title: "Other flags"})
	flags := make([][]*flag.Flag, len(groups))
	f.VisitAll(func(one *flag.Flag) {
		at := p.groupOf(one.Name)
		flags[at] = append(flags[at], one)
	})
	for i, group := range groups {
		if len(flags[i]) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s:\n", group.Title)
		for _, one := range flags[i] {
			fmt.Fprint(w, line(one))
		}
	}
}

func (p *Program) groupOf(name string) int {
	for i, group := range p.Groups {
		for _, prefix := range group.Prefixes {
			if strings.HasPrefix(name, prefix) {
				return i
			}
		}
	}
	return len(p.Groups)
}

// line is a flag with its value, description and default.
func line(one *flag.Flag) string {
	value, usage := flag.UnquoteUsage(one)
	text := "  --" + one.Name
	if value != "" {
		text += " " + value
	}
	text += "\n        " + usage
	if d := one.DefValue; d != "" && d != "false" && d != "0" && !strings.Contains(usage, "default") {
		text += " (default " + d + ")"
	}
	return text + "\n"
}
