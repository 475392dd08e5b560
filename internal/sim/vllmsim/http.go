package vllmsim

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// apiError is an answer in the shape of the engine's errors.
type apiError struct {
	status  int
	kind    string
	message string
	param   string // empty: null
	list    bool   // the body is a list
}

func (e *apiError) Error() string { return e.message }

// invalid is the error about a body that does not have the form that the endpoint takes: "Bad Request", where other
// errors of a client are "BadRequestError".
func invalid(param, message string) error {
	return &apiError{status: http.StatusBadRequest, kind: http.StatusText(http.StatusBadRequest), message: message, param: param}
}

func badRequest(param, message string) error {
	return &apiError{status: http.StatusBadRequest, kind: "BadRequestError", message: message, param: param}
}

// handle reads a JSON body for serve and answers with its error, if it has not begun to answer.
func (e *Engine) handle(serve func(w http.ResponseWriter, r *http.Request, body []byte) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		e.cfg.Log.V(1).Info("Request received", "path", r.URL.Path)
		body, err := readBody(w, r, e.cfg.MaxBody)
		if err == nil && !isJSON(r.Header.Get("Content-Type")) {
			err = invalid("", "the content type must be application/json")
		}
		if err == nil {
			err = serve(w, r, body)
		}
		if err != nil {
			e.writeError(w, err)
		}
	}
}

// isJSON reports whether a content type is the one that the engine takes. Unlike the engine it takes requests without.
func isJSON(contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	return media == "" || strings.EqualFold(media, "application/json")
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

// decode reads a body into v, which must be an object.
func decode(body []byte, v any) error {
	err := json.Unmarshal(body, v)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case len(body) > 0 && errors.As(err, &syntax):
		return invalid("body."+strconv.FormatInt(syntax.Offset, 10), "the body is not JSON: "+err.Error())
	case errors.As(err, &kind) && kind.Field != "":
		return invalid("body."+strings.TrimPrefix(kind.Field, "common."), err.Error())
	case len(body) == 0 || body[0] != '{':
		const form = http.StatusBadRequest
		return &apiError{
			status: form, kind: http.StatusText(form), message: "the body is no object: " + err.Error(), param: "body",
			list: len(body) > 0 && body[0] == '[',
		}
	}
	return badRequest("", "the body is not what this endpoint takes: "+err.Error())
}

func (e *Engine) writeError(w http.ResponseWriter, err error) {
	var a *apiError
	var tooLong *enginemodel.ContextError
	switch {
	case errors.As(err, &a):
		amended := *a
		a = &amended
		e.cfg.Release.amend(a)
	case errors.As(err, &tooLong):
		a = &apiError{status: http.StatusBadRequest, kind: "BadRequestError", message: err.Error(), param: "input_tokens"}
		if tooLong.Prompt == tooLong.Max && !e.cfg.Release.refusesLongAnswers() {
			a.param = "max_tokens" // it is the answer that has no room
		}
	case errors.Is(err, enginemodel.ErrInvalid):
		a = &apiError{status: http.StatusBadRequest, kind: "BadRequestError", message: err.Error()}
	default:
		a = &apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: err.Error()}
	}
	if errors.As(err, new(messagesError)) {
		e.writeStatus(w, a.status, map[string]any{"type": "error", "error": map[string]any{"type": a.kind, "message": a.message}})
		return
	}
	e.writeStatus(w, a.status, a.body())
}

// body is the JSON of an error.
func (e *apiError) body() map[string]any {
	var param any
	if e.param != "" {
		param = e.param
	}
	return map[string]any{"error": map[string]any{"message": e.message, "type": e.kind, "param": param, "code": e.status}}
}

func (e *Engine) writeJSON(w http.ResponseWriter, v any) { e.writeStatus(w, http.StatusOK, v) }

func (e *Engine) writeStatus(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
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

// write sends bytes to a client that might be gone.
func (e *Engine) write(w io.Writer, b []byte) {
	if _, err := w.Write(b); err != nil {
		e.cfg.Log.V(1).Info("Writing an answer failed", "error", err.Error())
	}
}
