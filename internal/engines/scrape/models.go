package scrape

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Bounds on an engine's list of models: bytes of the answer (an entry has about 500), entries, and bytes of a name and of a root.
const (
	maxModelPage = 2 << 20
	maxModels    = 4096
	maxModelName = 256
	maxModelRoot = 4096
)

// Model is an entry of an engine's list of models.
type Model struct {
	Name string
	// Parent is the model that an adapter belongs to; empty for base models. An adapter without a name for its parent
	// has "?", so that it remains an adapter.
	Parent string
	// Root is where the engine has the weights from; empty where it does not report it.
	Root string
	// MaxLen is the context length in tokens; 0 where the engine does not report it.
	MaxLen int
}

// Models reads the answer of GET /v1/models: sorted, each name once, with the first entry that has it. Names that are
// empty or longer than 256 bytes are left out, as are adapters of such models, roots longer than 4096 bytes are dropped, and no more than
// 4096 entries are read: decoded they take many times their bytes. A field of an unexpected type counts as absent, so that it does not
// hide the other models.
func Models(answer []byte) ([]Model, error) {
	d := json.NewDecoder(bytes.NewReader(answer))
	models, listed, err := decodeModels(d)
	if err != nil {
		return nil, fmt.Errorf("reading the list of models: %w", err)
	}
	if !listed {
		return nil, errors.New("reading the list of models: no data")
	}
	slices.SortStableFunc(models, func(a, b Model) int { return cmp.Compare(a.Name, b.Name) })
	return slices.CompactFunc(models, func(a, b Model) bool { return a.Name == b.Name }), nil
}

// decodeModels reads an object, and its field data as far as the bounds allow. listed reports whether it has one.
func decodeModels(d *json.Decoder) (models []Model, listed bool, err error) {
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return nil, false, cmp.Or(err, errors.New("no object"))
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, false, err
		}
		if name != "data" {
			var other json.RawMessage
			if err := d.Decode(&other); err != nil {
				return nil, false, err
			}
			continue
		}
		first, err := d.Token()
		if err != nil {
			return nil, false, err
		}
		if first != json.Delim('[') {
			return nil, false, nil
		}
		models, err = decodeEntries(d)
		return models, true, err // what follows is not read
	}
	_, err = d.Token()
	return nil, false, err
}

// decodeEntries reads the first maxModels elements of a list.
func decodeEntries(d *json.Decoder) (models []Model, err error) {
	for n := 0; n < maxModels && d.More(); n++ {
		var m struct {
			ID          string          `json:"id"`
			Parent      *string         `json:"parent"`
			Root        json.RawMessage `json:"root"`
			MaxModelLen json.RawMessage `json:"max_model_len"`
		}
		if err := d.Decode(&m); err != nil {
			return nil, err
		}
		if m.ID == "" || len(m.ID) > maxModelName || m.Parent != nil && len(*m.Parent) > maxModelName {
			continue
		}
		entry := Model{Name: m.ID}
		if m.Parent != nil {
			entry.Parent = cmp.Or(*m.Parent, "?")
		}
		if len(m.Root) <= maxModelRoot {
			_ = json.Unmarshal(m.Root, &entry.Root)
		}
		var length int32
		if json.Unmarshal(m.MaxModelLen, &length) == nil {
			entry.MaxLen = int(max(0, length))
		}
		models = append(models, entry)
	}
	if d.More() {
		return models, nil
	}
	_, err = d.Token() // without its end, the list is cut off
	return models, err
}
