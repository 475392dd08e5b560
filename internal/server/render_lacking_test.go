package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/render"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// TestWhatAnEngineLacksIsNamedByItsRelease: vLLM 0.30 and 0.31 answer 404 where --enable-scale-out is missing, as releases
// do that have no render routes.
func TestWhatAnEngineLacksIsNamedByItsRelease(t *testing.T) {
	for _, c := range []struct {
		name, release, want string
		status              int
	}{
		{"before the routes", "0.14.1", "they came with vLLM 0.15", http.StatusNotFound},
		{"unknown", "", "need --enable-scale-out from 0.30 on", http.StatusNotFound},
		{"without the flag, 404", "0.30.0", "runs without --enable-scale-out", http.StatusNotFound},
		{"without the flag, 403", "0.32.0", "runs without --enable-scale-out", http.StatusForbidden},
	} {
		t.Run(c.name, func(t *testing.T) {
			engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/tokenize" {
					_, _ = w.Write([]byte(`{"tokens":[1]}`))
					return
				}
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(`{"error":{"message":"Scale-out endpoints are disabled: --enable-scale-out"}}`))
			}))
			defer engine.Close()
			ep := &endpoint.Endpoint{ID: endpoint.ID{Pod: "a"}, Pod: "a", Address: strings.TrimPrefix(engine.URL, "http://")}
			r := renderer{Client: render.New(render.Options{}), releases: &releases{}}
			if c.release != "" {
				r.releases.set(ep.ID, c.release)
			}
			out, err := r.Tokens(t.Context(), ep, &openai.Request{Route: openai.Completions}, []byte(`{"model":"m","prompt":"Say hello"}`), "")
			if err != nil || !strings.Contains(out.Lacking, c.want) {
				t.Errorf("got %q, %v, want %q", out.Lacking, err, c.want)
			}
		})
	}
}

// TestADeadEngineIsUnreachable: its port refuses connections, or its host never answers and the request's time is over, which
// says nothing about it.
func TestADeadEngineIsUnreachable(t *testing.T) {
	for name, tc := range map[string]struct {
		dial error
		want bool
	}{
		"refused":                           {&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, true},
		"expired":                           {&net.OpError{Op: "dial", Err: context.DeadlineExceeded}, false},
		"refused here, without descriptors": {&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}, false},
		"reset":                             {&net.OpError{Op: "read", Err: syscall.ECONNRESET}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dial := func(context.Context, string, string) (net.Conn, error) { return nil, tc.dial }
			r := renderer{Client: render.New(render.Options{Dial: dial}), releases: &releases{}}
			ep := &endpoint.Endpoint{ID: endpoint.ID{Pod: "a"}, Pod: "a", Address: "10.0.0.1:8000"}
			_, err := r.Tokens(t.Context(), ep, &openai.Request{Route: openai.Completions}, []byte(`{"model":"m","prompt":"Say hello"}`), "")
			if err == nil || errors.Is(err, picker.ErrUnreachable) != tc.want {
				t.Errorf("%v, want unreachable %t", err, tc.want)
			}
			if local := errors.Is(err, syscall.EMFILE); errors.Is(err, picker.ErrUnrenderable) != local {
				t.Errorf("%v, want it to concern no engine: %t", err, local)
			}
		})
	}
}

// TestAnAnswerWithoutRoomIsTheMemorys: not the engine's fault, nor the request's.
func TestAnAnswerWithoutRoomIsTheMemorys(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"token_ids":[1` + strings.Repeat(",1", 60_000) + `]}`))
	}))
	defer engine.Close()
	ep := &endpoint.Endpoint{ID: endpoint.ID{Pod: "a"}, Pod: "a", Address: strings.TrimPrefix(engine.URL, "http://")}
	r := renderer{Client: render.New(render.Options{Room: budget.NewRoom(64 << 10)}), releases: &releases{}}
	_, err := r.Tokens(t.Context(), ep, &openai.Request{Route: openai.Completions}, []byte(`{"model":"m","prompt":"Say hello"}`), "")
	if !errors.Is(err, picker.ErrUnrenderable) || !errors.Is(err, picker.ErrNoRoom) || errors.Is(err, picker.ErrNotAsked) {
		t.Errorf("got %v", err)
	}
	if want := "the memory for what engines send is full"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want it to say %q", err, want)
	}
}
