package vllmsim

import (
	"crypto/subtle"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// route is a path with a handler for each method that the engine takes there.
type route map[string]http.HandlerFunc

func onGet(h http.HandlerFunc) route  { return route{http.MethodGet: h} }
func onPost(h http.HandlerFunc) route { return route{http.MethodPost: h} }

// routes are those of the release, and /sim/blocks, which reports the true state of the cache: how many different blocks it
// holds, and how many physical ones.
func (e *Engine) routes() map[string]route {
	release := e.cfg.Release
	routes := map[string]route{
		"/health":                   onGet(e.serveNothing),
		"/ping":                     {http.MethodGet: e.serveNothing, http.MethodPost: e.serveNothing},
		"/version":                  onGet(e.serveVersion),
		"/load":                     onGet(e.serveLoad),
		"/metrics":                  onGet(e.serveMetrics),
		"/v1/models":                onGet(e.serveModels),
		"/v1/completions":           onPost(e.handle(e.serveCompletion)),
		"/v1/chat/completions":      onPost(e.handle(e.serveChat)),
		responsesPath:               onPost(e.handle(e.serveResponses)),
		"/v1/messages":              onPost(e.handle(e.serveMessages)),
		"/v1/messages/count_tokens": onPost(e.handle(e.serveCount)),
		"/v1/embeddings":            onPost(e.handle(e.serveEmbeddings)),
		"/tokenize":                 onPost(e.handle(e.serveTokenize)),
		"/detokenize":               onPost(e.handle(e.serveDetokenize)),
		"/reset_prefix_cache":       onPost(e.serveReset),
		"/is_sleeping":              onGet(e.serveIsSleeping),
		"/sleep":                    onPost(e.serveSleep),
		"/wake_up":                  onPost(e.serveWake),
		"/sim/blocks":               onGet(e.serveBlocks),
	}
	for _, path := range []string{"/score", "/v1/score"} {
		routes[path] = onPost(e.handle(e.serveScore))
	}
	for _, path := range []string{"/rerank", "/v1/rerank", "/v2/rerank"} {
		routes[path] = onPost(e.handle(e.serveRerank))
	}
	closed := e.cfg.NoScaleOut && release >= SinceScaleOut && !release.gatesScaleOut()
	if release.rendersRequests() && !closed {
		routes["/v1/completions/render"] = onPost(e.scaleOut(e.handle(e.renderCompletion)))
		routes["/v1/chat/completions/render"] = onPost(e.scaleOut(e.handle(e.renderChat)))
	}
	if release.rendersMessages() && !closed {
		routes["/v1/messages/render"] = onPost(e.scaleOut(e.handle(e.renderMessages)))
	}
	if release.rendersResponses() && !closed {
		routes["/v1/responses/render"] = onPost(e.scaleOut(e.handle(e.renderResponses)))
	}
	if release.generates() && !closed {
		routes["/inference/v1/generate"] = onPost(e.scaleOut(e.handle(e.serveGenerate)))
	}
	if release.pauses() {
		routes["/pause"], routes["/resume"], routes["/is_paused"] = onPost(e.servePause), onPost(e.serveResume), onGet(e.serveIsPaused)
	}
	if e.cfg.Transfer.Enabled {
		routes[sideChannel] = route{http.MethodGet: e.serveHeld, http.MethodDelete: e.serveHeld}
		routes[peerPath] = onPost(e.servePeer)
		routes[bootstrapPath] = onGet(e.serveBootstrap)
	}
	if e.cfg.RuntimeLoRA {
		routes["/v1/load_lora_adapter"] = onPost(e.handle(e.loadAdapter))
		routes["/v1/unload_lora_adapter"] = onPost(e.handle(e.unloadAdapter))
	}
	if release.namesEventSources() {
		routes["/kv_event_sources"] = onGet(e.serveEventSources)
	}
	if e.cfg.Pooling {
		maps.DeleteFunc(routes, func(path string, _ route) bool {
			return path == "/inference/v1/generate" || strings.HasPrefix(path, "/v1/completions") || strings.HasPrefix(path, "/v1/chat/") ||
				strings.HasPrefix(path, "/v1/messages") || strings.HasPrefix(path, responsesPath)
		})
	}
	return routes
}

// handler serves the routes, behind the API keys.
func (e *Engine) handler() http.Handler {
	routes := e.routes()
	return e.authorize(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "uvicorn")
		w.Header().Set("Vary", "Origin")
		methods, ok := routes[r.URL.Path]
		if !ok {
			methods, ok = e.stored(r.URL.Path)
		}
		if !ok {
			e.writeStatus(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
			return
		}
		serve, ok := methods[r.Method]
		if !ok {
			w.Header().Set("Allow", strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
			e.writeStatus(w, http.StatusMethodNotAllowed, map[string]string{"detail": "Method Not Allowed"})
			return
		}
		serve(w, r)
	}))
}

// scaleOut guards routes that releases from 0.32 on answer with 403 unless --enable-scale-out opens them.
func (e *Engine) scaleOut(next http.HandlerFunc) http.HandlerFunc {
	if !e.cfg.Release.gatesScaleOut() || !e.cfg.NoScaleOut {
		return next
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		e.writeError(w, &apiError{status: http.StatusForbidden, kind: "PermissionDeniedError",
			message: "Scale-out endpoints are disabled: --enable-scale-out opens them."})
	}
}

// authorize guards the prefixes of the API with the keys, if there are any.
func (e *Engine) authorize(next http.Handler) http.Handler {
	if len(e.cfg.APIKeys) == 0 {
		return next
	}
	guarded := e.cfg.Release.guardedPrefixes()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		under := func(prefix string) bool { return strings.HasPrefix(r.URL.Path, prefix) }
		if r.Method != http.MethodOptions && slices.ContainsFunc(guarded, under) && !e.knownKey(r.Header.Get("Authorization")) {
			w.Header().Set("Server", "uvicorn")
			e.writeStatus(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (e *Engine) knownKey(header string) bool {
	scheme, given, ok := strings.Cut(header, " ")
	known := false
	for _, key := range e.cfg.APIKeys {
		known = known || subtle.ConstantTimeCompare([]byte(given), []byte(key)) == 1
	}
	return ok && strings.EqualFold(scheme, "bearer") && known
}

func (e *Engine) serveNothing(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

func (e *Engine) serveVersion(w http.ResponseWriter, _ *http.Request) {
	e.writeJSON(w, map[string]string{"version": e.cfg.Release.String() + "+sim"})
}

func (e *Engine) serveLoad(w http.ResponseWriter, _ *http.Request) {
	e.writeJSON(w, map[string]int{"server_load": 0})
}

func (e *Engine) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
	e.write(w, []byte(e.metrics.text()))
}

func (e *Engine) serveReset(w http.ResponseWriter, _ *http.Request) {
	ok := e.ResetPrefixCache()
	if e.cfg.Release.sendsReset() {
		e.writeJSON(w, map[string]bool{"success": ok})
	}
}

func (e *Engine) serveBlocks(w http.ResponseWriter, _ *http.Request) {
	blocks, copies := e.Blocks(), 0
	for _, n := range blocks {
		copies += n
	}
	e.writeJSON(w, map[string]int{"blocks": len(blocks), "copies": copies})
}

// serveEventSources returns where each data-parallel rank publishes its events.
func (e *Engine) serveEventSources(w http.ResponseWriter, _ *http.Request) {
	out := map[string]any{}
	if e.pub != nil {
		c := e.cfg.Events
		source := map[string]any{
			"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://" + e.EventsAddr(), "replay_endpoint": nil,
			"buffer_steps": c.BufferSteps, "hwm": c.HWM, "max_queue_size": DefaultHWM, "topic": c.Topic,
		}
		if c.Connect {
			source["endpoint"] = c.Endpoint
		}
		if !c.NoReplay {
			source["replay_endpoint"] = "tcp://" + e.ReplayAddr()
		}
		out[strconv.Itoa(e.cfg.DataParallelRank)] = source
	}
	e.writeJSON(w, out)
}

// serveModels lists the base model by its names, and the adapters.
func (e *Engine) serveModels(w http.ResponseWriter, _ *http.Request) {
	var data []map[string]any
	created := e.created.Unix()
	model := func(id, root string, parent, length any) {
		data = append(data, map[string]any{
			"id": id, "object": "model", "created": created, "owned_by": "vllm", "root": root, "parent": parent,
			"max_model_len": length, "permission": []any{map[string]any{
				"id": "modelperm-" + id, "object": "model_permission", "created": created, "allow_create_engine": false,
				"allow_sampling": true, "allow_logprobs": true, "allow_search_indices": false, "allow_view": true,
				"allow_fine_tuning": false, "organization": "*", "group": nil, "is_blocking": false,
			}},
		})
	}
	for _, name := range e.cfg.ServedModelNames {
		model(name, e.cfg.ModelRoot, nil, e.loop.model.Config().MaxModelLen)
	}
	for _, a := range e.adapters.all() {
		model(a.name, a.path, e.cfg.ServedModelNames[0], nil)
	}
	e.writeJSON(w, map[string]any{"object": "list", "data": data})
}
