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

	"go.yaml.in/yaml/v3"
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

// yamlError is an error of the parser of YAML, at its place in the file: in one line, without the parser's own name.
func yamlError(d *document, err error) error {
	lines := strings.Split(strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:"), "\n")
	e := &textError{}
	var said []string
	for _, line := range lines {
		line = strings.TrimSpace(line)
		if m := yamlLine.FindStringSubmatch(line); m != nil {
			if n, err := strconv.Atoi(m[1]); err == nil && !e.at.known() {
				e.at = place{line: n + d.start.line - 1}
				line = line[len(m[0]):]
				line += indentedByTab(d.text, n)
			}
		}
		if line != "" {
			said = append(said, line)
		}
	}
	if !e.at.known() {
		e.at = place{line: d.start.line}
	}
	e.text = "reading YAML: " + strings.Join(said, "; ")
	return e
}

// indentedByTab explains the most frequent cause of errors of the parser, in line n of a text.
func indentedByTab(text []byte, n int) string {
	lines := bytes.SplitN(text, []byte("\n"), n+1)
	if n < 1 || len(lines) < n {
		return ""
	}
	line := lines[n-1]
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
	found := place{at.Line + l.start.line - 1, at.Column}
	if at.Line == 1 {
		found.column += l.start.column - 1
	}
	return found
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
