package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// place is a line and a column in a file, both from 1. The column is 0 where only the line is known.
type place struct{ line, column int }

func (p place) known() bool { return p.line > 0 }

// String reads LINE:COLUMN, or LINE.
func (p place) String() string {
	if p.column == 0 {
		return strconv.Itoa(p.line)
	}
	return fmt.Sprintf("%d:%d", p.line, p.column)
}

// behind is the place in a file of what is at p in a text that starts there.
func (p place) behind(start place) place {
	if p.line == 1 && p.column > 0 {
		p.column += start.column - 1
	}
	p.line += start.line - 1
	return p
}

// startOf is the place behind a text.
func startOf(before []byte) place {
	last := bytes.LastIndexByte(before, '\n')
	return place{bytes.Count(before, []byte("\n")) + 1, len(before) - last}
}

// textError is an error of a text at a place.
type textError struct {
	at   place
	text string
}

func (e *textError) Error() string { return e.text }

// placeOf is where in its file an error of a text is, zero for other errors.
func placeOf(err error) place {
	if e := (*textError)(nil); errors.As(err, &e) {
		return e.at
	}
	return place{}
}

// jsonError says where a file ceases to be JSON.
func jsonError(content []byte, err error) error {
	at := len(content)
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		at = min(at, max(0, int(syntax.Offset)-1))
	}
	return &textError{startOf(content[:at]), fmt.Sprintf("reading JSON: %v", err)}
}

// yamlLine is how the parser begins an error with a line.
var yamlLine = regexp.MustCompile(`^line (\d+): `)

// yamlError is an error of the parser of YAML, at its place in the file: in one line, without the parser's own name. The lines of
// that parser can be wrong by one, and it counts no columns. Its place is used only where the locator's parser reads the text.
func yamlError(d *document, err error) error {
	lines := strings.Split(strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:"), "\n")
	at, within := syntaxError(d.text)
	var said []string
	for _, line := range lines {
		line = strings.TrimSpace(line)
		if m := yamlLine.FindStringSubmatch(line); m != nil {
			line = line[len(m[0]):]
			if n, err := strconv.Atoi(m[1]); err == nil && !at.known() {
				at = place{line: n}
			}
		}
		if line != "" {
			said = append(said, line)
		}
	}
	text := "reading YAML: " + strings.Join(said, "; ") + indentedByTab(d.text, at.line)
	if within.text != "" {
		text += ", " + within.text
		if within.at.line != at.line {
			text += fmt.Sprintf(" from line %d", within.at.behind(d.start).line)
		}
	}
	if !at.known() {
		at = place{line: 1}
	}
	return &textError{at.behind(d.start), text}
}

// syntaxError is where a text is no YAML, and in what: "while scanning a quoted scalar", and where that begins. If the parser fails
// at the end of the text, the place is where that begins, or else behind the last word. Both are zero if the text is YAML.
func syntaxError(text []byte) (at place, within textError) {
	var e *yaml.LoadError
	if err := yaml.Load(text, new(any)); !errors.As(err, &e) {
		return place{}, textError{}
	}
	if e.Stage == yaml.ReaderStage {
		return startOf(text[:max(0, bytes.IndexFunc(text, isUnreadable))]), textError{}
	}
	if e.Mark.Line == 0 {
		return place{}, textError{}
	}
	at = place{e.Mark.Line, e.Mark.Column}
	if e.ContextMark.Line > 0 && e.ContextMark != e.Mark {
		within = textError{place{e.ContextMark.Line, e.ContextMark.Column}, e.ContextMsg}
	}
	if len(bytes.TrimSpace(fromLine(text, at.line))) == 0 {
		at = within.at
		if !at.known() {
			at = startOf(bytes.TrimRight(text, " \t\r\n"))
		}
	}
	return at, within
}

// isUnreadable reports whether a character, or a byte of none, cannot be in YAML. The parser knows no place of those.
func isUnreadable(r rune) bool {
	return r == utf8.RuneError || unicode.IsControl(r) && !strings.ContainsRune("\t\n\r\u0085", r)
}

// fromLine is a text from its line n on, empty if it has fewer.
func fromLine(text []byte, n int) []byte {
	for ; n > 1 && len(text) > 0; n-- {
		_, text = cutLine(text)
	}
	return text
}

// indentedByTab explains the most frequent cause of errors of the parser, in line n of a text.
func indentedByTab(text []byte, n int) string {
	line, _ := cutLine(fromLine(text, n))
	indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
	if !bytes.Contains(indent, []byte("\t")) {
		return ""
	}
	return " (the line is indented with a tab; YAML takes spaces only)"
}

// place is where the document's object begins: FILE, line N.
func (d *document) place() string {
	at := newLocator(d).find("", d.origin.Item)
	if !at.known() {
		return d.origin.File
	}
	return fmt.Sprintf("%s, line %d", d.origin.File, at.line)
}

// locator finds fields in the text of a document.
type locator struct {
	start place
	root  *yaml.Node
}

// newLocator parses a document again, for its lines. JSON is YAML here, too.
func newLocator(d *document) *locator {
	l := &locator{start: d.start}
	var top yaml.Node
	if err := yaml.Unmarshal(d.text, &top); err == nil && len(top.Content) > 0 {
		l.root = top.Content[0]
	}
	return l
}

// find returns the place of a field by its path, or of what is nearest to it on the way there; of the object for an empty path.
// item counts from 1 where the object is an item of a list.
func (l *locator) find(path string, item int) place {
	if l.root == nil {
		return place{}
	}
	node, at := l.root, l.root
	if item > 0 {
		if list := child(node, "items"); list != nil && list.Kind == yaml.SequenceNode && item <= len(list.Content) {
			node, at = list.Content[item-1], list.Content[item-1]
		}
	}
	for _, step := range steps(path) {
		key, value := descend(node, step)
		if value == nil {
			break
		}
		node, at = value, key
	}
	return place{at.Line, at.Column}.behind(l.start)
}

// steps of a path such as spec.tenants[2].name: names of fields, and what is in brackets.
func steps(path string) []string {
	var all []string
	for path != "" {
		end := strings.IndexAny(path, ".[")
		if path[0] == '[' {
			if end = strings.IndexByte(path, ']'); end < 0 {
				end = len(path)
			}
			all = append(all, path[1:end])
			end = min(end+1, len(path))
		} else {
			if end < 0 {
				end = len(path)
			}
			all = append(all, path[:end])
		}
		path = strings.TrimPrefix(path[end:], ".")
	}
	return all
}

// descend returns the child of a node by its key or index, and the node whose place is the child's.
func descend(node *yaml.Node, step string) (at, value *yaml.Node) {
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == step {
				return node.Content[i], node.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i], node.Content[i]
		}
		for _, element := range node.Content { // a list whose elements have names
			if name := child(element, "name"); name != nil && name.Value == step {
				return element, element
			}
		}
	case yaml.AliasNode:
		return descend(node.Alias, step)
	}
	return nil, nil
}

// child is the value of a field, nil if there is none.
func child(node *yaml.Node, name string) *yaml.Node {
	if node.Kind != yaml.MappingNode {
		return nil
	}
	_, value := descend(node, name)
	return value
}

// locate fills in where in their files problems are.
func (d *Directory) locate(problems []Problem) {
	type written struct {
		file     string
		document int
	}
	locators := map[written]*locator{} // items of a list share one
	for i := range problems {
		p := &problems[i]
		doc := d.document(&p.Origin)
		if p.at.known() || doc == nil {
			continue
		}
		if p.at = placeOf(doc.err); p.at.known() {
			continue
		}
		of := written{p.File, p.Document}
		if locators[of] == nil {
			locators[of] = newLocator(doc)
		}
		p.at = locators[of].find(p.Field, p.Item)
	}
}

// document is the one that an origin names, nil if it is there no longer.
func (d *Directory) document(o *Origin) *document {
	all := d.parsed[o.File].documents
	i := slices.IndexFunc(all, func(doc document) bool { return doc.origin == *o })
	if i < 0 {
		return nil
	}
	return &all[i]
}
