// Package console is the output of commands: tables, colours, progress, and the same answers as JSON and YAML.
package console

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"
	"sigs.k8s.io/yaml"
)

// Console is what a program reads and writes.
type Console struct {
	In       io.Reader
	Out, Err io.Writer
	// Color reports that Out shows colours, Live that Err shows lines that are written over.
	Color, Live bool
}

// Of makes a console of files. Terminals get colours, unless NO_COLOR has a value or TERM is dumb, and progress that is
// written over.
func Of(in, out, err *os.File, getenv func(string) string) Console {
	able := getenv("TERM") != "dumb"
	return Console{
		In: in, Out: out, Err: err,
		Color: able && getenv("NO_COLOR") == "" && term.IsTerminal(int(out.Fd())),
		Live:  able && term.IsTerminal(int(err.Fd())),
	}
}

// Format of answers; the empty one is Table.
type Format string

// The formats.
const (
	Table Format = "table"
	JSON  Format = "json"
	YAML  Format = "yaml"
)

// Formats are all formats.
var Formats = []string{string(Table), string(JSON), string(YAML)}

// String returns the format's name.
func (f *Format) String() string { return string(*f) }

// Type names the value that a flag takes.
func (f *Format) Type() string { return "format" }

// Set sets the format by its name.
func (f *Format) Set(name string) error {
	if !slices.Contains(Formats, name) {
		return fmt.Errorf("want %s", strings.Join(Formats, ", "))
	}
	*f = Format(name)
	return nil
}

// Print writes an answer: v as a document, or its table.
func (c *Console) Print(f Format, v any, table func() error) error {
	switch f {
	case JSON:
		e := json.NewEncoder(c.Out)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(v)
	case YAML:
		text, err := yaml.Marshal(v)
		if err == nil {
			_, err = c.Out.Write(text)
		}
		return err
	default:
		return table()
	}
}

// Tone is the meaning of a text beyond its words.
type Tone int

// The tones.
const (
	Plain Tone = iota
	Good
	Warn
	Bad
	Faint
	Strong
)

var codes = [...]string{Good: "32", Warn: "33", Bad: "31", Faint: "2", Strong: "1"}

// Paint colours a text by its tone, where colours are shown.
func (c *Console) Paint(tone Tone, text string) string {
	if !c.Color || tone == Plain || text == "" {
		return text
	}
	return "\x1b[" + codes[tone] + "m" + text + "\x1b[0m"
}
