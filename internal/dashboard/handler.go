package dashboard

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

const (
	// maxBody bounds a request that is explained, maxExplaining how many are at a time.
	maxBody, maxExplaining = 16 << 20, 2
	explainTimeout         = 10 * time.Second
	// Default limits.
	defaultPrefixes, defaultDecisions = 20, 100
	// beat is how often a stream without decisions sends an empty line, to show that it is alive.
	beat = 10 * time.Second
)

// Data is what answers are made of.
type Data struct {
	Ring     *Ring
	Prefixes func(limit int) []api.Prefix
	Explain  func(ctx context.Context, in *picker.Request) (*api.Explanation, error)
	// History is (*Recent).History; nil where nothing is remembered.
	History func() api.History
}

// Register adds /decisions, /prefixes, /history and /explain to a server. They need the same right as metrics.
func Register(mux *http.ServeMux, d Data) {
	s := &server{Data: d, explaining: make(chan struct{}, maxExplaining)}
	mux.Handle("GET /decisions", private(s.decisions))
	mux.Handle("GET /prefixes", private(s.prefixes))
	mux.Handle("GET /history", private(s.history))
	mux.Handle("POST /explain", http.NewCrossOriginProtection().Handler(private(s.explain)))
}

// private marks answers that must not be cached.
func private(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		h(w, r)
	})
}

type server struct {
	Data
	explaining chan struct{}
}

// number reads a parameter of at least least. More than most is most: a client that asks for more than exists gets all of it.
func number(r *http.Request, name string, usual, least, most int) (int, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return usual, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil && !errors.Is(err, strconv.ErrRange) || n < least { // beyond the range n is the nearest number
		return 0, fmt.Errorf("%s=%s: want a number of at least %d", name, strings.ToValidUTF8(text[:min(len(text), 32)], "?"), least)
	}
	return min(n, most), nil
}

func (s *server) decisions(w http.ResponseWriter, r *http.Request) {
	n, err := number(r, "limit", defaultDecisions, 0, api.MaxDecisions)
	if err != nil {
		fault(w, http.StatusBadRequest, err.Error())
		return
	}
	query := r.URL.Query()
	ended := query.Get("ended") == "1"
	lines := json.NewEncoder(w)
	if query.Get("follow") != "1" {
		w.Header().Set("Content-Type", "application/jsonl")
		for _, d := range s.Ring.Last(n, ended) {
			_ = lines.Encode(d) // a client that has gone misses the answer
		}
		return
	}
	last, f := s.Ring.Follow(n, ended)
	if f == nil {
		fault(w, http.StatusServiceUnavailable, fmt.Sprintf("%d others follow already", maxFollowers))
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/jsonl")
	w.Header().Set("X-Accel-Buffering", "no")
	answer := http.NewResponseController(w)
	for _, d := range last {
		if lines.Encode(d) != nil {
			return
		}
	}
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for answer.Flush() == nil {
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
			_, err = io.WriteString(w, "\n")
		case d := <-f.C:
			if !ended || d.Outcome != "" {
				err = lines.Encode(d)
			}
		}
		if err != nil {
			return
		}
	}
}

func (s *server) prefixes(w http.ResponseWriter, r *http.Request) {
	n, err := number(r, "limit", defaultPrefixes, 1, api.MaxPrefixes)
	if err != nil {
		fault(w, http.StatusBadRequest, err.Error())
		return
	}
	list := s.Prefixes(n)
	if list == nil {
		list = []api.Prefix{}
	}
	answer(w, http.StatusOK, api.Prefixes{Prefixes: list})
}

func (s *server) history(w http.ResponseWriter, _ *http.Request) {
	out := api.History{Pools: []api.PoolHistory{}}
	if s.History != nil {
		out = s.History()
	}
	answer(w, http.StatusOK, out)
}

func (s *server) explain(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Query().Get("path")
	if path == "" {
		path = "/v1/chat/completions"
	}
	route, ok := openai.RouteOf(path)
	if !ok {
		fault(w, http.StatusBadRequest, "path: want that of a request to a model, such as /v1/chat/completions")
		return
	}
	select {
	case s.explaining <- struct{}{}:
		defer func() { <-s.explaining }()
	default:
		w.Header().Set("Retry-After", "1")
		fault(w, http.StatusTooManyRequests, "other requests are being explained")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			fault(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the request is larger than %d bytes", maxBody))
		} else {
			fault(w, http.StatusBadRequest, "the request cannot be read")
		}
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), explainTimeout)
	defer cancel()
	e, err := s.Explain(ctx, &picker.Request{Route: route, Body: body, Header: headerOf(r), Headers: headersOf(r), Splits: true})
	if err != nil {
		var refused *picker.Error
		if errors.As(err, &refused) {
			fault(w, refused.Status, refused.Message)
		} else {
			fault(w, http.StatusServiceUnavailable, "the request could not be explained in time")
		}
		return
	}
	answer(w, http.StatusOK, e)
}

// headerOf reads the headers that a request would have, except those that authenticate the caller here.
func headerOf(r *http.Request) func(string) string {
	return func(name string) string {
		if strings.EqualFold(name, "authorization") || strings.EqualFold(name, "cookie") {
			return ""
		}
		return r.Header.Get(name)
	}
}

// headersOf are those headers, all of them.
func headersOf(r *http.Request) http.Header {
	h := r.Header.Clone()
	h.Del("Authorization")
	h.Del("Cookie")
	return h
}

func answer(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n')) // a client that has gone misses the answer
}

func fault(w http.ResponseWriter, code int, message string) {
	answer(w, code, api.Fault{Code: code, Message: message})
}

//go:embed assets
var assets embed.FS

// policy of the page's content: nothing from elsewhere, nothing to elsewhere, nothing inline, and no framing.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// WithPage serves the page at / and its files below /assets/, and everything else by data. The files are the same for all
// and have nothing of the picker in them: a reader without the right sees an empty page that asks for a token.
func WithPage(data http.Handler) http.Handler {
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // they are embedded
	}
	static := http.StripPrefix("/assets/", http.FileServerFS(files))
	mux := http.NewServeMux()
	mux.Handle("GET /assets/{file}", page(static))
	mux.Handle("GET /{$}", page(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeFileFS(w, r, files, "page.html")
	})))
	mux.Handle("/", data)
	return mux
}

// page sets the headers of the page and its files.
func page(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-cache")
		h.ServeHTTP(w, r)
	})
}
