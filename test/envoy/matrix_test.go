package envoy

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// verdict is what a way to configure Envoy makes of requests.
type verdict struct {
	routed  string // by the prompt, or by load alone
	answers string // streamed, or held back until they are complete
	tokens  string // of answers: counted by the picker or not
	told    string // whether the picker learns which endpoint has served
}

func (v verdict) String() string {
	return strings.Join([]string{v.routed, v.answers, v.tokens, v.told}, ", ")
}

// bench is one Envoy before two engines and a picker.
type bench struct {
	*proxy
	picker  *replica
	engines []*engine
}

func newBench(t *testing.T, all ...gateway) *bench {
	t.Helper()
	b := &bench{engines: engines(t, 2, func(c *vllmsim.Config) { c.SpeedUp = 10 })}
	b.picker = startReplica(t, pool(addresses(b.engines)...), settings{})
	b.proxy = start(t, []string{b.picker.address}, addresses(b.engines), all...)
	return b
}

// observe sends requests through a gateway and judges what became of them. Each must go where it was picked for, and
// must be accounted for as completed.
func (b *bench) observe(t *testing.T, g gateway, version string) verdict {
	t.Helper()
	client := b.client(t, g, version)
	before, after := b.picker.stats(), b.picker.ledger.len()
	plain, stream := newRequest(false), newRequest(true)
	ask(t, client, plain)

	stream.output = heldTokens
	h := newHold(patience)
	if g.response == buffered {
		h.most = heldAnswer
	}
	for _, e := range b.engines {
		e.hold(stream.id(), h)
	}
	if a := do(client, stream, func() { close(h.arrived) }); !a.whole(true) {
		t.Fatalf("stream: %v", a)
	}
	v := verdict{routed: "load", answers: "held back", tokens: "not counted", told: "not told"}
	if <-h.inTime {
		v.answers = "streamed"
	}
	entries := b.picker.ledger.waitFor(t, after, 2)
	counted, prompts := 0, 0
	for i, r := range []request{plain, stream} {
		e := entries[i]
		if served := servedBy(b.engines, r.id()); served != e.picked || e.served != e.picked {
			t.Errorf("request %s was picked for %s and served by %s (%s by the account)", r.id(), e.picked, served, e.served)
		}
		if e.outcome != picker.Completed {
			t.Errorf("request %s, stream %v: counts as %v", r.id(), r.stream, e.outcome)
		}
		if e.byPrompt {
			prompts++
		}
		if e.told.Prompt == r.tokens {
			counted++
		}
	}
	if prompts == 2 {
		v.routed = "prompt"
	}
	if counted == 2 {
		v.tokens = "counted"
	}
	now := b.picker.stats()
	if told := gatewayStats(now).Reported - gatewayStats(before).Reported; told == 2 {
		v.told = "told"
	}
	if held := gatewayStats(now).Buffered - gatewayStats(before).Buffered; (held > 0) != (v.answers == "held back") {
		t.Errorf("answers are %s, and %d count as held back", v.answers, held)
	}
	if n := gatewayStats(now).Unfollowed - gatewayStats(before).Unfollowed; n != 0 {
		t.Errorf("%d picks count as not followed", n)
	}
	return v
}

// gatewayStats are those of the one gateway there is.
func gatewayStats(s picker.PoolStats) picker.GatewayStats {
	if len(s.Gateways) == 0 {
		return picker.GatewayStats{}
	}
	return s.Gateways[0]
}

// TestEveryModeIsRoutedAndAccountedFor sends requests through each combination of body modes and ways to the destination.
// Its table is part of docs/gateways.md.
//
// Where the destination is found makes no difference but in what the picker learns of the endpoint that served.
func TestEveryModeIsRoutedAndAccountedFor(t *testing.T) {
	const destinations = 4
	all := cells()
	b := newBench(t, all...)
	seen := map[string]verdict{}
	for _, g := range all {
		for _, version := range []string{http11, http2} {
			t.Run(g.name+"-"+version, func(t *testing.T) {
				v := b.observe(t, g, version)
				if first, ok := seen[g.name]; ok && v != first {
					t.Errorf("with %s: %v; before: %v", version, v, first)
				}
				seen[g.name] = v
			})
		}
	}
	b.picker.idle(t)
	if n := b.stat(t, "cluster."+all[0].pickersName()+".health_check.failure"); n != 0 {
		t.Errorf("%d health checks of the picker have failed", n)
	}
	if t.Failed() {
		return
	}
	text := "| body | answer | requests go by | answers | tokens of answers | endpoint that served |\n|---|---|---|---|---|---|\n"
	for i := 0; i < len(all); i += destinations {
		var told []string
		v := seen[all[i].name]
		for _, g := range all[i : i+destinations] {
			w := seen[g.name]
			if w.told == "told" {
				told = append(told, "`"+g.destination+"`")
			}
			if w.told = v.told; w != v {
				t.Errorf("%s: %v, %s: %v", all[i].name, v, g.name, w)
			}
		}
		text += fmt.Sprintf("| `%s` | `%s` | %s | %s | %s | told by %s |\n", all[i].request, all[i].response, v.routed, v.answers, v.tokens,
			strings.Join(told, ", "))
	}
	inDocs(t, "modes", text)
}

// TestGatewaysAreServed configures Envoy as the translators of gateways do. Its table is part of docs/gateways.md.
func TestGatewaysAreServed(t *testing.T) {
	b := newBench(t, gateways...)
	waits := heldRequests(t)
	text := "| gateway | body, answer | destination | requests go by | answers | tokens | endpoint that served | a dead endpoint | waits |\n" +
		"|---|---|---|---|---|---|---|---|---|\n"
	for _, g := range gateways {
		t.Run(g.name, func(t *testing.T) {
			v := b.observe(t, g, http11)
			if second := b.observe(t, g, http2); second != v {
				t.Errorf("with HTTP/2: %v, with HTTP/1.1: %v", second, v)
			}
			b.checkEdges(t, g)
			text += fmt.Sprintf("| %s | `%s` | `%s` | %s | %s | %s | %s | %s | %s |\n", g.name, g.request, g.destination,
				v.routed, v.answers, v.tokens, v.told, deadEndpoint(t, g), waits[g.name])
		})
	}
	b.picker.idle(t)
	if !t.Failed() {
		inDocs(t, "gateways", text)
	}
}

// checkEdges sends what is not an ordinary request: a long body in pieces, one without a body, and one that the picker
// refuses.
func (b *bench) checkEdges(t *testing.T, g gateway) {
	t.Helper()
	for _, version := range []string{http11, http2} {
		client := b.client(t, g, version)
		long := newRequest(true)
		long.pad = 300_000
		q, err := http.NewRequest(http.MethodPost, "http://envoy/v1/completions", pieces{strings.NewReader(long.body())})
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set(idHeader, long.id())
		if a := send(client, q, nil); !a.whole(true) {
			t.Errorf("%s, a long body: %v", version, a)
		}
		q, err = http.NewRequest(http.MethodGet, "http://envoy/v1/models", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if a := send(client, q, nil); a.status != http.StatusOK || !strings.Contains(a.body, `"m"`) {
			t.Errorf("%s, no body: %v", version, a)
		}
		unknown := newRequest(false)
		unknown.model = "other"
		if a := do(client, unknown, nil); a.status != http.StatusNotFound || !strings.Contains(a.body, `"error"`) {
			t.Errorf("%s, an unknown model: %v", version, a)
		}
	}
}

// pieces hides how long a reader is, so that the body is sent in chunks.
type pieces struct{ *strings.Reader }

// Len is not that of the reader: net/http looks for the type.
func (pieces) Len() {}

// deadEndpoint finds out what becomes of a request that is picked for an endpoint that refuses connections.
func deadEndpoint(t *testing.T, g gateway) string {
	t.Helper()
	live := engines(t, 2, nil)
	dead := engines(t, 1, nil)[0]
	dead.kill()
	all := append([]string{dead.address()}, addresses(live)...)
	spec := pool(all...)
	spec.OrderedDestinations = g.lists
	r := startReplica(t, spec, settings{})
	client := start(t, []string{r.address}, all, g).client(t, g, http11)
	for range len(all) {
		before, after := r.stats(), r.ledger.len()
		q := newRequest(false)
		a := do(client, q, nil)
		e := r.ledger.waitFor(t, after, 1)[0]
		if e.picked != dead.address() {
			continue
		}
		told := gatewayStats(r.stats()).Reported - gatewayStats(before).Reported
		switch {
		case !a.whole(false):
			if e.outcome != picker.Failed {
				t.Errorf("a request that failed counts as %v", e.outcome)
			}
			return fmt.Sprint(a.status)
		case told == 0:
			return "another pod, not told"
		}
		until(t, "the request counts as retried", func() bool { return gatewayStats(r.stats()).Retried > gatewayStats(before).Retried })
		if failures := r.stats().Endpoints[0].Failures; failures != 1 || e.served != servedBy(live, q.id()) {
			t.Errorf("%d failures of the dead endpoint count; served by %s, %s by the account", failures, servedBy(live, q.id()), e.served)
		}
		if g.lists {
			return "next of the list"
		}
		return "another pod"
	}
	t.Errorf("%s: no request was picked for the dead endpoint", g.name)
	return ""
}

// heldFor is how long requests of a pool that no endpoint serves are held in the test: longer than any time limit that a
// translator sets on the way.
const heldFor = 11 * time.Second

// heldRequests finds out whether requests that wait for a first endpoint are answered in the end, by gateway.
func heldRequests(t *testing.T) map[string]string {
	t.Helper()
	all := engines(t, 1, nil)
	loading := pool(addresses(all)...)
	loading.Endpoints[0].Ready = false
	r := startReplica(t, loading, settings{})
	p := start(t, []string{r.address}, addresses(all), gateways...)
	answers := make(chan [2]string)
	for _, g := range gateways {
		q, client := newRequest(false), p.client(t, g, http11)
		go func() {
			a := do(client, q, nil)
			what := fmt.Sprint(a.status)
			if a.whole(false) {
				what = "answered"
			}
			answers <- [2]string{g.name, what}
		}()
	}
	until(t, "all requests are held", func() bool { return r.stats().Admission.Waiting == len(gateways) })
	begin := time.Now()
	until(t, "every time limit has passed", func() bool { return time.Since(begin) > heldFor })
	r.apply(t, pool(addresses(all)...))
	waits := map[string]string{}
	for range gateways {
		one := <-answers
		waits[one[0]] = one[1]
	}
	return waits
}

const page = "../../docs/gateways.md"

// inDocs compares a table of the docs with what was seen, or writes it with -update.
func inDocs(t *testing.T, name, want string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := fmt.Sprintf("<!-- %s: written by `go test ./test/envoy -update` -->\n\n", name), fmt.Sprintf("\n<!-- end of %s -->", name)
	head, rest, ok := strings.Cut(string(text), begin)
	table, tail, ok2 := strings.Cut(rest, end)
	switch {
	case !ok || !ok2:
		t.Fatalf("%s has no place for the table %q", page, name)
	case table == want:
	case *update:
		if err := os.WriteFile(page, []byte(head+begin+want+end+tail), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the table %q in %s is not current; go test ./test/envoy -update writes it:\n%s", name, page, want)
	}
}
