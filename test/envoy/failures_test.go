package envoy

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// best is how Envoy is set to lose nothing: pickers are checked, lists of destinations are followed, requests that have
// not reached an engine are sent again.
func best() gateway { return gatewayOf("GKE") }

// traffic is load from several clients: plain and streamed requests, over HTTP/1.1 and HTTP/2.
type traffic struct {
	t    *testing.T
	quit chan struct{}
	done sync.WaitGroup

	mu       sync.Mutex
	phase    string         // guarded by mu
	rounds   int            // guarded by mu
	under    map[string]int // guarded by mu, requests under way by the phase in which they began
	answered map[string]int // guarded by mu, by the phase in which the request began
	failed   map[string]int // guarded by mu, likewise
	last     reply          // guarded by mu, that failed
}

// drive puts a gateway under load until the test ends or end is called.
func (p *proxy) drive(t *testing.T, g gateway) *traffic {
	t.Helper()
	l := &traffic{t: t, quit: make(chan struct{}), phase: "before", under: map[string]int{}, answered: map[string]int{}, failed: map[string]int{}}
	for i := range 8 {
		version := []string{http11, http2}[i%2]
		client := p.client(t, g, version)
		l.done.Go(func() {
			for n := i; ; n++ {
				select {
				case <-l.quit:
					return
				default:
				}
				l.one(client, request{tokens: 50 + n%50, stream: n%3 > 0})
			}
		})
	}
	t.Cleanup(l.end)
	return l
}

func (l *traffic) one(c *http.Client, r request) {
	l.mu.Lock()
	phase := l.phase
	l.under[phase]++
	l.mu.Unlock()
	a := do(c, r, nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.under[phase]--
	if a.whole(r.stream) {
		l.answered[phase]++
		return
	}
	l.failed[phase]++
	l.last = a
}

// during names what follows, and waits until what began before has ended, and so many requests that began in it.
func (l *traffic) during(phase string, requests int) {
	l.t.Helper()
	l.mu.Lock()
	l.phase = phase
	l.mu.Unlock()
	until(l.t, "requests end "+phase, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for other, n := range l.under {
			if other != phase && n > 0 {
				return false
			}
		}
		return l.answered[phase]+l.failed[phase] >= requests
	})
}

// round is a name for a phase that can occur more than once.
func (l *traffic) round(what string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rounds++
	return fmt.Sprintf("%s, in round %d", what, l.rounds)
}

// recovers waits until many requests in a row are answered. What Envoy's administrative interface says of a picker its
// workers know a little later.
func (l *traffic) recovers() {
	l.t.Helper()
	until(l.t, "all requests are answered again", func() bool {
		round := l.round("until all was well")
		l.during(round, some)
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.failed[round] == 0
	})
}

// avoids waits until Envoy avoids a picker that was killed, and checks that no request is lost then. Outlier detection ejects
// a picker for a time only: when that is over while requests are counted, the next ones find out again, and others are
// counted after that.
func (l *traffic) avoids(p *proxy, g gateway) {
	l.t.Helper()
	until(l.t, "Envoy avoids the picker that was killed", func() bool {
		l.recovers()
		before, round := p.ejections(l.t, g), l.round("with the other")
		l.during(round, some)
		if p.ejections(l.t, g) != before || g.pickers == outlier && before.now == 0 {
			return false
		}
		l.lossless(round)
		return true
	})
}

// ejections are how many pickers outlier detection ejects now, and how often it has ejected one.
type ejections struct{ now, ever int }

func (p *proxy) ejections(t *testing.T, g gateway) ejections {
	t.Helper()
	if g.pickers != outlier {
		return ejections{}
	}
	cluster := "cluster." + g.pickersName() + ".outlier_detection."
	return ejections{now: p.stat(t, cluster+"ejections_active"), ever: p.stat(t, cluster+"ejections_enforced_total")}
}

// end waits for the requests under way.
func (l *traffic) end() {
	l.mu.Lock()
	select {
	case <-l.quit:
	default:
		close(l.quit)
	}
	l.mu.Unlock()
	l.done.Wait()
}

// lossless checks that no request was lost that began in one of the phases; with none, in any.
func (l *traffic) lossless(phases ...string) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(phases) == 0 {
		for phase := range l.failed {
			phases = append(phases, phase)
		}
	}
	for _, phase := range phases {
		if n := l.failed[phase]; n != 0 {
			l.t.Errorf("%d requests that began %s have failed, the last with %v", n, phase, l.last)
		}
	}
	l.t.Logf("answered: %v, failed: %v", l.answered, l.failed)
}

const some = 40 // requests, several for each client

// repeat runs f once, or for as long as -storm says.
func repeat(f func()) {
	for begin := time.Now(); ; {
		f()
		if time.Since(begin) >= *storm {
			return
		}
	}
}

// begin begins a streamed answer to a request that one of the pickers has picked for, and holds it in its middle. finish
// releases the rest, and checks that it arrives.
func (p *proxy) begin(t *testing.T, g gateway, by *replica, all []*engine) (finish func()) {
	t.Helper()
	client := p.client(t, g, http2)
	until(t, "the picker is asked", func() bool {
		r, h := newRequest(true), newHold(patience)
		for _, e := range all {
			e.hold(r.id(), h)
		}
		begun, answer := make(chan struct{}), make(chan reply, 1)
		go func() { answer <- do(client, r, func() { close(begun) }) }()
		select {
		case <-begun:
		case a := <-answer:
			t.Fatalf("an answer that is to be held: %v", a)
		}
		finish = func() {
			t.Helper()
			close(h.arrived)
			if a := <-answer; !a.whole(true) {
				t.Errorf("an answer that was held: %v", a)
			}
		}
		if by.ledger.picked(r) {
			return true
		}
		finish()
		return false
	})
	return finish
}

// A rollout replaces both pickers, one after the other: each is marked as leaving, and its lame duck time ends once Envoy's
// worker sends it no more requests. A stream that is open when Envoy is then sent elsewhere continues to its end.
func TestARolloutOfPickersLosesNothing(t *testing.T) {
	all := engines(t, 2, nil)
	spec := pool(addresses(all)...)
	pickers := []*replica{startReplica(t, spec, settings{}), startReplica(t, spec, settings{})}
	named := func() []string { return []string{pickers[0].address, pickers[1].address} }
	g := best()
	p := start(t, named(), addresses(all), g)
	notices := "cluster." + g.pickersName() + ".upstream_cx_close_notify" // a GOAWAY each
	load := p.drive(t, g)
	load.during("before", some)
	repeat(func() {
		for i := range pickers {
			old := pickers[i]
			pickers[i] = startReplica(t, spec, settings{})
			discover(t, p.dir, pickersFile, append(named(), old.address))
			until(t, "the new picker is healthy", func() bool { return p.healthy(g, pickers[i].address) })
			finish := p.begin(t, g, old, all)
			old.leaving.Store(true)
			until(t, "Envoy finds the old picker leaving", func() bool { return !p.healthy(g, old.address) })
			discover(t, p.dir, pickersFile, named())
			until(t, "Envoy has removed the old picker", func() bool { return !p.lists(g, old.address) })
			p.settle(t)
			notified := p.stat(t, notices)
			old.stop()
			until(t, "Envoy is sent elsewhere", func() bool { return p.stat(t, notices) > notified })
			load.during("during the rollout", some)
			finish()
			old.drain(t)
		}
	})
	load.end()
	load.lossless()
	for _, r := range pickers {
		r.idle(t)
		if r.ledger.len() == 0 {
			t.Error("a new picker has had no request")
		}
	}
}

// When one of two pickers is killed, only requests that began before Envoy knew can fail: by its health checks, by the
// failures themselves where there is outlier detection, or because the address is gone.
func TestOneOfTwoPickersIsKilledAndComesBack(t *testing.T) {
	for _, name := range []string{"GKE", "Istio", "Envoy AI Gateway"} {
		t.Run(name, func(t *testing.T) {
			all := engines(t, 2, nil)
			spec := pool(addresses(all)...)
			a, b := startReplica(t, spec, settings{}), startReplica(t, spec, settings{})
			g := gatewayOf(name)
			p := start(t, []string{a.address, b.address}, addresses(all), g)
			load := p.drive(t, g)
			load.during("before", some)
			repeat(func() {
				load.during("with both", some)
				load.during("when it was killed", 0)
				a.crash()
				if g.pickers == assumed {
					discover(t, p.dir, pickersFile, []string{b.address})
				}
				load.avoids(p, g)
				a = startReplica(t, spec, settings{address: a.address})
				discover(t, p.dir, pickersFile, []string{a.address, b.address})
				until(t, "the picker that came back is asked", func() bool { return a.ledger.len() > 0 })
				load.during("with both", some)
			})
			load.end()
			load.lossless("before", "with both")
			a.idle(t)
			b.idle(t)
		})
	}
}

// When the only picker is killed, requests fail, or go to any pod with FailOpen once Envoy knows. They never hang.
func TestTheOnlyPickerIsKilledAndComesBack(t *testing.T) {
	for name, failOpen := range map[string]bool{"FailClose": false, "FailOpen": true} {
		t.Run(name, func(t *testing.T) {
			all := engines(t, 2, nil)
			spec := pool(addresses(all)...)
			r := startReplica(t, spec, settings{})
			g := best()
			g.failOpen = failOpen
			p := start(t, []string{r.address}, addresses(all), g)
			load := p.drive(t, g)
			load.during("before", some)
			load.during("when it was killed", 0)
			r.crash()
			until(t, "Envoy knows", func() bool { return !p.healthy(g, r.address) })
			if failOpen {
				load.recovers()
			} else {
				until(t, "no connection to the picker is left", func() bool { return p.stat(t, "cluster."+g.pickersName()+".upstream_cx_active") == 0 })
			}
			load.during("without a picker", some)
			load.during("when it came back", 0)
			r = startReplica(t, spec, settings{address: r.address})
			until(t, "Envoy finds the picker again", func() bool { return p.healthy(g, r.address) })
			until(t, "the picker that came back is asked", func() bool { return r.ledger.len() > 0 })
			load.recovers()
			load.during("after", some)
			load.end()
			load.lossless("before", "after")
			if failed := load.failed["without a picker"]; failOpen && failed > 0 || !failOpen && (load.answered["without a picker"] > 0 || load.last.status != http.StatusInternalServerError) {
				t.Errorf("without a picker %d requests are answered, and %d fail, the last with %v", load.answered["without a picker"], failed, load.last)
			}
			r.idle(t)
		})
	}
}

// A picker that does not run for a while, and keeps its connections, delays requests and loses none.
func TestAFrozenPickerDelaysRequests(t *testing.T) {
	all := engines(t, 2, nil)
	spec := pool(addresses(all)...)
	a, b := startReplica(t, spec, settings{}), startReplica(t, spec, settings{})
	g := best()
	p := start(t, []string{a.address, b.address}, addresses(all), g)
	load := p.drive(t, g)
	load.during("before", some)
	load.during("frozen", 0)
	a.conns.freeze(true)
	until(t, "Envoy knows", func() bool { return !p.healthy(g, a.address) })
	a.conns.freeze(false)
	until(t, "Envoy finds the picker again", func() bool { return p.healthy(g, a.address) })
	load.during("after", some)
	load.end()
	load.lossless()
	a.idle(t)
	b.idle(t)
}

// An engine that is killed costs no request that begins afterwards: Envoy continues with the next of the list, and the
// picker notices it.
func TestAnEngineIsKilled(t *testing.T) {
	all := engines(t, 3, nil)
	spec := pool(addresses(all)...)
	spec.OrderedDestinations, spec.Policy.CircuitFailures, spec.Policy.CircuitOpen = true, some/2, time.Hour
	r := startReplica(t, spec, settings{})
	g := best()
	p := start(t, []string{r.address}, addresses(all), g)
	load := p.drive(t, g)
	load.during("before", some)
	load.during("when it was killed", 0)
	all[0].kill()
	load.during("after", some)
	until(t, "the circuit of the engine opens", func() bool { return !r.stats().Endpoints[0].CircuitClosed })
	load.during("with an open circuit", some)
	load.end()
	load.lossless("before", "after", "with an open circuit")
	if s := r.stats(); gatewayStats(s).Retried < some/4 || s.Endpoints[0].Failures < some/2 {
		t.Errorf("%d retries and %d failures of the engine count", gatewayStats(s).Retried, s.Endpoints[0].Failures)
	}
	r.idle(t)
}

// When Envoy is killed under load nothing of its requests is left in the picker, and another Envoy can be served.
func TestTheGatewayIsKilled(t *testing.T) {
	all := engines(t, 2, nil)
	r := startReplica(t, pool(addresses(all)...), settings{})
	g := best()
	p := start(t, []string{r.address}, addresses(all), g)
	load := p.drive(t, g)
	load.during("before", some)
	load.during("when it was killed", some)
	p.kill()
	load.end()
	load.lossless("before")
	r.idle(t)
	for _, e := range r.ledger.entries(0) {
		if e.outcome != picker.Completed && e.outcome != picker.ClientGone {
			t.Errorf("a request counts as %v", e.outcome)
		}
	}
	next := start(t, []string{r.address}, addresses(all), g)
	ask(t, next.client(t, g, http11), newRequest(true))
}

// When one Envoy takes over from another (a hot restart), no request is lost.
func TestTheGatewayIsReplaced(t *testing.T) {
	all := engines(t, 2, nil)
	r := startReplica(t, pool(addresses(all)...), settings{})
	g := best()
	p := start(t, []string{r.address}, addresses(all), g)
	load := p.drive(t, g)
	load.during("before", some)
	epoch := 0
	repeat(func() {
		epoch++
		p.restart(t, epoch)
		load.during("after the restart", some)
	})
	load.end()
	load.lossless()
	r.idle(t)
}

// Certificates that are replaced, and connections that are closed because of their age, lose no request. Envoy verifies
// each certificate.
func TestCertificatesAreRotatedUnderLoad(t *testing.T) {
	dir := t.TempDir()
	files := certs.Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	authority := certs.Authority{}
	leaf := certs.Pair{}
	rotate := func(name string) {
		if changed, _, err := authority.Renew(&leaf, []string{"picker.default.svc", name}, time.Now()); err != nil || !changed {
			t.Fatalf("renewing the certificate: %v, %v", changed, err)
		}
		write(t, files.Key, leaf.Key)
		write(t, files.Cert, leaf.Cert)
	}
	rotate("first")
	trusted := filepath.Join(dir, "ca.crt")
	write(t, trusted, authority.Trusted())

	all := engines(t, 2, nil)
	r := startReplica(t, pool(addresses(all)...), settings{certs: files, age: 100 * time.Millisecond})
	g := best()
	g.trusted = trusted
	p := start(t, []string{r.address}, addresses(all), g)
	load := p.drive(t, g)
	load.during("before", some)
	cluster := "cluster." + g.pickersName()
	repeat(func() {
		for _, name := range []string{"second", "third", "fourth", "fifth", "sixth"} {
			handshakes := p.stat(t, cluster+".ssl.handshake")
			rotate(name)
			until(t, "Envoy connects again", func() bool { return p.stat(t, cluster+".ssl.handshake") > handshakes+1 })
		}
	})
	load.end()
	load.lossless()
	if n := p.stat(t, cluster+".ssl.fail_verify_error"); n != 0 {
		t.Errorf("%d certificates were not trusted", n)
	}
	r.idle(t)
}

func write(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}
