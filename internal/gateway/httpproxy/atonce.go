package httpproxy

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/relay"
)

// errPrefill ends the second leg of a request whose first leg has failed: the engine would wait for blocks that do not come.
var errPrefill = errors.New("the endpoint that was to prefill has failed")

// beginAtOnce begins the first leg of a request whose legs are sent at the same time, and prepares the second. end cancels the first and
// waits for it. If it fails while the second waits for its blocks, cancel is called with errPrefill.
func (e *exchange) beginAtOnce(ctx context.Context, cancel context.CancelCauseFunc) (end func(), r result) {
	first := e.decision.FirstLeg()
	from := first.Targets[0].Endpoint
	asks, loads, err := e.atOnceParameters(ctx, from)
	if err != nil && ctx.Err() != nil { // no fault of the endpoint
		return nil, e.failed(ctx, err)
	}
	if err != nil {
		e.log("Endpoint that was to prefill is not known to its connector", err)
		first.Unconnected(true)
		e.decision.PrefillFailed(picker.HandoffNoParameters)
		return nil, failedLeg
	}
	asked := e.legBody(len(e.body.Bytes)+openai.HandoffBytes, func(dst []byte) []byte {
		return openai.AppendPrefill(dst, e.route, e.body.Bytes, string(asks))
	})
	second := e.legBody(len(e.body.Bytes)+len(loads)+openai.HandoffBytes, func(dst []byte) []byte {
		return openai.AppendDecode(dst, e.body.Bytes, loads)
	})
	if asked == nil || second == nil {
		for _, b := range []*body{asked, second} {
			if b != nil {
				b.release()
			}
		}
		e.decision.PrefillFailed(picker.HandoffNoMemory)
		return nil, failedLeg
	}
	e.handed = &handedOver{body: second, at: e.proxy.options.Now()}
	leg := &atOnceLeg{exchange: e, decision: e.decision, first: first, body: asked, header: e.headerFor(first, from)}
	legCtx, stop := context.WithCancel(ctx)
	var over sync.WaitGroup
	over.Go(func() {
		defer asked.release()
		if !leg.run(legCtx, from) && legCtx.Err() == nil && leg.decision.PrefillFailed(picker.HandoffPrefillFailed) {
			cancel(errPrefill)
		}
	})
	return func() {
		if e.decision.Leg() == picker.DecodeLeg && !e.decision.AwaitsBlocks() {
			late := time.AfterFunc(lateAnswer, stop) // the engine has prefilled, and its answer is on the way
			defer late.Stop()
		} else {
			stop()
		}
		over.Wait()
		stop()
	}, passed
}

// beginPull has the first target load blocks of a peer, if the plan is so. Without room for another body, and at other targets, the request
// is sent without it, and the engine computes them.
func (e *exchange) beginPull() {
	if e.decision.Leg() != picker.Whole {
		return
	}
	e.dropHandedOver()
	peer := e.decision.PullFrom()
	if peer == nil || e.attempt > 0 || e.body == nil {
		return
	}
	host, _, err := net.SplitHostPort(peer.Address)
	if err != nil {
		return
	}
	loads := openai.PullParameters(rand.Text(), host, e.decision.Spec().Policy.Handoffs.Port)
	body := e.legBody(len(e.body.Bytes)+len(loads)+openai.HandoffBytes, func(dst []byte) []byte {
		return openai.AppendDecode(dst, e.body.Bytes, loads)
	})
	if body != nil {
		e.handed = &handedOver{body: body, at: e.proxy.options.Now()}
	}
}

// lateAnswer is how long the answer to a first leg is waited for once the second leg has ended well.
const lateAnswer = time.Second

// atOnceLeg is a first leg while the second is under way. It shares no state with the exchange that changes.
type atOnceLeg struct {
	exchange        *exchange
	decision, first *picker.Decision
	body            *body
	header          http.Header
}

// run sends the leg and reports whether it has gone well.
func (l *atOnceLeg) run(ctx context.Context, from *endpoint.Endpoint) bool {
	e := l.exchange
	response, err := e.proxy.engines.RoundTrip(e.outgoing(ctx, l.header, l.body), from)
	if err != nil {
		if ctx.Err() == nil {
			l.first.Fail()
		}
		return false
	}
	defer func() { _ = response.Body.Close() }()
	var a picker.Answer
	a.Start(l.first, response.StatusCode, response.Header.Get("Content-Type"), strings.Join(response.Header["Content-Encoding"], ","))
	if err := scan(&a, io.LimitReader(response.Body, relay.MaxPrefillAnswer+1)); err != nil {
		if ctx.Err() == nil {
			l.first.Fail()
		}
		return false
	}
	verdict := a.Verdict(true)
	a.Close()
	if verdict == picker.Refused || verdict == picker.GaveUp || verdict == picker.Erred || response.StatusCode != http.StatusOK {
		return false
	}
	l.decision.Prefilled()
	return true
}

// scanned are pieces of answers that nothing is kept of.
var scanned = sync.Pool{New: func() any { return new([4 << 10]byte) }}

// scan reads an answer to its end, and keeps nothing of it.
func scan(a *picker.Answer, from io.Reader) error {
	buf := scanned.Get().(*[4 << 10]byte)
	defer scanned.Put(buf)
	for {
		n, err := from.Read(buf[:])
		a.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// atOnceParameters are those of both legs.
func (e *exchange) atOnceParameters(ctx context.Context, from *endpoint.Endpoint) (first, second []byte, err error) {
	host, _, err := net.SplitHostPort(from.Address)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the address of an endpoint: %w", err)
	}
	spec, id := &e.decision.Spec().Policy.Handoffs, rand.Text()
	if spec.Connector == picker.Offloading {
		first, second = openai.OffloadingParameters(id, host, spec.Port)
		return first, second, nil
	}
	bootstrap := "http://" + net.JoinHostPort(host, strconv.Itoa(spec.Port))
	engine, err := e.proxy.bootstraps.engine(ctx, bootstrap, e.proxy.options.Now())
	if err != nil {
		return nil, nil, err
	}
	first, second = openai.MooncakeParameters(id, bootstrap, engine)
	return first, second, nil
}

const (
	// bootstrapLasts is how long the id of an engine is used without another question. An engine that was restarted has another one, which
	// the first hand-off with the old one finds.
	bootstrapLasts = 30 * time.Second
	// bootstrapPatience bounds a question, and maxBootstrap its answer in bytes.
	bootstrapPatience = 2 * time.Second
	maxBootstrap      = 1 << 16
	// maxBootstraps are remembered.
	maxBootstraps = 4096
)

// bootstraps are the ids of engines by the URL of Mooncake's bootstrap server, which each engine that prefills has. It is safe for
// concurrent use.
type bootstraps struct {
	client *http.Client

	mu    sync.Mutex
	known map[string]bootstrapped
}

type bootstrapped struct {
	engine string
	at     time.Time
}

func newBootstraps() *bootstraps {
	return &bootstraps{known: map[string]bootstrapped{}, client: &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// engine is the id of the engine's first rank.
func (b *bootstraps) engine(ctx context.Context, at string, now time.Time) (string, error) {
	b.mu.Lock()
	known, ok := b.known[at]
	b.mu.Unlock()
	if ok && now.Sub(known.at) < bootstrapLasts {
		return known.engine, nil
	}
	engine, err := b.ask(ctx, at)
	if err != nil {
		return "", fmt.Errorf("asking Mooncake's bootstrap server: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.known) >= maxBootstraps {
		clear(b.known)
	}
	b.known[at] = bootstrapped{engine, now}
	return engine, nil
}

func (b *bootstraps) ask(ctx context.Context, at string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, bootstrapPatience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"/query", http.NoBody)
	if err != nil {
		return "", err
	}
	answer, err := b.client.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(answer.Body, maxBootstrap))
	if err != nil {
		return "", err
	}
	var ranks map[string]struct {
		Engine string `json:"engine_id"`
	}
	if err := json.Unmarshal(raw, &ranks); err != nil || answer.StatusCode != http.StatusOK || ranks["0"].Engine == "" {
		return "", fmt.Errorf("status %d without an engine", answer.StatusCode)
	}
	return ranks["0"].Engine, nil
}

// forgetFirst forgets what is known of the engine that was to prefill, if both legs were sent at once: it can be another life of it
// that has answered, so that the second engine has not found the one that it was sent for. It reports false.
func (e *exchange) forgetFirst() bool {
	if first := e.decision.FirstLeg(); first != nil {
		e.proxy.bootstraps.forget(e.decision.Spec(), first.Targets[0].Endpoint)
	}
	return false
}

// forget forgets the id of an engine whose hand-off has failed.
func (b *bootstraps) forget(spec *picker.Spec, from *endpoint.Endpoint) {
	host, _, err := net.SplitHostPort(from.Address)
	if err != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.known, "http://"+net.JoinHostPort(host, strconv.Itoa(spec.Policy.Handoffs.Port)))
}
