// Package scrape asks engines how they are: their metrics several times a second, their list of models now and then.
//
// One page is asked once for all the ranks that share it. How often depends on what the last answers said: a page
// that is busy or changing is asked every Options.Busy, one that stands still ever less often, up to Options.Idle,
// so that an idle fleet costs next to nothing. Every wait is jittered by a tenth either way; pages that are due at about
// the same time are asked together, so that the process wakes once for them.
package scrape

import (
	"context"
	"net"
	"sort"
	"sync"
	"time"

	"github.com/go-logr/logr"

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

// MaxPage is the largest answer read, bytes. An engine's metrics are some 100 KiB.
const MaxPage = 8 << 20

// Options are what a Scraper is made of. Zero durations mean the defaults.
type Options struct {
	// Observe gets each reading, with the time it arrived. It is called by one goroutine per address, must be quick,
	// and must not call the Scraper.
	Observe func(id endpoint.ID, m vllm.Metrics, at time.Time)
	// Adapters gets the names of the LoRA adapters that an endpoint serves, sorted, first and whenever they change;
	// nil when nobody wants to know. The rules are those of Observe.
	Adapters func(id endpoint.ID, names []string)
	// Busy is the shortest wait between two questions for metrics, Idle the longest.
	Busy, Idle time.Duration
	// Timeout bounds one question, the answer's body included.
	Timeout time.Duration
	// Models is the wait between two questions for the list of models.
	Models time.Duration
	// Dial makes connections; nil is the network's own. The network is "tcp" or "unix".
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Log tells when an address begins or ceases to answer.
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
	// APIKey is sent as a bearer token; empty for none.
	APIKey string
	// Adapters tells whether to ask for the list of models, too.
	Adapters bool
}

// Stats is what became of the questions to one address since it was first set.
type Stats struct {
	// Address or path of the socket.
	Address string
	// Scrapes counts the questions for metrics, Failures those without a usable answer, for any reason.
	Scrapes, Failures uint64
	// ModelFailures counts questions for the list of models without a usable answer.
	ModelFailures uint64
	// LastSuccess is when the last usable answer came; zero when none did.
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
	orDefault(&options.Models, DefaultModels)
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

// Stats tells of every address set now, in order of address.
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
