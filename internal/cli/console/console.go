// Package console is the output of commands: tables, colours, progress, and the same answers as JSON and YAML.
package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"
	"k8s.io/client-go/util/jsonpath"
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

// Format of answers; the empty one is Table. JSONPath is followed by an expression.
type Format string

// The formats.
const (
	Table    Format = "table"
	JSON     Format = "json"
	YAML     Format = "yaml"
	Wide     Format = "wide"
	Name     Format = "name"
	JSONPath Format = "jsonpath="
)

// Formats are the output formats of every command that prints a document.
var Formats = []string{string(Table), string(JSON), string(YAML), string(JSONPath)}

// FormatFlag is a flag that chooses one of some formats.
type FormatFlag struct {
	Format *Format
	// Also are formats beside Formats.
	Also []Format
}

// Names are those of the formats that it takes.
func (f *FormatFlag) Names() []string {
	names := slices.Clone(Formats)
	for _, also := range f.Also {
		names = append(names, string(also))
	}
	return names
}

// Usage describes the flag.
func (f *FormatFlag) Usage() string {
	return strings.ReplaceAll(strings.Join(f.Names(), ", "), string(JSONPath), string(JSONPath)+"EXPRESSION")
}

// String returns the format's name.
func (f *FormatFlag) String() string {
	if f.Format == nil {
		return ""
	}
	return string(*f.Format)
}

// Type names the value that a flag takes.
func (f *FormatFlag) Type() string { return "format" }

// Set sets the format by its name.
func (f *FormatFlag) Set(name string) error {
	if expression, ok := strings.CutPrefix(name, string(JSONPath)); ok {
		if _, err := parsePath(expression); err != nil {
			return err
		}
	} else if !slices.Contains(f.Names(), name) {
		return fmt.Errorf("want %s", f.Usage())
	}
	*f.Format = Format(name)
	return nil
}

// parsePath reads an expression as kubectl does. It does not need its braces.
func parsePath(expression string) (*jsonpath.JSONPath, error) {
	if expression == "" {
		return nil, errors.New("want jsonpath=EXPRESSION, such as jsonpath={.pools[0].name}")
	}
	if !strings.Contains(expression, "{") {
		expression = "{." + strings.TrimPrefix(expression, ".") + "}"
	}
	path := jsonpath.New("output")
	return path, path.Parse(expression)
}

// Named is a document of objects that have names, such as pod/NAME.
type Named interface{ Names() []string }

// Print writes an answer: v as a document, or its table.
func (c *Console) Print(f Format, v any, table func() error) error {
	if expression, ok := strings.CutPrefix(string(f), string(JSONPath)); ok {
		return c.printPath(expression, v)
	}
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
	case Name:
		named, ok := v.(Named)
		if !ok {
			return errors.New("the answer has no names")
		}
		for _, name := range named.Names() {
			if _, err := fmt.Fprintln(c.Out, name); err != nil {
				return err
			}
		}
		return nil
	default:
		return table()
	}
}

// printPath writes what an expression finds in the document as it is printed in JSON.
func (c *Console) printPath(expression string, v any) error {
	path, err := parsePath(expression)
	if err != nil {
		return err
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var document any
	if err := json.Unmarshal(text, &document); err != nil {
		return err
	}
	if err := path.Execute(c.Out, document); err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.Out)
	return err
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
