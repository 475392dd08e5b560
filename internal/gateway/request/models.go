package request

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// modelsPath is the list of models. Below it is each of them by name, slashes and all.
const modelsPath = "/v1/models"

// ModelList is the answer to GET /v1/models.
type ModelList struct {
	Object string  `json:"object"`
	Data   []Model `json:"data"`
}

// Model is an entry of the list, and the answer to GET /v1/models/{id}.
type Model struct {
	ID     string `json:"id"`
	Object string `json:"object"`
	// Created is when the picker started. Engines give the time of each answer, which changes from call to call.
	Created int64   `json:"created"`
	OwnedBy string  `json:"owned_by"`
	Root    string  `json:"root"`
	Parent  *string `json:"parent"`
	// MaxModelLen is null for adapters, as on the engines, and while no engine has reported it.
	MaxModelLen *int `json:"max_model_len"`
}

// IsModels reports whether a path is that of the list or of a model.
func IsModels(path string) bool {
	return path == modelsPath || strings.HasPrefix(path, modelsPath+"/")
}

// Models is the answer, in JSON, to a request for a path of IsModels, whose name is decoded (%2F is a slash of a model's name): for the
// names that the client is allowed to use, over all pools, the list, or one of them. Since is when the picker started. Unknown is the
// name that is not among them; then there is no answer. It fails with an *Error.
func Models(p *picker.Picker, header func(string) string, path string, since time.Time) (answer []byte, unknown string, err error) {
	models, err := p.ModelsFor(header)
	if err != nil {
		return nil, "", err
	}
	if path == modelsPath {
		list := ModelList{Object: "list", Data: []Model{}}
		for i := range models {
			list.Data = append(list.Data, entryOf(&models[i], since))
		}
		return mustMarshal(list), "", nil
	}
	name := strings.TrimPrefix(path, modelsPath+"/")
	i := slices.IndexFunc(models, func(m picker.Model) bool { return m.Name == name })
	if i < 0 {
		return nil, name, nil
	}
	return mustMarshal(entryOf(&models[i], since)), "", nil
}

func entryOf(m *picker.Model, since time.Time) Model {
	entry := Model{ID: m.Name, Object: "model", Created: since.Unix(), OwnedBy: "kvasir", Root: cmp.Or(m.Root, m.Name)}
	if m.Parent != "" {
		entry.Parent = &m.Parent
	}
	if m.MaxLen > 0 {
		entry.MaxModelLen = &m.MaxLen
	}
	return entry
}

// mustMarshal writes a value that cannot fail to marshal.
func mustMarshal(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return body
}
