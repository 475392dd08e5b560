package extproc

import (
	"bytes"
	"errors"
	"mime"
	"slices"
	"strconv"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// head is a request's header, its names in lower case. Envoy's pseudo headers (:method, :path) are among them; other
// gateways send none.
type head []*core.HeaderValue

func headOf(m *core.HeaderMap) head { return m.GetHeaders() }

// get reads a header by its lower-case name: the first of that name.
func (h head) get(name string) string {
	if name == picker.CertificateHeader {
		return "" // it is the gateway that knows its clients
	}
	for _, v := range h {
		if strings.EqualFold(v.GetKey(), name) {
			return valueOf(v)
		}
	}
	return ""
}

// has reports whether there is a header of a lower-case name, of any value: the first of several can be empty.
func (h head) has(name string) bool {
	return slices.ContainsFunc(h, func(v *core.HeaderValue) bool { return strings.EqualFold(v.GetKey(), name) })
}

// each calls f with every name, in lower case.
func (h head) each(f func(name string)) {
	for _, v := range h {
		f(strings.ToLower(v.GetKey()))
	}
}

// valueOf reads a header's value, which Envoy sends raw and others as text.
func valueOf(v *core.HeaderValue) string {
	if len(v.GetRawValue()) > 0 {
		return string(v.GetRawValue())
	}
	return v.GetValue()
}

// routeOf returns the API operation of a request; false for one that cannot be read, which is then routed by load.
func routeOf(h head, body []byte) (openai.Route, bool) {
	if method := h.get(":method"); method != "" && method != "POST" {
		return 0, false
	}
	if coding := h.get("content-encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return 0, false
	}
	if kind, _, _ := mime.ParseMediaType(h.get("content-type")); strings.HasPrefix(kind, "multipart/") {
		return 0, false
	}
	path := h.path()
	switch path {
	case "":
		return routeByShape(body)
	case openai.CountTokens:
		return openai.Messages, true
	}
	return openai.RouteOf(path)
}

// path is the path of the request, from /v1/ on: a route can be below a prefix that is removed on the way. It is empty when
// the gateway does not send it.
func (h head) path() string {
	path := h.whole()
	return path[max(0, strings.LastIndex(path, "/v1/")):]
}

// whole is the path of the request.
func (h head) whole() string {
	path := h.get(":path")
	if i := strings.IndexAny(path, "?#"); i >= 0 {
		path = path[:i]
	}
	return path
}

// asksForHealth reports whether a request without a body is a health check of an engine.
func (h head) asksForHealth() bool {
	method := h.get(":method")
	return h.whole() == openai.Health && (method == "GET" || method == "HEAD")
}

// length is the announced length of the body; -1 if it is not known.
func (h head) length() int64 {
	n, err := strconv.ParseInt(h.get("content-length"), 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// isMessages reports whether the request is one of the Anthropic API, whose errors have another form.
func (h head) isMessages() bool {
	route, ok := openai.RouteOf(h.path())
	return ok && route == openai.Messages || h.path() == openai.CountTokens
}

// routeByShape infers the operation from the body alone, for gateways that send no path: with messages it is a chat, with a
// prompt a completion. A body that is not JSON but begins like it counts as a chat, so that it is refused.
func routeByShape(body []byte) (openai.Route, bool) {
	if text := bytes.TrimLeft(body, " \t\r\n"); len(text) == 0 || text[0] != '{' {
		return 0, false
	}
	var r openai.Request
	err := openai.Parse(openai.ChatCompletions, body, &r)
	if field := (*openai.FieldError)(nil); !errors.As(err, &field) { // it is a chat, or cannot be read
		return openai.ChatCompletions, true
	}
	return openai.Completions, openai.Parse(openai.Completions, body, &r) == nil
}
