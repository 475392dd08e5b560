package vllmsim

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
)

// adapter is a loaded LoRA adapter; the zero value is none.
type adapter struct {
	name, path string
	id         int // in events
}

// adapters are those that are loaded.
type adapters struct {
	mu     sync.Mutex
	list   []adapter // guarded by mu, in order of loading
	lastID int       // guarded by mu; numbers are not used again
}

// newAdapters are those that an engine starts with.
func newAdapters(names []string) *adapters {
	a := &adapters{}
	for _, name := range names {
		a.lastID++
		a.list = append(a.list, adapter{name: name, path: name, id: a.lastID})
	}
	return a
}

func (a *adapters) all() []adapter {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.list)
}

func (a *adapters) find(name string) (adapter, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := a.index(name)
	if i < 0 {
		return adapter{}, false
	}
	return a.list[i], true
}

// index of an adapter, or -1. a.mu is held.
func (a *adapters) index(name string) int {
	return slices.IndexFunc(a.list, func(one adapter) bool { return one.name == name })
}

// load adds an adapter, or replaces the path of one that is loaded in place. It reports whether it did.
func (a *adapters) load(name, path string, inPlace bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := a.index(name); i >= 0 {
		if inPlace {
			a.list[i].path = path
		}
		return inPlace
	}
	a.lastID++
	a.list = append(a.list, adapter{name: name, path: path, id: a.lastID})
	return true
}

// skip uses a number up without an adapter.
func (a *adapters) skip() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lastID++
}

// unload removes an adapter and reports whether it was loaded. Its blocks stay in the cache.
func (a *adapters) unload(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := a.index(name)
	if i < 0 {
		return false
	}
	a.list = slices.Delete(a.list, i, i+1)
	return true
}

// adapterRequest asks for an adapter to be loaded or unloaded.
type adapterRequest struct {
	Name    *string `json:"lora_name"`
	Path    *string `json:"lora_path"`
	InPlace bool    `json:"load_inplace"`
}

func invalidAdapter(message string) error {
	return &apiError{status: http.StatusBadRequest, kind: "InvalidUserInput", message: message}
}

// loadAdapter takes every path that is not one of this machine, such as the name of a repository: nothing is read from it.
func (e *Engine) loadAdapter(w http.ResponseWriter, _ *http.Request, body []byte) error {
	var req adapterRequest
	if err := decode(body, &req); err != nil {
		return err
	}
	switch {
	case req.Name == nil:
		return invalid("body.lora_name", "the adapter's name is missing")
	case req.Path == nil:
		return invalid("body.lora_path", "the adapter's path is missing")
	case *req.Name == "" || *req.Path == "":
		return invalidAdapter("an adapter has a name and a path")
	case e.cfg.Release >= sinceBaseNameRefused && slices.Contains(e.cfg.ServedModelNames, *req.Name):
		return invalidAdapter("the name is that of the model")
	}
	if _, loaded := e.adapters.find(*req.Name); loaded && !req.InPlace {
		return invalidAdapter("the adapter is loaded already")
	}
	if filepath.IsAbs(*req.Path) {
		if _, err := os.Stat(filepath.Join(*req.Path, "adapter_config.json")); err != nil {
			e.adapters.skip()
			return &apiError{status: http.StatusNotFound, kind: "NotFoundError", message: "there is no adapter at this path"}
		}
	}
	if !e.adapters.load(*req.Name, *req.Path, req.InPlace) {
		return invalidAdapter("the adapter is loaded already")
	}
	e.writePlain(w, fmt.Sprintf("Success: LoRA adapter '%s' added successfully.", *req.Name))
	return nil
}

func (e *Engine) unloadAdapter(w http.ResponseWriter, _ *http.Request, body []byte) error {
	var req adapterRequest
	if err := decode(body, &req); err != nil {
		return err
	}
	switch {
	case req.Name == nil:
		return invalid("body.lora_name", "the adapter's name is missing")
	case *req.Name == "":
		return invalidAdapter("the adapter's name is missing")
	case !e.adapters.unload(*req.Name):
		return &apiError{status: http.StatusNotFound, kind: "NotFoundError", message: "no such adapter is loaded"}
	}
	e.writePlain(w, fmt.Sprintf("Success: LoRA adapter '%s' removed successfully.", *req.Name))
	return nil
}

// writePlain answers with text that has no content type.
func (e *Engine) writePlain(w http.ResponseWriter, text string) {
	w.Header()["Content-Type"] = nil
	e.write(w, []byte(text))
}

// checkRank refuses a request whose header names a data-parallel rank that the engine does not have. A header that is no
// number is ignored.
func (e *Engine) checkRank(r *http.Request) error {
	rank, err := strconv.Atoi(r.Header.Get("X-Data-Parallel-Rank"))
	if err == nil && (rank < 0 || rank >= e.cfg.DataParallelSize) {
		return badRequest("", fmt.Sprintf("the engine has no rank %d, but %d ranks", rank, e.cfg.DataParallelSize))
	}
	return nil
}
