// Package scrape polls engines: their metrics several times a second, their list of models now and then.
//
// One page is requested once for all the ranks that share it. The interval depends on the last answers: a page that is busy
// or changing is requested every Options.Busy, an unchanged one less and less often, up to Options.Idle, so that an idle
// fleet costs little. Every wait is jittered by a tenth either way; pages that are due at about the same time are
// requested together, so that the process wakes once for them.
package scrape

import (
	"context"
	"errors"
	"net"
	"sort"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/vllm"
)

// Defaults of Options. Idle stays below the two seconds after which a report counts as stale.
const (
	DefaultBusy    = 200 * time.Millisecond
	DefaultIdle    = 1500 * time.Millisecond
	DefaultTimeout = time.Second
	DefaultModels  = 10 * time.Second
)

// ErrNoAnswer is the error of a question that the engine took and did not answer in time.
var ErrNoAnswer = errors.New("no answer in time")

// MaxPage is the largest answer read, bytes. An engine's metrics are some 100 KiB.
const MaxPage = 8 << 20

// Options are what a Scraper is made of. Zero durations mean the defaults.
type Options struct {
	// Observe gets each reading, with the time it arrived. It is called by one goroutine per address, must be quick,
	// and must not call the Scraper.
	Observe func(id endpoint.ID, m vllm.Metrics, at time.Time)
	// Models gets the models and LoRA adapters that an endpoint lists, sorted by name, first and whenever they change;
	// nil does not ask for them. The rules are those of Observe.
	Models func(id endpoint.ID, models []Model)
	// EventSource receives what an engine reports about its publisher of KV events, for each target that requests it, first
	// and whenever it changes; nil requests nothing. The rules are those of Observe.
	EventSource func(id endpoint.ID, source EventSource)
	// Answered gets what became of each question for metrics: nil if the engine gave an answer of any kind, an error that is
	// ErrNoAnswer if it took the question and gave none in time, else why it could not be connected to. nil is not called. The
	// rules are those of Observe.
	Answered func(t Target, err error)
	// Busy is the shortest wait between two questions for metrics, Idle the longest.
	Busy, Idle time.Duration
	// Timeout bounds one question, the answer's body included. After a question for metrics without an answer the next one
	// has twice as long, up to four times Timeout, so that a busy engine that needs some seconds has an answer.
	Timeout time.Duration
	// Pauses asks engines whether they are paused, too.
	Pauses bool
	// ModelsEvery is the wait between two questions for the list of models. Where the list has LoRA adapters, it is a
	// fifth of that.
	ModelsEvery time.Duration
	// Room is the memory that the answers of all engines draw on while they are read; nil for no bound. Each address has 1 MiB outside
	// of it, and a share of it.
	Room *budget.Room
	// Dial makes connections; nil is the network's own. The network is "tcp" or "unix".
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Log reports when an address begins or ceases to answer.
	Log logr.Logger
}

// Target is an endpoint to ask.
type Target struct {
	ID endpoint.ID
	// Address is host:port of the engine's HTTP server; Socket is the path of a unix socket that replaces it.
	Address, Socket string
	// Wire is how it is spoken to.
	Wire endpoint.Wire
	// Rank is the data-parallel rank whose series to read; negative for the sum over all.
	Rank int
	// EventRank is the global data-parallel rank whose publisher is passed to Options.EventSource; negative for none.
	EventRank int
	// APIKey is sent as a bearer token; empty for none.
	APIKey string
}

// Stats is what became of the questions to one address since it was first set.
type Stats struct {
	// Address or path of the socket.
	Address string
	// Scrapes counts the questions for metrics, Failures those without a usable answer, for any reason.
	Scrapes, Failures uint64
	// ModelFailures counts questions for the list of models without a usable answer.
	ModelFailures uint64
	// Panics are bugs that showed while an answer was read, to any request; each counts as a failure, too.
	Panics uint64
	// LastSuccess is when the last usable answer arrived; zero when none did.
	LastSuccess time.Time
	// LastError is why the last question failed; nil when it did not.
	LastError error
	// Interval is the wait before the next question, before jitter.
	Interval time.Duration
}

// Scraper asks a changing set of targets. It is safe for concurrent use.
type Scraper struct {
	options Options
	wait    sync.WaitGroup // of the pages' goroutines

	mu     sync.Mutex // guards what follows
	pages  map[where]*page
	closed bool
}

// where is what makes a page.
type where struct {
	address, socket, apiKey string
	wire                    endpoint.Wire
}

// New returns a Scraper without targets.
func New(options Options) *Scraper {
	orDefault := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	orDefault(&options.Busy, DefaultBusy)
	orDefault(&options.Idle, DefaultIdle)
	orDefault(&options.Timeout, DefaultTimeout)
	orDefault(&options.ModelsEvery, DefaultModels)
	if options.Dial == nil {
		options.Dial = (&net.Dialer{}).DialContext
	}
	options.Idle = max(options.Idle, options.Busy)
	return &Scraper{options: options, pages: map[where]*page{}}
}

// Set replaces the targets. When it returns, targets no longer set are observed no more. New ones are asked at once.
func (s *Scraper) Set(targets []Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	byPage := map[where][]Target{}
	for _, t := range targets {
		w := where{t.Address, t.Socket, t.APIKey, t.Wire}
		if t.Socket != "" {
			w.address = ""
		}
		byPage[w] = append(byPage[w], t)
	}
	for w, p := range s.pages {
		if byPage[w] == nil {
			p.stop()
			delete(s.pages, w)
		}
	}
	for w, targets := range byPage {
		p := s.pages[w]
		if p != nil {
			p.set(targets)
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		p = newPage(w, &s.options, cancel)
		p.set(targets)
		s.pages[w] = p
		s.wait.Go(func() { p.run(ctx) })
	}
}

// Stats returns the state of every configured address, in order of address.
func (s *Scraper) Stats() []Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Stats, 0, len(s.pages))
	for _, p := range s.pages {
		out = append(out, p.snapshot())
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Address < out[j].Address })
	return out
}

// Close ends all questions and waits until nothing runs any more. Set does nothing afterwards.
func (s *Scraper) Close() {
	s.mu.Lock()
	s.closed = true
	for w, p := range s.pages {
		p.stop()
		delete(s.pages, w)
	}
	s.mu.Unlock()
	s.wait.Wait()
}
