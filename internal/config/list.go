package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	kjson "sigs.k8s.io/json"
)

// kindList is what kubectl prints for several objects, of apiVersion v1.
const kindList = "List"

// expand replaces each list by its items, as documents of their own. Lists in lists stay, with an error. The returned error
// is about the entire file: more than maxDocuments in all.
func expand(documents []document) ([]document, error) {
	var all []document
	for i := range documents {
		d := &documents[i]
		if d.raw == nil || !d.isList() {
			all = append(all, *d)
			continue
		}
		items, err := d.items()
		if err != nil {
			d.raw, d.err = nil, err
			all = append(all, *d)
			continue
		}
		if len(all)+len(items) > maxDocuments {
			return nil, fmt.Errorf("more than %d objects", maxDocuments)
		}
		all = append(all, items...)
	}
	return all, nil
}

// isList reports whether the document is a List, or a list of one of the kinds that are read.
func (d *document) isList() bool {
	if d.key.Kind == kindList {
		return d.apiVersion == "v1"
	}
	kind, ok := strings.CutSuffix(d.key.Kind, kindList)
	return ok && versions[kind] != "" && versions[kind] == d.apiVersion
}

// items of a list. The other fields of a list are ignored.
func (d *document) items() ([]document, error) {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	strict, err := kjson.UnmarshalStrict(d.raw, &list, kjson.DisallowDuplicateFields)
	if err != nil {
		return nil, errors.New("reading the list: items must be a list")
	}
	if err := errors.Join(strict...); err != nil {
		return nil, fmt.Errorf("reading the list: %w", err)
	}
	if len(list.Items) > maxDocuments {
		return nil, fmt.Errorf("reading the list: more than %d items", maxDocuments)
	}
	items := make([]document, len(list.Items))
	for i, raw := range list.Items {
		item := &items[i]
		item.origin, item.text, item.start, item.raw = d.origin, d.text, d.start, raw
		item.origin.Item = i + 1
		item.identify(raw)
		if item.isList() {
			item.raw, item.err = nil, errors.New("a list in a list is not read")
		}
	}
	return items, nil
}
