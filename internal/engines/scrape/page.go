package scrape

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/transport"
	"github.com/kvasir-dev/kvasir/internal/fault"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/vllm"
)

// questions that can be under way at a page.
const questions = 4

// maxDoublings of Options.Timeout, while questions for metrics have no answer in time.
const maxDoublings = 2

const (
	// keepBuffer is the largest buffer kept from one question to the next, bytes.
	keepBuffer = 1 << 20
	// ownBytes is what the buffers of each page have outside of Options.Room, in bytes.
	ownBytes = 1 << 20
)

// page is one address and all that is asked of it: at most one question for metrics and one for models at a time.
type page struct {
	where   where
	options *Options
	client  *http.Client
	cancel  context.CancelFunc
	share   *budget.Share // of Options.Room; the buffers for answers draw on it

	mu      sync.Mutex // guards what follows, and is held while observing
	targets []Target
	last    map[endpoint.ID]vllm.Metrics
	models  map[endpoint.ID][]Model
	sources map[endpoint.ID]EventSource
	stats   Stats
	// back has a token when the address has begun to answer, as a restarted engine does, and when there is a new target.
	back chan struct{}
	// answers: the last question for metrics had an answer.
	answers bool
	// refused: the last question could not be sent, because there was no connection.
	refused bool
	// unanswered counts the questions for metrics in a row that had no answer in time, at most maxDoublings.
	unanswered int
	// paused: the engine said so last; pausable: it answers the question.
	paused, pausable bool
}

func newPage(w where, options *Options, cancel context.CancelFunc) *page {
	base := &http.Transport{
		// One connection per question that can be under way; no proxy, since engines are near; no compression,
		// which would cost the engine more than the network costs us.
		MaxConnsPerHost:        questions,
		MaxIdleConnsPerHost:    questions,
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
		where: w, options: options, cancel: cancel, share: options.Room.Share(ownBytes),
		client: &http.Client{
			Transport: transport.RoundTripper(base, w.wire),
			// Only the configuration names destinations.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		stats: Stats{Address: w.address + w.socket, Interval: options.Busy},
		back:  make(chan struct{}, 1),
	}
}

// set replaces the targets. What is known of those that stay is kept.
func (p *page) set(targets []Target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.targets
	p.targets = slices.Clone(targets)
	last, models, sources := map[endpoint.ID]vllm.Metrics{}, map[endpoint.ID][]Model{}, map[endpoint.ID]EventSource{}
	for _, t := range targets {
		if t.EventRank >= 0 && !slices.ContainsFunc(before, func(b Target) bool { return b.ID == t.ID && b.EventRank == t.EventRank }) {
			p.recheck()
			delete(p.sources, t.ID)
		}
		if m, ok := p.last[t.ID]; ok {
			last[t.ID] = m
		}
		if list, ok := p.models[t.ID]; ok {
			models[t.ID] = list
		}
		if source, ok := p.sources[t.ID]; ok {
			sources[t.ID] = source
		}
	}
	p.last, p.models, p.sources = last, models, sources
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
	defer p.share.Close()
	defer p.client.CloseIdleConnections()
	var others sync.WaitGroup
	defer others.Wait()
	if p.options.Models != nil {
		others.Go(func() { p.pollModels(ctx) })
	}
	if p.options.Pauses {
		others.Go(func() { p.pollPaused(ctx) })
	}
	if p.options.EventSource != nil {
		others.Go(func() { p.pollSources(ctx) })
	}
	p.pollMetrics(ctx)
}

// pollMetrics asks for metrics until ctx ends.
func (p *page) pollMetrics(ctx context.Context) {
	var body bytes.Buffer
	for {
		err := p.getWithin(ctx, p.nextTimeout(), "/metrics", MaxPage, &body)
		if ctx.Err() != nil {
			return
		}
		wait := p.options.Idle
		if caught := p.caught("/metrics", func() { wait = p.digest(body.Bytes(), err) }); caught != nil {
			p.fail(caught)
		}
		p.shrink(&body)
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
	if err == nil && !p.answers {
		p.recheck()
	}
	lost := unanswered(err)
	silent := errors.Is(lost, ErrNoAnswer)
	if !transport.LocalFault(err) {
		p.reportAnswered(lost)
	}
	if silent {
		p.unanswered = min(p.unanswered+1, maxDoublings)
	} else {
		p.unanswered = 0
	}
	if p.answers = err == nil; p.answers {
		for _, t := range p.targets {
			m, parseErr := vllm.ParseMetrics(text, t.Rank)
			if parseErr != nil {
				err = fmt.Errorf("reading metrics of rank %d: %w", t.Rank, parseErr)
				continue
			}
			m.Paused = p.paused
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
		p.logChange(err)
	}
	p.stats.LastError = err
	refused := lost != nil && !silent
	again := refused && !p.refused
	p.refused = refused
	if busy || again { // a connection that fails once can be chance
		p.stats.Interval = p.options.Busy
	} else {
		p.stats.Interval = min(2*p.stats.Interval, p.options.Idle)
	}
	return p.stats.Interval
}

// nextTimeout is how long the next question for metrics can take.
func (p *page) nextTimeout() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.options.Timeout << p.unanswered
}

// reportAnswered passes on what became of a question. p.mu is held.
func (p *page) reportAnswered(err error) {
	if p.options.Answered == nil {
		return
	}
	for _, t := range p.targets {
		p.options.Answered(t, err)
	}
}

// unanswered is the error of a question if there was no connection to send it on, or it was closed without an answer;
// ErrNoAnswer if the time was over before an answer began; nil otherwise.
func unanswered(err error) error {
	failed := (*url.Error)(nil)
	if !errors.As(err, &failed) {
		return nil
	}
	if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
		return err
	}
	switch {
	case errors.Is(err, context.Canceled):
		return nil
	case failed.Timeout():
		return ErrNoAnswer
	}
	return err
}

// caught calls f, which reads an answer of the path, and returns the panic that has ended it.
func (p *page) caught(path string, f func()) error {
	caught := fault.Catch(f, func(found *fault.Panic) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.stats.Panics++; p.stats.Panics == 1 || found.Fatal() { // the same answer can arrive again and again
			p.options.Log.Error(found, "Reading an engine's answer panicked", "address", p.stats.Address, "path", path, "stack", string(found.Stack))
		}
	})
	if caught == nil {
		return nil
	}
	return caught
}

// fail counts an answer that could not be read to its end.
func (p *page) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Scrapes++
	p.stats.Failures++
	p.answers = false
	if p.stats.LastError == nil {
		p.logChange(err)
	}
	p.stats.LastError, p.stats.Interval = err, p.options.Idle
}

// logChange logs that the address began or ceased to answer.
func (p *page) logChange(err error) {
	if err != nil {
		logging.Warn(p.options.Log, "Scraping engine metrics failed", "address", p.stats.Address, "reason", err.Error())
		return
	}
	p.options.Log.Info("Scraping engine metrics recovered", "address", p.stats.Address)
}

// pollModels asks for the list of models until ctx ends.
func (p *page) pollModels(ctx context.Context) {
	var body bytes.Buffer
	for {
		err := p.get(ctx, "/v1/models", maxModelPage, &body)
		if ctx.Err() != nil {
			return
		}
		if caught := p.caught("/v1/models", func() { p.digestModels(body.Bytes(), err) }); caught != nil {
			p.digestModels(nil, caught)
		}
		p.shrink(&body)
		wait := p.options.ModelsEvery
		if p.hasAdapters() {
			wait /= adaptersOften
		}
		if !p.pause(ctx, wait) {
			return
		}
	}
}

// adaptersOften is how many times as often engines with LoRA adapters are asked for their models: until the answer, an
// adapter that was loaded again counts as having its former weights.
const adaptersOften = 5

// hasAdapters reports whether the last list of models had adapters.
func (p *page) hasAdapters() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, models := range p.models {
		if slices.ContainsFunc(models, func(m Model) bool { return m.Parent != "" }) {
			return true
		}
	}
	return false
}

func (p *page) digestModels(text []byte, err error) {
	var models []Model
	if err == nil {
		models, err = Models(text)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.stats.ModelFailures++
		p.options.Log.V(1).Info("Listing models failed", "address", p.stats.Address, "reason", err.Error())
		return
	}
	for _, t := range p.targets {
		if before, ok := p.models[t.ID]; ok && slices.Equal(before, models) {
			continue
		}
		p.models[t.ID] = models
		p.options.Models(t.ID, slices.Clone(models))
	}
}

// statusError is an answer with another status than 200.
type statusError struct {
	path   string
	status int
}

func (e *statusError) Error() string { return fmt.Sprintf("reading %s: status %d", e.path, e.status) }

// get asks for a path and reads the answer, as getWithin, within Options.Timeout.
func (p *page) get(ctx context.Context, path string, limit int64, body *bytes.Buffer) error {
	return p.getWithin(ctx, p.options.Timeout, path, limit, body)
}

// getWithin asks for a path and reads the answer, of at most limit bytes, into body.
func (p *page) getWithin(ctx context.Context, timeout time.Duration, path string, limit int64, body *bytes.Buffer) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body.Reset()
	host := p.where.address
	if p.where.socket != "" {
		host = "localhost"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, transport.Scheme(p.where.wire)+"://"+host+path, nil)
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
	if err := budget.Read(body, io.LimitReader(resp.Body, limit+1), p.share); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return &statusError{path, resp.StatusCode}
	}
	if int64(body.Len()) > limit {
		return fmt.Errorf("reading %s: more than %d bytes", path, limit)
	}
	return nil
}

// shrink gives a large buffer up.
func (p *page) shrink(body *bytes.Buffer) {
	if body.Cap() > keepBuffer {
		p.share.Put(body.Cap())
		*body = bytes.Buffer{}
	}
}

// epoch is where the ticks of pause begin.
var epoch = time.Now()

// pause waits for d, give or take a tenth, and up to the next tick, and reports whether to continue. Ticks are a twentieth
// of the shortest wait apart, the same for all pages: pages that are due together wake the process once, because a wake-up
// costs more than the request itself.
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
