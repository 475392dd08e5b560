package httpproxy

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// modelsPath is the list of models. Below it is each of them by name, slashes and all.
const modelsPath = "/v1/models"

// modelList is the answer to GET /v1/models.
type modelList struct {
	Object string  `json:"object"`
	Data   []model `json:"data"`
}

// model is an entry of the list, and the answer to GET /v1/models/{id}.
type model struct {
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

// isModels reports whether a path is that of the list or of a model.
func isModels(path string) bool {
	return path == modelsPath || strings.HasPrefix(path, modelsPath+"/")
}

// models answers for the names that the client is allowed to use, over all pools: with the list, or with one of them. The
// engines' data was requested before, in the background.
func (p *Proxy) models(out *client, r *http.Request) {
	models, err := p.picker.ModelsFor(headerOf(r))
	if err != nil {
		p.refusePick(out, r, err)
		return
	}
	if r.URL.Path == modelsPath {
		list := modelList{Object: "list", Data: []model{}}
		for i := range models {
			list.Data = append(list.Data, p.entryOf(&models[i]))
		}
		out.answer(list)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, modelsPath+"/") // decoded: %2F is a slash of the name
	i := slices.IndexFunc(models, func(m picker.Model) bool { return m.Name == name })
	if i < 0 && redirected(out, r) {
		return
	}
	if i < 0 {
		p.refusePick(out, r, p.picker.Unknown(headerOf(r), name))
		return
	}
	out.answer(p.entryOf(&models[i]))
}

func (p *Proxy) entryOf(m *picker.Model) model {
	entry := model{ID: m.Name, Object: "model", Created: p.since.Unix(), OwnedBy: "kvasir", Root: cmp.Or(m.Root, m.Name)}
	if m.Parent != "" {
		entry.Parent = &m.Parent
	}
	if m.MaxLen > 0 {
		entry.MaxModelLen = &m.MaxLen
	}
	return entry
}

// answer sends a value that cannot fail to marshal.
func (c *client) answer(v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	c.answerJSON(http.StatusOK, body)
}
