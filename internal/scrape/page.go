package scrape

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/vllm"
	"github.com/kvasir-dev/kvasir/internal/wire"
)

// maxAdapters is the most adapters believed of one endpoint, and maxAdapterName the longest name, bytes.
const (
	maxAdapters    = 4096
	maxAdapterName = 256
)

// keepBuffer is the largest buffer kept from one question to the next, bytes.
const keepBuffer = 1 << 20

// page is one address and all that is asked of it: at most one question for metrics and one for models at a time.
type page struct {
	where   where
	options *Options
	client  *http.Client
	cancel  context.CancelFunc

	mu       sync.Mutex // guards what follows, and is held while observing
	targets  []Target
	last     map[endpoint.ID]vllm.Metrics
	adapters map[endpoint.ID][]string
	stats    Stats
}

func newPage(w where, options *Options, cancel context.CancelFunc) *page {
	transport := &http.Transport{
		// One connection per question that may be under way; no proxy, since engines are near; no compression,
		// which would cost the engine more than the network costs us.
		MaxConnsPerHost:        2,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        3 * options.Models,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if w.socket != "" {
				network, address = "unix", w.socket
			}
			return options.Dial(ctx, network, address)
		},
	}
	return &page{
		where: w, options: options, cancel: cancel,
		client: &http.Client{
			Transport: wire.Transport(transport, w.wire),
			// Nobody but the configuration names a destination.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		stats: Stats{Address: w.address + w.socket, Interval: options.Busy},
	}
}

// set replaces the targets. What is known of those that stay is kept.
func (p *page) set(targets []Target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.targets = slices.Clone(targets)
	last, adapters := map[endpoint.ID]vllm.Metrics{}, map[endpoint.ID][]string{}
	for _, t := range targets {
		if m, ok := p.last[t.ID]; ok {
			last[t.ID] = m
		}
		if names, ok := p.adapters[t.ID]; ok && t.Adapters {
			adapters[t.ID] = names
		}
	}
	p.last, p.adapters = last, adapters
}

// stop ends the page's goroutines, without waiting for them, and all observing, for good.
func (p *page) stop() {
	p.cancel()
	p.set(nil)
}

func (p *page) snapshot() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// run asks until ctx ends.
func (p *page) run(ctx context.Context) {
	defer p.client.CloseIdleConnections()
	var models sync.WaitGroup
	defer models.Wait()
	if p.options.Adapters != nil {
		models.Go(func() { p.pollModels(ctx) })
	}
	p.pollMetrics(ctx)
}

// pollMetrics asks for metrics until ctx ends.
func (p *page) pollMetrics(ctx context.Context) {
	var body bytes.Buffer
	for {
		err := p.get(ctx, "/metrics", &body)
		if ctx.Err() != nil {
			return
		}
		wait := p.digest(body.Bytes(), err)
		if body.Cap() > keepBuffer {
			body = bytes.Buffer{}
		}
		if !p.pause(ctx, wait) {
			return
		}
	}
}

// digest takes an answer in and returns how long to wait before the next question.
func (p *page) digest(text []byte, err error) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	busy, observed := false, 0
	if err == nil {
		for _, t := range p.targets {
			m, parseErr := vllm.ParseMetrics(text, t.Rank)
			if parseErr != nil {
				err = fmt.Errorf("reading metrics of rank %d: %w", t.Rank, parseErr)
				continue
			}
			observed++
			busy = busy || m.Running+m.Waiting > 0 || m != p.last[t.ID]
			p.last[t.ID] = m
			if p.options.Observe != nil {
				p.options.Observe(t.ID, m, now)
			}
		}
	}
	p.stats.Scrapes++
	if observed > 0 {
		p.stats.LastSuccess = now
	}
	if err != nil {
		p.stats.Failures++
	}
	if failed := p.stats.LastError != nil; failed != (err != nil) {
		p.tell(err)
	}
	p.stats.LastError = err
	if busy {
		p.stats.Interval = p.options.Busy
	} else {
		p.stats.Interval = min(2*p.stats.Interval, p.options.Idle)
	}
	return p.stats.Interval
}

// tell logs that the address began or ceased to answer.
func (p *page) tell(err error) {
	if err != nil {
		p.options.Log.Info("Engine metrics are not to be had", "address", p.stats.Address, "reason", err.Error())
		return
	}
	p.options.Log.Info("Engine metrics are back", "address", p.stats.Address)
}

// pollModels asks for the list of models until ctx ends.
func (p *page) pollModels(ctx context.Context) {
	var body bytes.Buffer
	for {
		if p.wantsAdapters() {
			err := p.get(ctx, "/v1/models", &body)
			if ctx.Err() != nil {
				return
			}
			p.digestModels(body.Bytes(), err)
			if body.Cap() > keepBuffer {
				body = bytes.Buffer{}
			}
		}
		if !p.pause(ctx, p.options.Models) {
			return
		}
	}
}

func (p *page) wantsAdapters() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.targets, func(t Target) bool { return t.Adapters })
}

func (p *page) digestModels(text []byte, err error) {
	var names []string
	if err == nil {
		names, err = Models(text)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.stats.ModelFailures++
		p.options.Log.V(1).Info("No list of models", "address", p.stats.Address, "reason", err.Error())
		return
	}
	for _, t := range p.targets {
		if !t.Adapters {
			continue
		}
		if before, ok := p.adapters[t.ID]; ok && slices.Equal(before, names) {
			continue
		}
		p.adapters[t.ID] = names
		p.options.Adapters(t.ID, slices.Clone(names))
	}
}

// Models reads the answer of GET /v1/models: the names of LoRA adapters, which are the entries with a parent, sorted
// and each once. Names that are empty or longer than 256 bytes are left out, and no more than 4096 are returned.
func Models(answer []byte) ([]string, error) {
	var list struct {
		Data []struct {
			ID     string  `json:"id"`
			Parent *string `json:"parent"`
		} `json:"data"`
	}
	if err := json.Unmarshal(answer, &list); err != nil {
		return nil, fmt.Errorf("reading the list of models: %w", err)
	}
	if list.Data == nil {
		return nil, errors.New("reading the list of models: no data")
	}
	var names []string
	for _, m := range list.Data {
		if m.Parent != nil && m.ID != "" && len(m.ID) <= maxAdapterName {
			names = append(names, m.ID)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return names[:min(len(names), maxAdapters)], nil
}

// get asks for a path and reads the answer into body.
func (p *page) get(ctx context.Context, path string, body *bytes.Buffer) error {
	ctx, cancel := context.WithTimeout(ctx, p.options.Timeout)
	defer cancel()
	body.Reset()
	host := p.where.address
	if p.where.socket != "" {
		host = "localhost"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, wire.Scheme(p.where.wire)+"://"+host+path, nil)
	if err != nil {
		return err
	}
	if p.where.apiKey != "" {
		req.Header.Set("Authorization", "Bearer "+p.where.apiKey)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := body.ReadFrom(io.LimitReader(resp.Body, MaxPage+1)); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("reading %s: status %d", path, resp.StatusCode)
	}
	if body.Len() > MaxPage {
		return fmt.Errorf("reading %s: more than %d bytes", path, MaxPage)
	}
	return nil
}

// epoch is where the ticks of pause begin.
var epoch = time.Now()

// pause waits for d, give or take a tenth, and up to the next tick, and tells whether to go on. Ticks are a twentieth of
// the shortest wait apart, the same for all pages: those that are due together wake the process once, which costs more
// than the question itself when there is nothing else to do.
func (p *page) pause(ctx context.Context, d time.Duration) bool {
	d += rand.N(d/5+1) - d/10
	if tick := p.options.Busy / 20; tick > 0 {
		d += tick - (time.Since(epoch)+d)%tick
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
