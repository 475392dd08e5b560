package server

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/freeport"
	"github.com/kvasir-dev/kvasir/internal/reporter"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// freeAddress is one that no process listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	all, err := freeport.Addresses("127.0.0.1", 1)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// runReporter runs a reporter until the test ends, or until stop.
func runReporter(t *testing.T, c reporter.Config) (stop func()) {
	t.Helper()
	r, err := reporter.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return stop
}

// metric is the value of the first series whose line begins so; empty if there is none.
func (i *instance) metric(series string) string {
	i.t.Helper()
	_, text := i.get(i.listeners.metrics, "/metrics")
	m := regexp.MustCompile("(?m)^" + regexp.QuoteMeta(series) + `[^ ]* (\S+)$`).FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return m[1]
}

func TestAReporterTellsWhatItsEngineHolds(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret")
	put(t, secret, "0123456789abcdef\n")
	i := runOn(t, dir, "--report-address", "127.0.0.1:0", "--report-secret-file", secret, "--report-insecure")
	events, replay := freeAddress(t), freeAddress(t)
	c := reporter.Config{
		Pod: "default/pod-a", Listen: events, Replay: replay, Pickers: rpc.List(i.listeners.reports.Addr().String()),
		Dial: rpc.DialOptions{Token: rpc.SecretFile(secret), TokenInClear: true}, MaxBackoff: 50 * time.Millisecond,
	}
	stop := runReporter(t, c)
	var garble atomic.Bool
	e, err := vllmsim.Start(vllmsim.Config{
		ServedModelNames: []string{"m"}, SpeedUp: 1000,
		Events: vllmsim.EventsConfig{Endpoint: events, Connect: true, ReplayEndpoint: replay, Tamper: garbled(&garble)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	put(t, filepath.Join(dir, "pool.yaml"), strings.Replace(poolText("p", "m", ""), "spec: {", "spec: {engine: {events: {source: Reporter}}, ", 1))
	put(t, filepath.Join(dir, "pods.yaml"), fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: pod-a, labels: {kvasir.dev/pool: p}}
addressType: IPv4
ports: [{name: http, port: %s}]
endpoints:
- {addresses: [127.0.0.1], targetRef: {kind: Pod, name: pod-a}}
`, portOf(t, e.Addr())))
	i.awaitReady()
	long := strings.Repeat("many words in one prompt ", 40)
	ask := func() {
		t.Helper()
		status, body := i.do(http.MethodPost, url(i.listeners.proxy, "/v1/completions"), fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":2}`, long))
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
	}
	ask()
	i.eventually("the index holds what the engine holds", func() bool {
		return i.metric("kvasir_index_held_blocks{") == fmt.Sprint(len(e.Blocks())) && len(e.Blocks()) > 1
	})
	i.eventually("that is shown", func() bool { return i.metric("kvasir_index_divergent_blocks{") == "0" })
	i.eventually("the pool says so", func() bool {
		_, text := i.get(i.listeners.metrics, "/status")
		return strings.Contains(text, "type: EventsSynced") && strings.Contains(text, "1 of 1 endpoints") && !strings.Contains(text, "ReporterMissing")
	})

	// The engine speaks in another layout for a while.
	n := 0
	says := func(want bool) func() bool {
		return func() bool {
			n++
			i.do(http.MethodPost, url(i.listeners.proxy, "/v1/completions"), completionOf(n))
			_, text := i.get(i.listeners.metrics, "/status")
			return strings.Contains(text, "UnknownLayout") == want
		}
	}
	garble.Store(true)
	i.eventually("the pool says that the layout is not known", says(true))
	garble.Store(false)
	i.eventually("and that it is known again", says(false))
	stop()
	i.eventually("its absence shows", func() bool {
		_, text := i.get(i.listeners.metrics, "/status")
		return i.metric("kvasir_index_divergent_blocks{") == "" && strings.Contains(text, "ReporterMissing")
	})

	// A reporter with another secret is refused.
	wrong := filepath.Join(t.TempDir(), "secret")
	put(t, wrong, "fedcba9876543210\n")
	c.Dial.Token = rpc.SecretFile(wrong)
	stop = runReporter(t, c)
	i.eventually("it is refused", func() bool {
		return strings.Count(i.logs.String(), "the token is not the shared secret") >= 0 && i.metric("kvasir_report_state{") == "1"
	})
	stop()
}

func TestAReporterTakesOverFromASubscription(t *testing.T) {
	dir := t.TempDir()
	i := runOn(t, dir, "--report-address", "127.0.0.1:0", "--report-insecure")
	e := engine(t, "m")
	put(t, filepath.Join(dir, "pool.yaml"), poolText("p", "m", ""))
	put(t, filepath.Join(dir, "pods.yaml"), sliceText(t, "p", "pod-a", e))
	i.awaitReady()
	if status, body := i.complete("m"); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	i.eventually("the picker subscribes", func() bool { return i.metric("kvasir_events_state{") == "1" && e.Subscribers() == 1 })
	runReporter(t, reporter.Config{
		Pod: "default/pod-a", Subscribe: e.EventsAddr(), Replay: e.ReplayAddr(), Pickers: rpc.List(i.listeners.reports.Addr().String()),
	})
	i.eventually("only the reporter does", func() bool { return i.metric("kvasir_events_state{") == "" && e.Subscribers() == 1 })
	i.eventually("and shows that it is right", func() bool { return i.metric("kvasir_index_divergent_blocks{") == "0" })
}

func TestFlagsAboutReportersAreChecked(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"two ways to know reporters":   {[]string{"--report-secret-file", "s", "--report-keys", "k"}, "exclude each other"},
		"a certificate without a key":  {[]string{"--report-cert", "c"}, "--report-cert and --report-key need each other"},
		"no certificate":               {[]string{"--report-secret-file", "s"}, "--report-cert"},
		"tokens without TLS":           {[]string{"--report-keys", "k", "--report-issuer", "i", "--report-insecure"}, "excludes"},
		"keys of no known issuer":      {[]string{"--report-keys", "k", "--report-cert", "c", "--report-key", "k"}, "--report-issuer"},
		"a certificate for plain text": {[]string{"--report-cert", "c", "--report-insecure"}, "excludes"},
	} {
		t.Run(name, func(t *testing.T) {
			var text buffer
			if _, err := parse(append([]string{"--standalone", "d"}, tc.args...), &text, &text); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}
