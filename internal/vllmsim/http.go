package vllmsim

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/enginemodel"
)

// Version is what /version reports.
const Version = "0.24.0+sim"

// handler serves what the engine does, and /sim/blocks, which tells the truth about the cache: how many blocks it has,
// and how many physical ones.
func (e *Engine) handler() http.Handler {
	mux := http.NewServeMux()
	empty := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }
	mux.HandleFunc("GET /health", empty)
	mux.HandleFunc("GET /ping", empty)
	mux.HandleFunc("POST /ping", empty)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		e.writeJSON(w, map[string]string{"version": Version})
	})
	mux.HandleFunc("GET /load", func(w http.ResponseWriter, _ *http.Request) {
		e.writeJSON(w, map[string]int{"server_load": 0})
	})
	mux.HandleFunc("GET /metrics", e.serveMetrics)
	mux.HandleFunc("GET /v1/models", e.serveModels)
	mux.HandleFunc("POST /v1/completions", e.handle(e.serveCompletion))
	mux.HandleFunc("POST /v1/chat/completions", e.handle(e.serveChat))
	mux.HandleFunc("POST /v1/completions/render", e.handle(e.renderCompletion))
	mux.HandleFunc("POST /v1/chat/completions/render", e.handle(e.renderChat))
	mux.HandleFunc("POST /tokenize", e.handle(e.serveTokenize))
	mux.HandleFunc("POST /detokenize", e.handle(e.serveDetokenize))
	mux.HandleFunc("POST /reset_prefix_cache", func(w http.ResponseWriter, _ *http.Request) {
		e.writeJSON(w, map[string]bool{"success": e.ResetPrefixCache()})
	})
	mux.HandleFunc("GET /sim/blocks", func(w http.ResponseWriter, _ *http.Request) {
		blocks, copies := e.Blocks(), 0
		for _, n := range blocks {
			copies += n
		}
		e.writeJSON(w, map[string]int{"blocks": len(blocks), "copies": copies})
	})
	return e.authorize(mux)
}

// authorize guards /v1 with the API keys, if there are any.
func (e *Engine) authorize(next http.Handler) http.Handler {
	if len(e.cfg.APIKeys) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1") && !e.knownKey(r.Header.Get("Authorization")) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			e.write(w, []byte(`{"error":"Unauthorized"}`))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (e *Engine) knownKey(header string) bool {
	given, ok := strings.CutPrefix(header, "Bearer ")
	known := false
	for _, key := range e.cfg.APIKeys {
		known = known || subtle.ConstantTimeCompare([]byte(given), []byte(key)) == 1
	}
	return ok && known
}

// apiError is an answer in the shape of the engine's errors.
type apiError struct {
	status  int
	kind    string
	message string
	param   string // empty: null
}

func (e *apiError) Error() string { return e.message }

func badRequest(param, message string) error {
	return &apiError{status: http.StatusBadRequest, kind: "BadRequestError", message: message, param: param}
}

// handle reads a JSON body for serve and answers with its error, if it has not begun to answer.
func (e *Engine) handle(serve func(w http.ResponseWriter, r *http.Request, body []byte) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		e.cfg.Log.V(1).Info("Request came", "path", r.URL.Path)
		body, err := readBody(w, r, e.cfg.MaxBody)
		if err == nil {
			err = serve(w, r, body)
		}
		if err != nil {
			e.writeError(w, err)
		}
	}
}

func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	var body []byte
	var err error
	limited := http.MaxBytesReader(w, r.Body, limit)
	if n := r.ContentLength; n > 0 && n <= limit {
		body = make([]byte, n)
		_, err = io.ReadFull(limited, body)
	} else {
		body, err = io.ReadAll(limited)
	}
	if err != nil {
		return nil, badRequest("", "reading the body: "+err.Error())
	}
	return body, nil
}

// decode reads JSON into v.
func decode(body []byte, v any) error {
	if err := json.Unmarshal(body, v); err != nil {
		return badRequest("", "the body is not what this endpoint takes: "+err.Error())
	}
	return nil
}

func (e *Engine) writeError(w http.ResponseWriter, err error) {
	var a *apiError
	var tooLong *enginemodel.ContextError
	switch {
	case errors.As(err, &a):
	case errors.As(err, &tooLong), errors.Is(err, enginemodel.ErrInvalid):
		a = &apiError{status: http.StatusBadRequest, kind: "BadRequestError", message: err.Error()}
	default:
		a = &apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: err.Error()}
	}
	var param any
	if a.param != "" {
		param = a.param
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.status)
	e.encode(w, map[string]any{"error": map[string]any{"message": a.message, "type": a.kind, "param": param, "code": a.status}})
}

func (e *Engine) writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e.encode(w, v)
}

func (e *Engine) encode(w io.Writer, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		e.cfg.Log.Error(err, "Encoding an answer failed")
		return
	}
	e.write(w, b)
}

// write sends bytes to a client that may be gone.
func (e *Engine) write(w io.Writer, b []byte) {
	if _, err := w.Write(b); err != nil {
		e.cfg.Log.V(1).Info("Writing an answer failed", "error", err.Error())
	}
}

func (e *Engine) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	e.write(w, []byte(e.metrics.text()))
}

func (e *Engine) serveModels(w http.ResponseWriter, _ *http.Request) {
	var data []map[string]any
	model := func(id string, parent any) {
		data = append(data, map[string]any{
			"id": id, "object": "model", "created": e.created.Unix(), "owned_by": "vllm", "root": id, "parent": parent,
			"max_model_len": e.loop.model.Config().MaxModelLen, "permission": []any{},
		})
	}
	for _, name := range e.cfg.ServedModelNames {
		model(name, nil)
	}
	for _, name := range e.cfg.LoRAs {
		model(name, e.cfg.ServedModelNames[0])
	}
	e.writeJSON(w, map[string]any{"object": "list", "data": data})
}
