package scrape

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// EventSource is where an engine publishes the KV events of one rank, as vLLM 0.31 and newer answer GET
// /kv_event_sources. Hosts are left out: events of a pod are taken from the address of the pod and from nowhere else.
type EventSource struct {
	// Answered means that the engine has answered for this rank.
	Answered bool
	// Events and Replay are ports; 0 where the engine has no such socket on a TCP port. An engine that reports no Events
	// publishes nothing that can be subscribed to.
	Events, Replay int
}

// Bounds on an answer: bytes, and ranks behind one address.
const (
	maxSourcesPage = 64 << 10
	maxSources     = 64
)

// pollSources asks where the engine publishes its events until ctx ends. It asks every Options.ModelsEvery, and at once
// when the engine answers again after it did not: a restarted engine might have other ports. Engines that do not have the
// route are asked less often.
func (p *page) pollSources(ctx context.Context) {
	var body bytes.Buffer
	for {
		select {
		case <-p.back: // this question is the answer to that
		default:
		}
		wait := absentEvery * p.options.ModelsEvery
		if p.wantsSources() {
			err := p.get(ctx, "/kv_event_sources", maxSourcesPage, &body)
			if ctx.Err() != nil {
				return
			}
			_ = p.caught("/kv_event_sources", func() { wait = p.digestSources(body.Bytes(), err) })
		}
		if !p.pauseOrBack(ctx, wait) {
			return
		}
	}
}

// AskEventSources has the engines of targets asked at once where they publish their events.
func (s *Scraper) AskEventSources(ids []endpoint.ID) {
	if len(ids) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pages {
		if p.has(ids) {
			p.recheck()
		}
	}
}

// has reports whether one of the targets is behind the page.
func (p *page) has(ids []endpoint.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.targets, func(t Target) bool { return slices.Contains(ids, t.ID) })
}

// pauseOrBack waits like pause, or until the address answers again.
func (p *page) pauseOrBack(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-p.back:
	}
	return true
}

// recheck ends a wait of pauseOrBack, or the next one.
func (p *page) recheck() {
	select {
	case p.back <- struct{}{}:
	default:
	}
}

func (p *page) wantsSources() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.targets {
		if t.EventRank >= 0 {
			return true
		}
	}
	return false
}

// digestSources takes an answer in and returns how long to wait before the next question.
func (p *page) digestSources(text []byte, err error) time.Duration {
	var sources map[int]EventSource
	if err == nil {
		sources, err = EventSources(text)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var status *statusError
	absent := errors.As(err, &status) && status.status == http.StatusNotFound
	if err != nil && !absent { // without an answer the known state stays
		p.options.Log.V(1).Info("Asking for the engine's event sources failed", "address", p.stats.Address, "reason", err.Error())
		return p.options.ModelsEvery
	}
	for _, t := range p.targets {
		var source EventSource
		if !absent {
			source = sourceOf(sources, t.EventRank, len(p.targets) == 1)
		}
		before, known := p.sources[t.ID]
		if t.EventRank < 0 || known && before == source {
			continue
		}
		p.sources[t.ID] = source
		p.options.EventSource(t.ID, source)
	}
	if absent {
		return absentEvery * p.options.ModelsEvery
	}
	return p.options.ModelsEvery
}

// sourceOf is the part of an answer about a rank. An engine without any publisher answers for all ranks; one that names
// other ranks gives no information about this one, unless each side knows one rank only: then they are the same, whatever
// the engine's number of the rank.
func sourceOf(sources map[int]EventSource, rank int, alone bool) EventSource {
	if s, ok := sources[rank]; ok {
		return s
	}
	if len(sources) == 1 && alone {
		for _, s := range sources {
			return s
		}
	}
	return EventSource{Answered: len(sources) == 0}
}

// EventSources reads the answer of GET /kv_event_sources: the sources by global data-parallel rank. It is empty for an
// engine that publishes nothing. Sources that are not on TCP ports count as none; an answer about more than 64 ranks is
// refused.
func EventSources(answer []byte) (map[int]EventSource, error) {
	var list map[string]*struct {
		Publisher *string `json:"publisher"`
		Enabled   *bool   `json:"enable_kv_cache_events"`
		Endpoint  *string `json:"endpoint"`
		Replay    *string `json:"replay_endpoint"`
	}
	switch err := json.Unmarshal(answer, &list); {
	case err != nil:
		return nil, fmt.Errorf("reading the engine's event sources: %w", err)
	case list == nil:
		return nil, errors.New("reading the engine's event sources: no object")
	case len(list) > maxSources:
		return nil, fmt.Errorf("reading the engine's event sources: %d ranks, at most %d are read", len(list), maxSources)
	}
	sources := make(map[int]EventSource, len(list))
	for name, s := range list {
		rank, err := strconv.ParseUint(name, 10, 16)
		switch {
		case err != nil:
			return nil, errors.New("reading the engine's event sources: a name is no rank")
		case s == nil || s.Enabled != nil && !*s.Enabled || s.Publisher != nil && *s.Publisher != "zmq":
			sources[int(rank)] = EventSource{Answered: true}
			continue
		}
		sources[int(rank)] = EventSource{Answered: true, Events: tcpPort(s.Endpoint), Replay: tcpPort(s.Replay)}
	}
	return sources, nil
}

// tcpPort is the port of a ZeroMQ endpoint such as tcp://*:5557; 0 where it has none.
func tcpPort(address *string) int {
	if address == nil {
		return 0
	}
	rest, tcp := strings.CutPrefix(*address, "tcp://")
	colon := strings.LastIndexByte(rest, ':')
	if !tcp || colon < 0 {
		return 0
	}
	port, err := strconv.ParseUint(rest[colon+1:], 10, 16)
	if err != nil {
		return 0
	}
	return int(port)
}
