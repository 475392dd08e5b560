package vllmsim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// Connector is the kind of a KV connector.
type Connector uint8

// The connectors that are simulated.
const (
	// NIXL: the answer to a prefill says where the blocks are.
	NIXL Connector = iota
	// Mooncake: both legs name a transfer, and the second the bootstrap server of the engine that prefills and that engine's id.
	Mooncake
	// Offloading: the offloading connector with the tier p2p. Both legs name a request, and the second the address of the tier.
	Offloading
)

// connectors by their names in vLLM's --kv-transfer-config.
var connectors = map[string]Connector{
	"NixlConnector": NIXL, "NixlPullConnector": NIXL, "MooncakeConnector": Mooncake, "OffloadingConnector": Offloading,
}

// side is what a request of the tier p2p says of the other side.
type side struct {
	Request string `json:"kv_request_id"`
	Host    string `json:"remote_host"`
	Port    int    `json:"remote_port"`
}

// read is what the parameters mean for a connector; false if they do not concern it.
func (p *transferParams) read(c Connector) bool {
	switch c {
	case Mooncake:
		p.holdAs, p.Request = p.Transfer, p.Transfer
		return p.Transfer != "" && p.RemoteDecode != p.RemotePrefill
	case Offloading:
		p.RemoteDecode, p.RemotePrefill = false, false // these are of other connectors
		if d := p.Decoder; d != nil && d.Request != "" {
			p.RemoteDecode, p.holdAs = true, d.Request
		}
		if f := p.Prefiller; f != nil && f.Request != "" && f.Host != "" && f.Port != 0 {
			p.RemotePrefill, p.Request, p.Host, p.Port = true, f.Request, f.Host, f.Port
		}
		if s := p.Source; s != nil && s.Request != "" && s.Host != "" && s.Port != 0 && !p.RemotePrefill {
			p.pulls, p.Request, p.Host, p.Port = true, s.Request, s.Host, s.Port
		}
		return p.RemoteDecode != p.RemotePrefill || p.pulls
	}
	return p.RemoteDecode || p.RemotePrefill
}

// locate finds the engine that prefills, where a server knows it.
func (t *transfers) locate(ctx context.Context, p *transferParams) error {
	if t.config.Connector != Mooncake {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Bootstrap+bootstrapPath, http.NoBody)
	if err != nil {
		return fmt.Errorf("asking the bootstrap server: %w", err)
	}
	answer, err := t.client.Do(r)
	if err != nil {
		return fmt.Errorf("asking the bootstrap server: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	var ranks map[string]bootstrapEntry
	if err := json.NewDecoder(answer.Body).Decode(&ranks); err != nil || ranks["0"].Engine != p.Engine {
		return fmt.Errorf("the bootstrap server does not know engine %q: %w", p.Engine, err)
	}
	at, err := url.Parse(ranks["0"].Workers["0"]["0"])
	if err != nil {
		return fmt.Errorf("reading the address of an engine: %w", err)
	}
	p.Host = at.Hostname()
	p.Port, err = strconv.Atoi(at.Port())
	return err
}

// bootstrapPath is the path of Mooncake's bootstrap server at which engines are listed.
const bootstrapPath = "/query"

// bootstrapEntry is an engine of one rank: the addresses of its workers by tensor and pipeline rank.
type bootstrapEntry struct {
	Engine  string                       `json:"engine_id"`
	Workers map[string]map[string]string `json:"worker_addr"`
}

// serveBootstrap answers as Mooncake's bootstrap server does.
func (e *Engine) serveBootstrap(w http.ResponseWriter, _ *http.Request) {
	e.transfers.mu.Lock()
	id := e.transfers.id
	e.transfers.mu.Unlock()
	e.writeJSON(w, map[string]bootstrapEntry{"0": {id, map[string]map[string]string{"0": {"0": "tcp://" + e.addr}}}})
}

// awaitHeld waits until a request's blocks are held, where the engine that loads them can come first.
func (t *transfers) awaitHeld(ctx context.Context, id string) {
	if t.config.Connector == NIXL {
		return
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		t.mu.Lock()
		_, held := t.held[id]
		over := held || t.closed || t.given[id]
		t.mu.Unlock()
		if over {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// listenSide opens the address of the connector's own server, if there is one.
func listenSide(ctx context.Context, t *Transfer) (net.Listener, error) {
	if !t.Enabled || t.Side == "" {
		return nil, nil
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", t.Side)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", t.Side, err)
	}
	return ln, nil
}

// loads reports whether the request is started only once blocks of another engine are there.
func (p *transferParams) loads() bool { return p.RemotePrefill || p.pulls }

// peerPath is where engines ask a peer how much it has of a prompt.
const peerPath = "/sim/kv/peer"

// peerQuestion is a question of an engine that pulls.
type peerQuestion struct {
	Adapter, Salt string
	Prompt        []uint32
}

// servePeer answers how many tokens of a prompt's beginning are cached.
func (e *Engine) servePeer(w http.ResponseWriter, r *http.Request) {
	var q peerQuestion
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	e.transfers.mu.Lock()
	e.transfers.asked++
	e.transfers.mu.Unlock()
	e.writeJSON(w, e.Match(q.Adapter, q.Salt, q.Prompt)*e.cfg.BlockSize)
}

// askPeer asks a peer how many tokens of a prompt it has; 0 if it does not answer.
func (t *transfers) askPeer(ctx context.Context, p *transferParams, spec *enginemodel.Spec) (tokens int) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	question, err := json.Marshal(peerQuestion{spec.Adapter, spec.Salt, spec.Prompt})
	if err != nil {
		return 0
	}
	to := "http://" + net.JoinHostPort(p.Host, strconv.Itoa(p.Port)) + peerPath
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(question))
	if err != nil {
		return 0
	}
	answer, err := t.client.Do(r)
	if err != nil {
		return 0
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK || json.NewDecoder(answer.Body).Decode(&tokens) != nil {
		return 0
	}
	return tokens
}

// pull loads what a peer has of a stream's prompt, and submits the stream, which computes the rest.
func (l *loading) pull(ctx context.Context, e *Engine, s *stream, p *transferParams, spec enginemodel.Spec) {
	own := e.Match(spec.Adapter, spec.Salt, spec.Prompt) * e.cfg.BlockSize
	if there := e.transfers.askPeer(ctx, p, &spec); there > own {
		timer := time.NewTimer(e.transfers.config.Base + time.Duration(there-own)*e.transfers.config.Token)
		defer timer.Stop()
		select {
		case <-timer.C:
			spec.Arrived = there
		case <-ctx.Done():
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return
	}
	req, err := e.loop.model.NewRequest(spec)
	if err != nil { // it was checked before
		s.show(nil, 0, finishError)
		return
	}
	s.req = req
	e.loop.submit(s)
}
