package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/vllm"
)

const (
	// countersTimeout bounds reading one engine's metrics, maxMetrics their size in bytes.
	countersTimeout = 10 * time.Second
	maxMetrics      = 32 << 20
)

// Engine is one engine whose counters are read.
type Engine struct {
	Host string
	Port int
	// Events and Replay are the ports of its KV events; 0 where the picker is to ask the engine.
	Events, Replay int
}

// URL is the engine's base URL.
func (e *Engine) URL() string { return "http://" + e.authority() }

func (e *Engine) authority() string {
	if strings.Contains(e.Host, ":") {
		return "[" + e.Host + "]:" + strconv.Itoa(e.Port)
	}
	return e.Host + ":" + strconv.Itoa(e.Port)
}

// ParseEngines reads engines, http://HOST:PORT with commas between them; the ports of KV events can follow as
// ?events=PORT&replay=PORT, as for the picker's --engines.
func ParseEngines(list string) ([]Engine, error) {
	var all []Engine
	seen := map[string]bool{}
	for text := range strings.SplitSeq(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		e, err := parseEngine(text)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		if seen[e.authority()] {
			return nil, fmt.Errorf("%q is listed twice", text)
		}
		seen[e.authority()] = true
		all = append(all, e)
	}
	if len(all) == 0 {
		return nil, errors.New("no engine given; want http://HOST:PORT, separated by commas")
	}
	return all, nil
}

func parseEngine(text string) (Engine, error) {
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return Engine{}, errors.New("this is no URL; want http://HOST:PORT")
	}
	e := Engine{Host: u.Hostname()}
	switch {
	case u.Scheme != "http":
		return e, fmt.Errorf("scheme %q is not supported; want http://HOST:PORT", u.Scheme)
	case e.Host == "" || u.Port() == "":
		return e, errors.New("want a host and a port: http://HOST:PORT")
	case strings.TrimRight(u.Path, "/") != "" && strings.TrimRight(u.Path, "/") != "/v1":
		return e, fmt.Errorf("leave out what follows the port: http://%s", u.Host)
	}
	if e.Port, err = port(u.Port()); err != nil {
		return e, err
	}
	for name, values := range u.Query() {
		into := map[string]*int{"events": &e.Events, "replay": &e.Replay}[name]
		if into == nil {
			return e, fmt.Errorf("parameter %q is unknown; events and replay are the ports of KV events", name)
		}
		if *into, err = port(values[0]); err != nil {
			return e, fmt.Errorf("parameter %s: %w", name, err)
		}
	}
	if e.Replay > 0 && e.Events == 0 {
		return e, errors.New("parameter replay needs events, the port that the engine publishes its KV events on")
	}
	return e, nil
}

func port(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 65_535 {
		return 0, fmt.Errorf("port %q is not from 1 to 65535", text)
	}
	return n, nil
}

// Counters are an engine's own, since its start.
type Counters struct {
	// Queries are the prompt tokens that were looked up in the prefix cache, Hits those found there.
	Queries, Hits float64
	// Generated tokens and Preemptions of requests.
	Generated, Preemptions float64
}

// ReadCounters reads the counters of engines.
func ReadCounters(ctx context.Context, engines []Engine) ([]Counters, error) {
	all := make([]Counters, len(engines))
	for i := range engines {
		var err error
		if all[i], err = engines[i].counters(ctx); err != nil {
			return nil, fmt.Errorf("reading the counters of %s: %w", engines[i].URL(), err)
		}
	}
	return all, nil
}

func (e *Engine) counters(ctx context.Context) (Counters, error) {
	ctx, cancel := context.WithTimeout(ctx, countersTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL()+"/metrics", http.NoBody)
	if err != nil {
		return Counters{}, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return Counters{}, err
	}
	defer resp.Body.Close() // only read
	if resp.StatusCode != http.StatusOK {
		return Counters{}, fmt.Errorf("GET /metrics: status %d", resp.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxMetrics))
	if err != nil {
		return Counters{}, fmt.Errorf("GET /metrics: %w", err)
	}
	m, err := vllm.ParseMetrics(text, -1)
	if err != nil {
		return Counters{}, fmt.Errorf("GET /metrics: %w; is this an engine?", err)
	}
	return Counters{Queries: m.PrefixQueries, Hits: m.PrefixHits, Generated: m.Generated, Preemptions: m.Preemptions}, nil
}

// EngineDelta is what one engine did in a turn.
type EngineDelta struct {
	Engine string `json:"engine"`
	// PromptTokens were looked up in the prefix cache, CachedTokens found there.
	PromptTokens    float64 `json:"promptTokens"`
	CachedTokens    float64 `json:"cachedTokens"`
	GeneratedTokens float64 `json:"generatedTokens"`
	Preemptions     float64 `json:"preemptions"`
	// Restarted: its counters have fallen, so that what they say about the turn is wrong.
	Restarted bool `json:"restarted,omitempty"`
}

// between is what engines did between two readings of their counters.
func between(engines []Engine, before, after []Counters) []EngineDelta {
	all := make([]EngineDelta, len(engines))
	for i := range engines {
		a, b := before[i], after[i]
		all[i] = EngineDelta{
			Engine: engines[i].authority(), PromptTokens: b.Queries - a.Queries, CachedTokens: b.Hits - a.Hits,
			GeneratedTokens: b.Generated - a.Generated, Preemptions: b.Preemptions - a.Preemptions,
			Restarted: b.Queries < a.Queries || b.Generated < a.Generated,
		}
	}
	return all
}
