package envoy

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Lists of destinations: what a gateway makes of one whose first endpoint does not answer, and what the picker makes of that.

// avoidedFor is longer than it takes the picker to find out that a gateway avoids an endpoint, given enough requests.
const avoidedFor = 31 * time.Second

// sendsPicked sends requests until one is picked for an engine. It returns what the picker had counted before, the request, its
// answer and its entry.
func (b *bench) sendsPicked(t *testing.T, g gateway, to *engine, prepare func(id string)) (picker.PoolStats, request, reply, entry) {
	t.Helper()
	for range 10 * len(b.engines) {
		before, q, after := b.picker.stats(), newRequest(false), b.picker.ledger.len()
		if prepare != nil {
			prepare(q.id())
		}
		a := do(b.client(t, g, http11), q, nil)
		if e := b.picker.ledger.waitFor(t, after, 1)[0]; e.picked == to.address() {
			return before, q, a, e
		}
	}
	t.Fatalf("%s: no request is picked for %s", g.name, to.address())
	return picker.PoolStats{}, request{}, reply{}, entry{}
}

// newListed is a bench whose gateways are given lists. Envoy knows all engines but the first few.
func newListed(t *testing.T, unknown int, all ...gateway) *bench {
	t.Helper()
	b := &bench{engines: engines(t, 3, nil)}
	spec := pool(addresses(b.engines)...)
	spec.OrderedDestinations, spec.Policy.CircuitFailures, spec.Policy.CircuitOpen = true, 2, time.Hour
	b.picker = startReplica(t, spec, settings{})
	b.proxy = start(t, []string{b.picker.address}, addresses(b.engines[unknown:]), all...)
	return b
}

// A gateway that does not know the first endpoint of a list takes the next one. The endpoint has not failed, and the gateway
// is found out: in time, or at once by its count of attempts.
func TestAGatewayThatLacksTheFirstOfAListIsSeen(t *testing.T) {
	for _, name := range []string{"Istio", "GKE"} {
		for _, attempts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, attempts reported %v", name, attempts), func(t *testing.T) {
				g := gatewayOf(name)
				g.attempts = attempts
				b := newListed(t, 1, g)
				missing := b.engines[0]
				send := func(n int) {
					t.Helper()
					for range n {
						_, q, a, e := b.sendsPicked(t, g, missing, nil)
						if !a.whole(false) || e.outcome != picker.Completed || e.served != servedBy(b.engines, q.id()) {
							t.Errorf("answered by %s with %v; counts as %v of %s", servedBy(b.engines, q.id()), a, e.outcome, e.served)
						}
					}
				}
				begin := time.Now()
				send(judged)
				if s := gatewayStats(b.picker.stats()); !attempts && (s.Unfollowed != 0 || s.Ignores) && time.Since(begin) < avoidedFor {
					t.Errorf("the gateway may have retried: %+v", s)
				}
				sent := int64(judged)
				until(t, "the gateway is found out", func() bool {
					b.picker.ahead.Add(int64(avoidedFor))
					send(1)
					sent++
					return gatewayStats(b.picker.stats()).Ignores
				})
				until(t, "the picks that were not followed count", func() bool { return gatewayStats(b.picker.stats()).Unfollowed == sent })
				s := b.picker.stats()
				if n := gatewayStats(s).Retried; n != 0 {
					t.Errorf("%d of %d picks for an engine that Envoy does not know count as retried", n, sent)
				}
				if e := s.Endpoints[0]; e.Failures != 0 || !e.CircuitClosed {
					t.Errorf("%d failures of an engine that Envoy does not know, circuit closed: %v", e.Failures, e.CircuitClosed)
				}
				b.picker.idle(t)
			})
		}
	}
}

// An engine can refuse a request and serve the next one. A gateway that then continues with the list is not blamed, and the
// engine has not failed.
func TestAGatewayThatRetriesRightlyIsNotBlamed(t *testing.T) {
	for name, attempts := range map[string]bool{"attempts are not reported": false, "attempts are reported": true} {
		t.Run(name, func(t *testing.T) {
			g := best()
			g.retryOn, g.attempts = "5xx", attempts
			b := newListed(t, 0, g)
			full := b.engines[0]
			const rounds = judged
			for range rounds {
				if _, _, a, e := b.sendsPicked(t, g, full, full.refuse); !a.whole(false) || e.served == full.address() {
					t.Fatalf("a request that its engine refuses: %v, by %s", a, e.served)
				}
				if _, _, a, e := b.sendsPicked(t, g, full, nil); !a.whole(false) || e.served != full.address() {
					t.Fatalf("a request that its engine takes: %v, by %s", a, e.served)
				}
				b.picker.ahead.Add(int64(avoidedFor))
			}
			s := b.picker.stats()
			want := picker.GatewayStats{Gateway: gatewayStats(s).Gateway, Reported: gatewayStats(s).Reported}
			if attempts {
				want.Retried = rounds
			}
			if got := gatewayStats(s); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
			if e := s.Endpoints[0]; e.Failures != 0 || !e.CircuitClosed {
				t.Errorf("%d failures of an engine that takes requests, circuit closed: %v", e.Failures, e.CircuitClosed)
			}
			b.picker.idle(t)
		})
	}
}

// The ways in which the first endpoint of a list does not answer a request.
const (
	refusing = "refuses connections"
	lacking  = "unknown to the gateway"
	busy     = "answers 503"
)

// way is how a gateway is given a destination, and under which conditions it retries.
type way struct {
	destination, given, retries string
}

const (
	one   = "one"
	aList = "a list"
)

// ways are all combinations, but for lists where endpoints are chosen by their metadata: no endpoint has that of a list, so
// that each request goes to any of them.
func ways() []way {
	var all []way
	for _, destination := range []string{byHeader, byMetadata, override, subset} {
		for _, given := range []string{one, aList} {
			for _, retries := range []string{"none", "no connection", "5xx"} {
				if destination != subset || given != aList {
					all = append(all, way{destination, given, retries})
				}
			}
		}
	}
	return all
}

func (w way) gateway() gateway {
	return gateway{name: w.destination + " " + w.retries, request: fullDuplex, response: fullDuplex, destination: w.destination,
		fallback: roundRobin, forward: []string{lb}, receive: []string{lb}, messages: "300s",
		retryOn: map[string]string{"no connection": "connect-failure,reset-before-request", "5xx": "connect-failure,5xx"}[w.retries]}
}

// TestListsAndRetries finds out what becomes of a request whose first endpoint does not answer, and as what it counts. Its
// table is part of docs/gateways.md.
func TestListsAndRetries(t *testing.T) {
	faults := []string{refusing, lacking, busy}
	var all []gateway
	for _, w := range ways() {
		if w.given == one {
			all = append(all, w.gateway())
		}
	}
	rows := map[way]string{}
	for _, fault := range faults {
		unknown := map[string]int{lacking: 1}[fault]
		b := newListed(t, unknown, all...)
		if fault == refusing {
			b.engines[0].kill()
		}
		for _, w := range ways() {
			t.Run(fmt.Sprintf("%s-%v", fault, w), func(t *testing.T) {
				spec := pool(addresses(b.engines)...)
				spec.OrderedDestinations = w.given == aList
				b.picker.apply(t, spec)
				rows[w] += " " + b.fate(t, w, fault) + " |"
			})
		}
		b.picker.idle(t)
	}
	if t.Failed() {
		return
	}
	text := "| destination | given | retries | first endpoint " + strings.Join(faults, " | ") + " |\n|---|---|---|---|---|---|\n"
	seen := map[string]bool{}
	for _, w := range ways() {
		retries, destination := w.retries, "`"+w.destination+"`"
		if !slices.ContainsFunc([]string{"none", "5xx"}, func(r string) bool { return rows[w] != rows[way{w.destination, w.given, r}] }) {
			retries = "any"
		}
		if w.destination == byHeader || w.destination == byMetadata {
			destination = "`" + byHeader + "`, `" + byMetadata + "`"
			if other := (way{byMetadata, w.given, w.retries}); rows[w] != rows[other] {
				t.Errorf("%v:%s %v:%s", w, rows[w], other, rows[other])
			}
		}
		if row := fmt.Sprintf("| %s | %s | %s |%s\n", destination, w.given, retries, rows[w]); !seen[row] {
			seen[row] = true
			text += row
		}
	}
	inDocs(t, "lists", text)
}

// fate is what becomes of a request that is picked for the first engine, and as what it counts.
func (b *bench) fate(t *testing.T, w way, fault string) string {
	t.Helper()
	g, first := w.gateway(), b.engines[0]
	var prepare func(string)
	if fault == busy {
		prepare = first.refuse
	}
	before, q, a, e := b.sendsPicked(t, g, first, prepare)
	who, at := "another", servedBy(b.engines, q.id())
	switch {
	case a.status == http.StatusServiceUnavailable:
		who = "503"
	case !a.whole(false):
		t.Fatalf("%v", a)
	case at == first.address():
		who = "the pick"
	case w.destination == override && w.given == aList:
		if who = "the next"; at != e.next {
			t.Errorf("answered by %s, the next of the list is %s", at, e.next)
		}
	}
	count := b.counter(before)
	switch {
	case who == "the next" && fault == busy: // that is no fault of the gateway's nor, by what is known, of the engine's
		b.sendsPicked(t, g, first, nil)
		if n := count(); n != (counts{}) {
			t.Errorf("a request that was retried rightly counts as %+v", n)
		}
	case who == "the next" && fault == lacking: // which shows in time
		sent := int64(1)
		until(t, "the gateway is found out", func() bool {
			b.picker.ahead.Add(int64(avoidedFor))
			b.sendsPicked(t, g, first, nil)
			sent++
			return count() != counts{}
		})
		until(t, "the picks count as not followed", func() bool { return count() == counts{unfollowed: sent} })
	case who != "the pick" && gatewayStats(b.picker.stats()).Reported > gatewayStats(before).Reported:
		until(t, "the request counts", func() bool { return count() != counts{} })
	}
	switch n := count(); {
	case n == counts{}:
		return who
	case n == counts{failures: 1}:
		return who + ", a failure"
	case n == counts{failures: 1, retried: 1}:
		return who + ", retried"
	case n.unfollowed > 0 && n == counts{unfollowed: n.unfollowed}:
		return who + ", not followed"
	default:
		t.Errorf("counts as %+v", n)
	}
	return who
}

// counts are what the picker counts of the gateway, and of the first engine.
type counts struct{ retried, unfollowed, failures int64 }

// counter returns a function that returns what has been counted since before.
func (b *bench) counter(before picker.PoolStats) func() counts {
	return func() counts {
		now := b.picker.stats()
		g, was := gatewayStats(now), gatewayStats(before)
		return counts{g.Retried - was.Retried, g.Unfollowed - was.Unfollowed, now.Endpoints[0].Failures - before.Endpoints[0].Failures}
	}
}

// An engine that gives connections no answer, as one whose host has gone, is dead: gateways that retry hide it from clients,
// after their time limit for connections.
func TestAnEngineThatGivesConnectionsNoAnswerIsAvoided(t *testing.T) {
	g := best()
	g.connects = "0.05s"
	all := engines(t, 2, nil)
	hole := blackHole(t)
	addresses := append([]string{hole}, addresses(all)...)
	spec := pool(addresses...)
	spec.OrderedDestinations, spec.Policy.CircuitFailures, spec.Policy.CircuitOpen = true, 2, time.Hour
	r := startReplica(t, spec, settings{})
	client := start(t, []string{r.address}, addresses, g).client(t, g, http11)
	until(t, "the circuit of the engine opens", func() bool {
		ask(t, client, newRequest(false))
		return !r.stats().Endpoints[0].CircuitClosed
	})
	for _, ep := range r.stats().Endpoints[1:] {
		if ep.Failures != 0 {
			t.Errorf("%d failures of an engine that answers", ep.Failures)
		}
	}
	if s := gatewayStats(r.stats()); s.Unfollowed != 0 || s.Retried < 2 {
		t.Errorf("the gateway has retried: %+v", s)
	}
	r.idle(t)
}

// blackHole is an address at which a connection gets no answer: the queue of those that are not accepted is full.
func blackHole(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	for unanswered, n := 0, 0; n < 16; n++ {
		conn, err := net.DialTimeout("tcp", address, 2*time.Second)
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			unanswered = 0
			continue
		}
		if unanswered++; unanswered > 1 { // one can be due to a machine that stood still
			return address
		}
	}
	t.Fatal("a full queue of connections takes more")
	return ""
}
