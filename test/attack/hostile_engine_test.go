package attack

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"
)

// Engines of a pool of their own that answer everything without end.

// hostileEngine is one of them, for as long as it may, and refuses no connection for events either.
func (a *army) hostileEngine(ctx context.Context, worker int) {
	l, err := net.Listen("tcp", a.at.Engines[worker])
	if err != nil {
		return
	}
	s := &http.Server{Handler: http.HandlerFunc(endless), ReadHeaderTimeout: patience, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	_ = s.Serve(l)
}

// endless answers a request, and does not end.
func endless(w http.ResponseWriter, r *http.Request) {
	_, _ = io.CopyN(io.Discard, r.Body, 1<<20)
	switch path := r.URL.Path; {
	case path == "/metrics":
		flow(w, r, "", []string{"vllm:num_requests_running{a=\"b\"} 1\n", strings.Repeat("x", 1000)}[rand.IntN(2)])
	case path == "/v1/models":
		flow(w, r, `{"object":"list","data":[{"id":"h"}`, `,{"id":"h"}`)
	case strings.HasSuffix(path, "/render") && rand.IntN(2) == 0:
		flow(w, r, `[{}`, `,{}`)
	case strings.HasSuffix(path, "/render"), path == "/tokenize":
		flow(w, r, `{"token_ids":[1`, `,1`)
	case r.Method != http.MethodPost:
		flow(w, r, `{"version":"`, "x")
	default:
		endlessAnswer(w, r)
	}
}

// endlessAnswer is one to a prompt.
func endlessAnswer(w http.ResponseWriter, r *http.Request) {
	kind := rand.IntN(5)
	w.Header().Set("Content-Type", []string{"text/event-stream", "application/json"}[kind%2])
	switch kind {
	case 0:
		flow(w, r, "data: ", "x") // a line without an end
	case 1:
		flow(w, r, `{"choices":[{"text":"`, "x")
	case 2:
		flow(w, r, "", "data: {\"choices\":[{\"text\":\"x\"}]}\n\n")
	case 3:
		for i := range 20_000 {
			w.Header().Set(fmt.Sprint("X-", i), "x")
		}
		w.WriteHeader(http.StatusOK)
	default:
		for range 10_000 {
			w.WriteHeader(http.StatusEarlyHints)
		}
	}
}

// flow writes a beginning and then the same again and again, as fast as is not the attackers' own flood.
func flow(w http.ResponseWriter, r *http.Request, begin, again string) {
	_, err := io.WriteString(w, begin)
	piece := strings.Repeat(again, 64<<10/len(again))
	for end := time.Now().Add(patience); err == nil && r.Context().Err() == nil && time.Now().Before(end); {
		_, err = io.WriteString(w, piece)
		pause(r.Context(), 5*time.Millisecond)
	}
}

// askHostileEngine sends a request to one of them.
func (a *army) askHostileEngine(ctx context.Context, worker int) {
	body := []byte(fmt.Sprintf(`{"model":"h","stream":%t,"max_tokens":16,"prompt":"x"}`, worker%2 == 0))
	a.exchange(ctx, worker, post("/v1/completions", badKey, len(body)), body)
}
