package vllmsim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// Defaults of Transfer.
const (
	DefaultLease = 30 * time.Second
	// The time of a transfer between two H200 is about 27 ms and 10.7 µs for each token.
	DefaultTransferBase  = 27 * time.Millisecond
	DefaultTransferToken = 10700 * time.Nanosecond
)

// Transfer is the engine's KV connector. With NixlConnector in its default mode, the engine that decodes reads the blocks from the one that
// has prefilled; with the others (Connector), both have the request at the same time.
//
//	P  kv_transfer_params {do_remote_decode}   its blocks are held after the answer, which says where they are
//	D  kv_transfer_params as P has answered    asks P for the blocks, loads them, lets P free them, and decodes
//
// The engines' side channel is a route of the simulator's HTTP server here. Durations are divided by Config.SpeedUp.
type Transfer struct {
	// Enabled: there is a connector. Without one, requests with kv_transfer_params are served as those without.
	Enabled bool
	// Recompute makes the engine compute a prompt whose blocks it cannot load. Otherwise such a request fails.
	Recompute bool
	// Lease is how long blocks are held for an engine that has not asked for them; 0 is DefaultLease.
	Lease time.Duration
	// Base and Token are the time that a transfer takes, and what each token adds; 0 is the default.
	Base, Token time.Duration
	// Host is where other engines ask for blocks, as VLLM_NIXL_SIDE_CHANNEL_HOST says; empty for the address where the engine listens.
	Host string
	// Connector is the kind. Side is where it listens for other engines, host:port, beside the engine's own address; empty for none.
	Connector Connector
	Side      string
}

// ParseTransfer reads the JSON of vLLM's --kv-transfer-config.
func ParseTransfer(text string) (Transfer, error) {
	var in struct {
		Connector string `json:"kv_connector"`
		Policy    string `json:"kv_load_failure_policy"`
		Extra     struct {
			Lease float64 `json:"kv_lease_duration"`
		} `json:"kv_connector_extra_config"`
	}
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		return Transfer{}, fmt.Errorf("reading the KV transfer configuration: %w", err)
	}
	connector, ok := connectors[in.Connector]
	switch {
	case !ok:
		return Transfer{}, fmt.Errorf("KV connector %q is not simulated", in.Connector)
	case in.Policy != "" && in.Policy != "fail" && in.Policy != "recompute":
		return Transfer{}, fmt.Errorf("kv_load_failure_policy %q is not one of fail, recompute", in.Policy)
	case !(in.Extra.Lease >= 0) || in.Extra.Lease > 1e6:
		return Transfer{}, fmt.Errorf("kv_lease_duration is %v s, must be positive", in.Extra.Lease)
	}
	lease := time.Duration(in.Extra.Lease * float64(time.Second))
	return Transfer{Enabled: true, Recompute: in.Policy == "recompute", Lease: lease, Connector: connector}, nil
}

// transferParams are the parameters of both legs.
type transferParams struct {
	RemoteDecode  bool   `json:"do_remote_decode"`
	RemotePrefill bool   `json:"do_remote_prefill"`
	Engine        string `json:"remote_engine_id"`
	Request       string `json:"remote_request_id"`
	Host          string `json:"remote_host"`
	Port          int    `json:"remote_port"`
	// Cached are the tokens that the engine that has prefilled found in its cache.
	Cached *int `json:"remote_prefill_cached_tokens"`
	// Those of Mooncake, and of the tier p2p.
	Transfer  string `json:"transfer_id"`
	Bootstrap string `json:"remote_bootstrap_addr"`
	Decoder   *side  `json:"remote_decoder"`
	Prefiller *side  `json:"remote_prefiller"`
	Source    *side  `json:"remote_kv_source"`
	// pulls: the engine asks a peer for what it has of the prompt, and computes the rest.
	pulls bool
	// holdAs is the name under which the blocks are held; empty for one that the engine chooses.
	holdAs string
}

// transfers are the blocks that wait for other engines, and the counters of the connector.
type transfers struct {
	config Transfer
	id     string // of this life of the engine
	// free gives a request's blocks back.
	free func(*enginemodel.Request)
	// client is what the engine reads from others with.
	client *http.Client

	mu              sync.Mutex
	closed          bool
	forgotten       bool
	failing         bool
	asked           int // by engines that pull
	loads           int // under way, of this engine
	held            map[string]*holding
	given           map[string]bool // away, by the names of requests
	expired, failed uint64
}

// holding is a request whose blocks are held.
type holding struct {
	request *enginemodel.Request
	lease   *time.Timer
}

func newTransfers(c *Config, free func(*enginemodel.Request)) *transfers {
	t := c.Transfer
	setDefault(&t.Lease, DefaultLease)
	setDefault(&t.Base, DefaultTransferBase)
	setDefault(&t.Token, DefaultTransferToken)
	for _, d := range []*time.Duration{&t.Lease, &t.Base, &t.Token} {
		*d = time.Duration(float64(*d) / c.SpeedUp)
	}
	return &transfers{
		config: t, free: free, held: map[string]*holding{}, given: map[string]bool{}, id: strconv.FormatInt(time.Now().UnixNano(), 36),
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
}

// hold keeps the blocks of a request that has ended until another engine has read them or the lease is over.
func (t *transfers) hold(id string, r *enginemodel.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	h := &holding{request: r}
	h.lease = time.AfterFunc(t.config.Lease, func() {
		if t.release(id, h) {
			t.mu.Lock()
			t.expired++
			t.mu.Unlock()
		}
	})
	t.held[id] = h
}

// release frees what is held by a name, if it is still h; nil is whatever is there.
func (t *transfers) release(id string, h *holding) bool {
	t.mu.Lock()
	now, ok := t.held[id]
	if ok = ok && (h == nil || now == h); ok {
		now.lease.Stop()
		delete(t.held, id)
		t.given[id] = true
	}
	t.mu.Unlock()
	if ok {
		t.free(now.request)
	}
	return ok
}

// extend begins the lease again, as the heartbeats of the reading engine do. It reports false if nothing is held.
func (t *transfers) extend(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	h, ok := t.held[id]
	return ok && h.lease.Reset(t.config.Lease)
}

// ForgetTransfers makes the engine one that other engines do not know under the name that its parameters give: they cannot load from it.
func (e *Engine) ForgetTransfers() {
	e.transfers.mu.Lock()
	defer e.transfers.mu.Unlock()
	e.transfers.forgotten = true
}

// FailPrefills makes the engine answer with an error to requests that are to prefill for others.
func (e *Engine) FailPrefills() {
	e.transfers.mu.Lock()
	defer e.transfers.mu.Unlock()
	e.transfers.failing = true
}

// fails reports whether a request is one that FailPrefills means.
func (t *transfers) fails(p *transferParams) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failing && p != nil && p.RemoteDecode
}

// Loading is how many requests wait for blocks of other engines.
func (e *Engine) Loading() int {
	e.transfers.mu.Lock()
	defer e.transfers.mu.Unlock()
	return e.transfers.loads
}

func (t *transfers) countLoads(by int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loads += by
}

// AskedByPeers is how often other engines have asked what this one has of a prompt.
func (e *Engine) AskedByPeers() int {
	e.transfers.mu.Lock()
	defer e.transfers.mu.Unlock()
	return e.transfers.asked
}

// RenameTransfers gives the engine another id for transfers, as a restart does.
func (e *Engine) RenameTransfers() {
	e.transfers.mu.Lock()
	defer e.transfers.mu.Unlock()
	e.transfers.id += "-again"
}

// known reports whether an engine asks under the present name.
func (t *transfers) known(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.forgotten && (id == t.id || t.config.Connector == Offloading)
}

// close ends all leases.
func (t *transfers) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, h := range t.held {
		h.lease.Stop()
	}
}

// load reads so many tokens of a prompt from the engine that has computed it. That engine frees the blocks at an abort, too. foreign: it
// has freed them before, so that something else can be there; NixlConnector does not notice.
func (t *transfers) load(ctx context.Context, p *transferParams, tokens int) (foreign bool, err error) {
	if err := t.locate(ctx, p); err != nil {
		return false, err
	}
	t.countLoads(1)
	defer t.countLoads(-1)
	err = t.read(ctx, p, tokens)
	if freed := t.ask(context.WithoutCancel(ctx), p, http.MethodDelete); err == nil {
		err = freed
	}
	if errors.Is(err, errFreed) {
		return true, nil
	}
	return false, err
}

// errFreed: the engine that has prefilled does not hold the blocks any more.
var errFreed = errors.New("the other engine has freed the blocks")

func (t *transfers) read(ctx context.Context, p *transferParams, tokens int) error {
	freed := t.ask(ctx, p, http.MethodGet)
	if freed != nil && !errors.Is(freed, errFreed) {
		return freed
	}
	timer := time.NewTimer(t.config.Base + time.Duration(tokens)*t.config.Token)
	defer timer.Stop()
	select {
	case <-timer.C:
		return freed
	case <-ctx.Done():
		return fmt.Errorf("loading blocks: %w", ctx.Err())
	}
}

// ask asks the other engine's side channel whether it holds the blocks, or to free them.
func (t *transfers) ask(ctx context.Context, p *transferParams, method string) error {
	if t.config.Connector == NIXL || method == http.MethodDelete {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
	}
	to := url.URL{Scheme: "http", Host: net.JoinHostPort(p.Host, strconv.Itoa(p.Port)), Path: sideChannel, RawQuery: url.Values{
		"engine": {p.Engine}, "request": {p.Request}}.Encode()}
	r, err := http.NewRequestWithContext(ctx, method, to.String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("asking for blocks: %w", err)
	}
	answer, err := t.client.Do(r)
	if err != nil {
		return fmt.Errorf("asking for blocks: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode == http.StatusGone {
		return errFreed
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the other engine does not hold the blocks: status %d", answer.StatusCode)
	}
	return nil
}

// errLoad is what the client of a request gets whose blocks could not be loaded.
var errLoad = &apiError{
	status: http.StatusInternalServerError, kind: "InternalServerError", message: "Internal server error",
}

// sideChannel is the path where engines ask for blocks. It stands for the connector's own socket.
const sideChannel = "/sim/kv"

// serveHeld answers an engine that asks for blocks, and one that has read them.
func (e *Engine) serveHeld(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if !e.transfers.known(q.Get("engine")) {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if r.Method == http.MethodGet {
		e.transfers.awaitHeld(r.Context(), q.Get("request"))
	}
	holds := e.transfers.extend
	if r.Method == http.MethodDelete {
		holds = func(id string) bool { return e.transfers.release(id, nil) }
	}
	if holds(q.Get("request")) {
		return
	}
	if e.transfers.isClosed() {
		panic(http.ErrAbortHandler) // an engine that has died does not say that it has freed the blocks
	}
	w.WriteHeader(http.StatusGone)
}

func (t *transfers) isClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

// transferParams are those of a request that concern the connector; nil for none. They are ignored where the engine has no
// connector, and with several prompts or choices.
func (e *Engine) transferParams(c *common, prompts [][]uint32) *transferParams {
	if len(c.KVTransfer) == 0 || string(c.KVTransfer) == "null" {
		return nil
	}
	var p transferParams
	if err := json.Unmarshal(c.KVTransfer, &p); err != nil || !p.read(e.cfg.Transfer.Connector) {
		return nil
	}
	if !e.cfg.Transfer.Enabled || len(prompts)*c.choices() != 1 {
		e.cfg.Log.Info("Request has KV transfer parameters without a connector to use them")
		return nil
	}
	return &p
}

// loading is the load of the blocks of an answer's only stream.
type loading struct {
	under sync.WaitGroup

	mu   sync.Mutex
	over bool // guarded by mu: the client has gone, or the answer has ended
}

// begin loads the prompt of the only stream in the background, if the request has parameters for it.
func (l *loading) begin(ctx context.Context, e *Engine, c *common, p *transferParams, prompts [][]uint32, streams []*stream) error {
	if p == nil || !p.loads() {
		return nil
	}
	spec, err := e.spec(c, slices.Clip(prompts[0]))
	switch {
	case err != nil:
	case p.pulls:
		l.under.Go(func() { l.pull(ctx, e, streams[0], p, spec) })
	default:
		l.under.Go(func() { l.receive(ctx, e, streams[0], p, spec) })
	}
	return err
}

// end ends the load, and the streams of an answer that has not ended.
func (l *loading) end(e *Engine, streams []*stream, ended bool) {
	defer l.under.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over = true; !ended {
		for _, s := range streams {
			e.loop.abort(s)
		}
	}
}

// receive loads the prompt of a stream and submits it, or ends it with an error. The engine answers meanwhile.
func (l *loading) receive(ctx context.Context, e *Engine, s *stream, p *transferParams, spec enginemodel.Spec) {
	tokens := len(spec.Prompt) - e.Match(spec.Adapter, spec.Salt, spec.Prompt)*e.cfg.BlockSize
	foreign, err := e.transfers.load(ctx, p, tokens)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return
	}
	t := e.transfers
	t.mu.Lock()
	if err != nil {
		t.failed++
	}
	t.mu.Unlock()
	switch {
	case err == nil:
		spec.Loaded, spec.Foreign = true, foreign
		if e.cfg.Release.minor(31) {
			s.mu.Lock()
			s.tells = p.Cached
			s.mu.Unlock()
		}
	case !e.cfg.Transfer.Recompute:
		e.cfg.Log.Info("Loading blocks failed", "error", err.Error())
		s.show(nil, 0, finishError)
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

// handed are the parameters that the answer to a prefill gives, for the engine that decodes; nil for other answers.
func (e *Engine) handed(s *stream, v view, prompt int) any {
	if s.holds == "" || v.finish == finishAbort || e.cfg.Transfer.Connector != NIXL {
		return nil
	}
	host, port, err := net.SplitHostPort(e.addr)
	if err != nil {
		return nil
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil
	}
	if e.cfg.Transfer.Host != "" {
		host = e.cfg.Transfer.Host
	}
	release := e.cfg.Release
	out := map[string]any{
		"do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": e.transfers.id, "remote_host": host,
		"remote_port": n, "tp_size": 1, "remote_block_ids": s.blocks, "remote_request_id": s.holds,
	}
	if release.minor(18) {
		out["remote_block_ids"] = [][]enginemodel.Block{s.blocks}
	}
	if release.minor(21) {
		out["remote_num_tokens"] = prompt
	}
	if release.minor(31) {
		out["remote_prefill_cached_tokens"] = v.cached
	}
	return out
}

// write adds the connector's counters.
func (t *transfers) write(w *metricsText) {
	if !t.config.Enabled {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	w.counter("vllm:nixl_num_kv_expired_reqs", "Requests whose blocks were not read within their lease.", t.expired)
	w.counter("vllm:nixl_num_failed_transfers", "Transfers that failed.", t.failed)
	w.gauge("vllmsim:held_requests", "Requests whose blocks wait for another engine.", float64(len(t.held)))
}
