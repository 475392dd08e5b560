package crdadmission

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// MaxObjectBytes is the largest object that is read, as on an API server.
const MaxObjectBytes = 3 << 20

// decode reads one object of any kind. Duplicate fields are problems, in the order of the text; an error means that
// there is no object to look at.
func decode(raw []byte) (*unstructured.Unstructured, []Problem, error) {
	if len(raw) > MaxObjectBytes {
		return nil, nil, &Error{Problems: []Problem{{Detail: fmt.Sprintf("%d bytes are too many, at most %d", len(raw), MaxObjectBytes)}}}
	}
	var problems []Problem
	text := raw
	if !json.Valid(raw) {
		var err error
		if text, problems, err = fromYAML(raw); err != nil {
			return nil, nil, &Error{Problems: []Problem{{Detail: err.Error()}}}
		}
	}
	var content map[string]any
	strict, err := kjson.UnmarshalStrict(text, &content)
	if err != nil {
		return nil, nil, &Error{Problems: []Problem{{Detail: err.Error()}}}
	}
	if content == nil {
		return nil, nil, &Error{Problems: []Problem{{Detail: "no object"}}}
	}
	for _, e := range strict {
		p := Problem{Detail: e.Error()}
		if fieldErr := kjson.FieldError(nil); errors.As(e, &fieldErr) {
			p.Field = fieldErr.FieldPath()
		}
		problems = append(problems, p)
	}
	obj := &unstructured.Unstructured{Object: content}
	for _, name := range []string{"apiVersion", "kind"} {
		if s, ok := content[name].(string); !ok || s == "" {
			return nil, nil, refuse(obj, append(problems, Problem{Field: name, Detail: "Required value: a string"})...)
		}
	}
	if _, ok := content["metadata"].(map[string]any); !ok {
		return nil, nil, refuse(obj, append(problems, Problem{Field: "metadata", Detail: "Required value: an object with a name"})...)
	}
	return obj, problems, nil
}

// fromYAML turns one YAML document into JSON. Duplicate keys are problems; then the last one counts.
func fromYAML(raw []byte) ([]byte, []Problem, error) {
	document, err := single(raw)
	if err != nil {
		return nil, nil, err
	}
	text, err := yaml.YAMLToJSONStrict(document)
	if err == nil {
		return text, nil, nil
	}
	strict := err
	if text, err = yaml.YAMLToJSON(document); err != nil {
		return nil, nil, err
	}
	return text, []Problem{{Detail: strings.ReplaceAll(strict.Error(), "\n", "")}}, nil
}

// single returns the only document of a YAML text; documents without content do not count.
func single(raw []byte) ([]byte, error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(raw)))
	var found []byte
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading YAML: %w", err)
		}
		if empty(document) {
			continue
		}
		if found != nil {
			return nil, errors.New("more than one YAML document; give one object at a time")
		}
		found = document
	}
	if found == nil {
		return nil, errors.New("no object")
	}
	return found, nil
}

// empty reports whether a document has nothing but comments, blanks and separators.
func empty(document []byte) bool {
	for line := range bytes.Lines(document) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}
