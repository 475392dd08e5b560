package picker

import (
	"slices"
	"sort"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/logging"
)

// ListedModel is a model as an engine lists it.
type ListedModel struct {
	Name string
	// Parent is the base model of an adapter, empty for base models.
	Parent string
	// Root is where the engine has the weights from, and MaxLen the context length in tokens; zero if it does not report
	// them.
	Root   string
	MaxLen int
}

// Model is a name that requests can use. Root and MaxLen are as the engines report them, and zero while none has.
type Model struct {
	ListedModel
	// Namespace and Pool that serves it.
	Namespace, Pool string
}

// ObserveModels takes the models and LoRA adapters that an engine lists.
func (p *Picker) ObserveModels(id endpoint.ID, models []ListedModel) {
	for _, v := range p.current.Load().pools {
		if m, ok := v.find(id); ok {
			v.mu.Lock()
			before := v.listed[id]
			v.listed[id] = models
			v.mu.Unlock()
			p.observeReloads(v, m, id, models)
			if !v.spec.named(models) && !slices.Equal(before, models) {
				logging.Warn(v.log, "Engine does not serve the pool's model: it answers requests for it with 404",
					"pool", v.spec.Name, "pod", id.Pod, "rank", id.Rank, "model", v.spec.Model, "served", someNames(models))
			}
		}
	}
}

// someNames are the first names of a list.
func someNames(models []ListedModel) []string {
	names := make([]string, 0, maxSuggested)
	for _, model := range models[:min(len(models), maxSuggested)] {
		names = append(names, model.Name)
	}
	return names
}

// Listing is how the engines' lists of models agree with the pool's model. Engines that have listed nothing do not count.
type Listing struct {
	// Endpoints whose engines have listed models, and those of them whose lists lack the pool's model.
	Endpoints, Lacking int
	// Pod is the first of the lacking ones, and Served some of the names that it lists instead.
	Pod    string
	Served []string
}

// listing compares what the engines of the pool list with its model.
func (v *view) listing() (l Listing) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.spec.Endpoints {
		ep := &v.spec.Endpoints[i]
		models := v.listed[ep.ID]
		if len(models) == 0 || ep.Terminating {
			continue
		}
		l.Endpoints++
		if v.spec.named(models) {
			continue
		}
		if l.Lacking++; l.Lacking == 1 {
			l.Pod, l.Served = ep.Pod, someNames(models)
		}
	}
	return l
}

// named reports whether an engine's list has the name of the base model. An alias is not enough: requests reach the engine with the
// name that clients use. An empty list reports nothing.
func (s *Spec) named(models []ListedModel) bool {
	return len(models) == 0 || s.Model == "" || slices.ContainsFunc(models, func(m ListedModel) bool { return m.Name == s.Model })
}

// maxLen is the context length that an engine reports, in tokens; 0 if it reports none.
func (v *view) maxLen(id endpoint.ID) (most int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, m := range v.listed[id] {
		most = max(most, m.MaxLen)
	}
	return most
}

// hasAdapter reports whether an engine lists an adapter of that name.
func hasAdapter(models []ListedModel, name string) bool {
	return slices.ContainsFunc(models, func(m ListedModel) bool { return m.Parent != "" && m.Name == name })
}

// servable reports whether a request to the pool has a chance to be served: some endpoint is there, if only to become
// ready, or the request itself brings one. A pool that is scaled to zero stays listed for that reason: clients choose
// from the list, and a model that they cannot choose would never be woken. Without a queue nothing is held until the
// endpoint is there, and the request that asks for it fails.
func (v *view) servable() bool {
	if v.spec.FromZero && v.spec.Policy.Admission.Queue {
		return true
	}
	return slices.ContainsFunc(v.spec.Endpoints, func(ep endpoint.Endpoint) bool { return !ep.Terminating })
}

// models are the names of one pool: its model, its aliases, and adapters by name.
func (v *view) models() []Model {
	v.mu.Lock()
	defer v.mu.Unlock()
	listed := v.merged()
	seen := map[string]bool{}
	var models []Model
	add := func(name, parent string) {
		if !seen[name] {
			seen[name] = true
			m := listed[name]
			m.Name, m.Parent = name, parent
			models = append(models, Model{ListedModel: m, Namespace: v.spec.Namespace, Pool: v.spec.Name})
		}
	}
	add(v.spec.Model, "")
	for _, name := range v.spec.Aliases {
		add(name, "")
	}
	adapters := slices.Clone(v.spec.Adapters)
	if v.spec.DiscoverAdapters {
		for _, models := range v.listed {
			for i := range models {
				if models[i].Parent != "" {
					adapters = append(adapters, models[i].Name)
				}
			}
		}
	}
	sort.Strings(adapters)
	for _, name := range adapters {
		add(name, v.spec.Model)
	}
	return models
}

// merged is what the engines list, by name. Engines of one pool can differ while they are replaced: the root is that of the
// first endpoint that reports one, and the length the smallest, because a request can be sent to any of them. v.mu is held.
func (v *view) merged() map[string]ListedModel {
	all := map[string]ListedModel{}
	for i := range v.spec.Endpoints {
		for _, m := range v.listed[v.spec.Endpoints[i].ID] {
			known := all[m.Name]
			if known.Root == "" {
				known.Root = m.Root
			}
			if known.MaxLen == 0 || m.MaxLen > 0 && m.MaxLen < known.MaxLen {
				known.MaxLen = m.MaxLen
			}
			all[m.Name] = known
		}
	}
	return all
}

// ModelsFor lists the names that a client is allowed to use, in a stable order, with the pool's namespace and name. Pools that
// nothing can serve are left out. It fails with an *Error when the client is no known tenant of any pool, or lacks the key
// that the engines of all of them require.
func (p *Picker) ModelsFor(header func(string) string) ([]Model, error) {
	return p.current.Load().offered(header, (*view).servable)
}

// ListsModels reports whether no engine lists all models that clients can use: there are several pools, or routes have names.
func (p *Picker) ListsModels() bool {
	s := p.current.Load()
	return len(s.pools) > 1 || len(s.routes) > 0
}

// offered are the models of routes and pools that a client can use. A route hides what a pool has under the same name.
func (s *snapshot) offered(header func(string) string, counts func(*view) bool) ([]Model, error) {
	models, err := s.modelsFor(header, true, counts)
	if err != nil || len(s.routes) == 0 {
		return models, err
	}
	models = slices.DeleteFunc(models, func(m Model) bool { return s.routes[m.Name] != nil })
	return append(s.routeModels(header), models...), nil
}

// modelsFor is ModelsFor for the pools that count. Without checked, the engines' keys are left to the engines.
func (s *snapshot) modelsFor(header func(string) string, checked bool, counts func(*view) bool) ([]Model, error) {
	var models []Model
	var refused error
	known := false
	for _, v := range s.pools {
		_, class, err := v.spec.Policy.Admission.Tenants.identify(header)
		if err == nil && checked {
			err = v.spec.checkKey(header)
		}
		if err != nil {
			refused = err
			continue
		}
		known = true
		if counts(v) {
			forbidden := func(m Model) bool { return !class.Allows(m.Name) }
			models = append(models, slices.DeleteFunc(v.models(), forbidden)...)
		}
	}
	if !known && refused != nil {
		return nil, refused
	}
	return models, nil
}

// sole is the model of a request that names none: that of the only pool with a model that the client can use. Engines
// take such a request for their base model. So its name, or an alias, must be among those that the client is allowed to use, and
// adapters do not make the choice ambiguous, as they do not on the engine. Pools without endpoints count, though they are
// not listed: a request must not go to another model because the pods of one restart.
func (s *snapshot) sole(in *Request) (string, bool) {
	models, err := s.modelsFor(in.Header, false, func(v *view) bool { return in.Pool == "" || v.name == in.Pool })
	if err != nil || len(models) == 0 || models[0].Parent != "" {
		return "", false
	}
	first := &models[0]
	for i := range models {
		if models[i].Namespace != first.Namespace || models[i].Pool != first.Pool {
			return "", false
		}
	}
	return first.Name, true
}
