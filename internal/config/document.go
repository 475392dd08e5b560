package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
)

// maxDocuments in a file.
const maxDocuments = 10_000

// document is one object as written in a file.
type document struct {
	origin Origin
	key    ObjectKey
	// apiVersion as written.
	apiVersion string
	// text is the document as written, start the place of its first byte in the file.
	text  []byte
	start place
	// raw is the object as JSON, nil when err is set.
	raw []byte
	// err is why there is no object: not YAML, duplicate keys, no kind or no name. key has what could be read all
	// the same.
	err error
}

// split cuts a file into documents; empty ones (blank lines and comments) are left out but counted. The items of lists are
// documents of their own. The error is about the entire file.
func split(file string, content []byte) ([]document, error) {
	cut := splitYAML
	if strings.HasSuffix(file, ".json") {
		cut = splitJSON
	}
	documents, err := cut(file, content)
	if err != nil {
		return nil, err
	}
	return expand(documents)
}

func splitJSON(file string, content []byte) ([]document, error) {
	var documents []document
	decoder := json.NewDecoder(bytes.NewReader(content))
	for n := 1; ; n++ {
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, jsonError(content, err)
		}
		if n > maxDocuments {
			return nil, fmt.Errorf("more than %d documents", maxDocuments)
		}
		d := document{origin: Origin{File: file, Document: n}, text: raw, start: startOf(content[:int(decoder.InputOffset())-len(raw)]), raw: raw}
		d.identify(raw)
		documents = append(documents, d)
	}
}

// splitYAML cuts at lines that begin with ---.
func splitYAML(file string, content []byte) ([]document, error) {
	var documents []document
	var text []byte // of the present document
	number, line, first, blank := 0, 0, 0, true
	end := func() {
		number++
		if !blank {
			documents = append(documents, parseYAML(Origin{File: file, Document: number}, text, first))
		}
		text, first, blank = nil, line, true
	}
	started := false // a marker before anything else opens the first document and ends none
	for rest := content; len(rest) > 0; line++ {
		var this []byte
		this, rest = cutLine(rest)
		if isMarker(this) {
			if started || !blank {
				end()
			}
			started, first = true, line
			this = append([]byte("   "), this[3:]...)
		}
		if !isBlank(this) {
			blank = false
		}
		text = append(text, this...)
		if number > maxDocuments {
			return nil, fmt.Errorf("more than %d documents", maxDocuments)
		}
	}
	end()
	return documents, nil
}

// cutLine returns the first line with its end, and the rest.
func cutLine(b []byte) (line, rest []byte) {
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		return b[:i+1], b[i+1:]
	}
	return b, nil
}

// isMarker reports whether a line begins a document.
func isMarker(line []byte) bool {
	return bytes.HasPrefix(line, []byte("---")) && (len(line) == 3 || strings.ContainsRune(" \t\r\n", rune(line[3])))
}

// isBlank reports whether a line has nothing but a comment or the end mark of a document.
func isBlank(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) == 0 || line[0] == '#' || string(line) == "..."
}

// parseYAML reads the document that begins after so many lines of its file.
func parseYAML(origin Origin, text []byte, lines int) document {
	d := document{origin: origin, text: text, start: place{lines + 1, 1}}
	raw, err := yaml.YAMLToJSONStrict(text)
	if err == nil {
		d.raw = raw
		d.identify(raw)
		return d
	}
	// The object's name can often still be read.
	if loose, looseErr := yaml.YAMLToJSON(text); looseErr == nil {
		d.identify(loose)
	}
	d.err = yamlError(&d, err)
	return d
}

// identify reads what names an object. Namespace defaults to default.
func (d *document) identify(raw []byte) {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
			err = fmt.Errorf("%s cannot be a %s", cmp.Or(wrong.Field, "it"), wrong.Value)
		}
		d.err = fmt.Errorf("not an object of an API: %w", err)
		return
	}
	d.apiVersion = head.APIVersion
	d.key = ObjectKey{Kind: head.Kind, Namespace: head.Metadata.Namespace, Name: head.Metadata.Name}
	if d.key.Namespace == "" {
		d.key.Namespace = crdadmission.DefaultNamespace
	}
	switch {
	case head.APIVersion == "" || head.Kind == "":
		d.err = errors.New("apiVersion and kind are required")
	case head.Metadata.Name == "":
		d.err = errors.New("metadata.name is required")
	}
}
