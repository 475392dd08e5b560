package server

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/reporter"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// runPeers runs pickers on a directory that know each other.
func runPeers(t *testing.T, n int, dir string, args ...string) []*instance {
	t.Helper()
	args = append([]string{"--report-address", "127.0.0.1:0", "--report-insecure", "--peers", "127.0.0.1:1"}, args...)
	var all []*instance
	var flags []*options
	var addrs []string
	for range n {
		i, o := listenOn(t, dir, args...)
		all, flags = append(all, i), append(flags, o)
		addrs = append(addrs, i.listeners.reports.Addr().String())
	}
	for k, i := range all {
		flags[k].peers.addresses = addrs
		i.run(flags[k])
	}
	return all
}

const (
	inflight     = `kvasir_endpoint_inflight_requests{endpoint="pod/0",namespace="default",pool="m"}`
	peerInflight = `kvasir_endpoint_peer_inflight_requests{endpoint="pod/0",namespace="default",pool="m"}`
)

// TestPickersTellEachOther runs three pickers. What one sends to the pod the others count, until it ends.
func TestPickersTellEachOther(t *testing.T) {
	dir, e := t.TempDir(), engine(t, "m")
	key := filepath.Join(t.TempDir(), "key")
	put(t, key, strings.Repeat("k", 32))
	put(t, filepath.Join(dir, "all.yaml"), poolText("m", "m", "")+"---\n"+sliceText(t, "m", "pod", e))
	all := runPeers(t, 3, dir, "--key-file", key)
	for _, i := range all {
		i.awaitReady()
		i.eventually("it hears two others", func() bool {
			return i.metric("kvasir_peers_heard") == "2" && i.metric("kvasir_peers_told") == "2"
		})
	}
	e.Pause()
	var asking sync.WaitGroup
	for _, i := range all[:2] {
		for range 3 {
			asking.Go(func() { // as streams: what other requests are assumed to hold ends after a time
				prompt := strings.Repeat("1,", 99) + "1"
				i.do(http.MethodPost, url(i.listeners.proxy, "/v1/completions"), `{"model":"m","prompt":[`+prompt+`],"max_tokens":1,"stream":true}`)
			})
		}
	}
	for n, want := range []string{"3", "3", "6"} {
		i := all[n]
		i.eventually("the others' requests are counted", func() bool { return i.metric(peerInflight) == want })
	}
	last := all[2]
	last.eventually("what the others have sent is assumed to be held", func() bool {
		return last.metric("kvasir_peer_guesses") == "6" && last.metric("kvasir_index_speculative_blocks") == "6" // of 100 tokens
	})
	if n := last.metric(inflight); n != "0" {
		t.Errorf("the third picker itself has %s requests there", n)
	}
	// One of them goes, and takes leave, once its requests have ended. Nothing remains of the other's either.
	e.Resume()
	asking.Wait()
	all[0].stop()
	<-all[0].done
	for _, i := range all[1:] {
		i.eventually("nothing is left", func() bool {
			return i.metric(peerInflight) == "0" && i.metric("kvasir_peer_guesses") == "0" && i.metric("kvasir_peers_heard") == "1"
		})
	}
}

// A picker that starts beside others knows their requests when it is ready.
func TestAPickerIsReadyWhenItHearsTheOthers(t *testing.T) {
	dir, e := t.TempDir(), engine(t, "m")
	put(t, filepath.Join(dir, "all.yaml"), poolText("m", "m", "")+"---\n"+sliceText(t, "m", "pod", e))
	args := []string{"--report-address", "127.0.0.1:0", "--report-insecure", "--peers", "127.0.0.1:1"}
	first, flags := listenOn(t, dir, args...)
	second, more := listenOn(t, dir, args...)
	addrs := []string{first.listeners.reports.Addr().String(), second.listeners.reports.Addr().String()}
	flags.peers.addresses, more.peers.addresses = addrs, addrs
	first.run(flags)
	first.awaitReady() // the other accepts connections but never answers: waiting for it ends without a result
	e.Pause()
	var asking sync.WaitGroup
	defer asking.Wait()
	defer e.Resume()
	asking.Go(func() {
		first.do(http.MethodPost, url(first.listeners.proxy, "/v1/completions"), `{"model":"m","prompt":[1,2],"max_tokens":1}`)
	})
	first.eventually("a request is under way", func() bool { return first.metric(inflight) == "1" })
	second.run(more)
	second.awaitReady()
	// What the first sent before the second knew its endpoints is sent again with the next full update, half a second
	// later.
	second.eventually("the second picker knows of the first's request", func() bool { return second.metric(peerInflight) == "1" })
}

// Pickers with other keys count each other's requests, and assume nothing.
func TestPickersOfOtherKeysShareCountersOnly(t *testing.T) {
	dir, e := t.TempDir(), engine(t, "m")
	put(t, filepath.Join(dir, "all.yaml"), poolText("m", "m", "")+"---\n"+sliceText(t, "m", "pod", e))
	all := runPeers(t, 2, dir) // each with a random root
	for _, i := range all {
		i.awaitReady()
		i.eventually("it hears the other", func() bool { return i.metric("kvasir_peers_heard") == "1" && i.metric("kvasir_peers_told") == "1" })
	}
	e.Pause()
	var asking sync.WaitGroup
	asking.Go(func() {
		all[0].do(http.MethodPost, url(all[0].listeners.proxy, "/v1/completions"), `{"model":"m","prompt":[`+strings.Repeat("1,", 99)+`1],"max_tokens":1}`)
	})
	i := all[1]
	i.eventually("the other's request is counted", func() bool { return i.metric(peerInflight) == "1" })
	i.eventually("what it assumes is not taken", func() bool { return i.metric(`kvasir_peer_assumptions_total{outcome="other_keys"}`) == "1" })
	if n := i.metric("kvasir_index_speculative_blocks"); n != "0" {
		t.Errorf("%s blocks are assumed", n)
	}
	e.Resume()
	asking.Wait()
	i.eventually("nothing is left", func() bool { return i.metric(peerInflight) == "0" })
}

func TestFlagsOfPeersAreChecked(t *testing.T) {
	tls := []string{"--report-cert", "c", "--report-key", "k"}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"two ways to find them":            {[]string{"--peers", "a:1", "--peers-service", "b:1", "--report-insecure"}, "exclude each other"},
		"no port":                          {[]string{"--peers", "a", "--report-insecure"}, "--peers"},
		"a secret without a peers service": {[]string{"--peers-secret-file", "s"}, "need --peers-service"},
		"no way to know them":              {[]string{"--peers", "a:1"}, "--report-insecure"},
		"no name":                          {append([]string{"--peers", "a:1", "--peers-ca", "ca"}, tls...), "--peers-name"},
		"certificates in plain text":       {[]string{"--peers", "a:1", "--peers-ca", "ca", "--report-insecure"}, "excludes"},
		"two authorities":                  {append([]string{"--peers", "a:1", "--peers-ca", "ca", "--peers-name", "n", "--report-client-ca", "other"}, tls...), "the same file"},
		"no address to listen on":          {[]string{"--peers", "a:1", "--report-insecure", "--report-address", ""}, "--report-address"},
		"too many":                         {[]string{"--peers", strings.Repeat("a:1,", 66), "--report-insecure"}, "at most"},
		"good, in plain text":              {[]string{"--peers", "a:1, b:1", "--report-insecure"}, ""},
		"good, with a secret":              {[]string{"--peers", "a:1", "--report-insecure", "--peers-secret-file", "s"}, ""},
		"good, with certificates":          {append([]string{"--peers-service", "a:1", "--peers-ca", "ca", "--peers-name", "n"}, tls...), ""},
		"good, with one CA for both":       {append([]string{"--peers-service", "a:1", "--peers-ca", "ca", "--peers-name", "n", "--report-client-ca", "ca"}, tls...), ""},
		"good, with a secret and TLS":      {append([]string{"--peers-service", "a:1", "--peers-ca", "ca", "--peers-name", "n", "--peers-secret-file", "s"}, tls...), ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(append([]string{"--standalone", "x"}, tc.args...), io.Discard, io.Discard)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// TestANewPickerBorrowsWhatAPodHolds starts a second picker that the pod's reporter does not know. The second picker soon
// has what the first one received, unverified, and has none of it once the engine has restarted.
func TestANewPickerBorrowsWhatAPodHolds(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(t.TempDir(), "key")
	put(t, key, strings.Repeat("k", 32))
	args := []string{"--report-address", "127.0.0.1:0", "--report-insecure", "--peers", "127.0.0.1:1", "--key-file", key}
	first, flags := listenOn(t, dir, args...)
	addrs := []string{first.listeners.reports.Addr().String()}
	flags.peers.addresses = addrs
	first.run(flags)

	events, replay := freeAddress(t), freeAddress(t)
	stop := runReporter(t, reporter.Config{
		Pod: "default/pod", Listen: events, Replay: replay, Pickers: rpc.List(addrs...), MaxBackoff: 50 * time.Millisecond,
	})
	e, err := vllmsim.Start(vllmsim.Config{
		ServedModelNames: []string{"m"}, SpeedUp: 1000,
		Events: vllmsim.EventsConfig{Endpoint: events, Connect: true, ReplayEndpoint: replay},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	put(t, filepath.Join(dir, "pool.yaml"), strings.Replace(poolText("m", "m", ""), "spec: {", "spec: {engine: {events: {source: Reporter}}, ", 1))
	put(t, filepath.Join(dir, "pods.yaml"), fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: pod, labels: {kvasir.dev/pool: m}}
addressType: IPv4
ports: [{name: http, port: %s}]
endpoints:
- {addresses: [127.0.0.1], targetRef: {kind: Pod, name: pod}}
`, portOf(t, e.Addr())))
	first.awaitReady()
	if status, body := first.do(http.MethodPost, url(first.listeners.proxy, "/v1/completions"),
		`{"model":"m","prompt":[`+strings.Repeat("7,", 999)+`7],"max_tokens":2}`); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	held := func(i *instance) string { return i.metric("kvasir_index_held_blocks{") }
	first.eventually("it knows what the engine holds", func() bool {
		return held(first) == fmt.Sprint(len(e.Blocks())) && len(e.Blocks()) > 1 && first.metric("kvasir_index_divergent_blocks{") == "0"
	})

	second, more := listenOn(t, dir, args...)
	more.peers.addresses = []string{addrs[0], second.listeners.reports.Addr().String()}
	second.run(more)
	second.eventually("it has borrowed that", func() bool { return held(second) == held(first) && second.metric("kvasir_report_borrowed{") == "1" })
	if d := second.metric("kvasir_index_divergent_blocks{"); d != "" {
		t.Errorf("%q blocks diverge; nothing is known of that", d)
	}
	if _, status := second.get(second.listeners.metrics, "/status"); !strings.Contains(status, "degraded: 1") || !strings.Contains(status, "synced: 0") {
		t.Errorf("the status does not say that it is not synced:\n%s", status)
	}
	stop()
	second.eventually("it is given back when no reporter vouches for it", func() bool { return held(second) == "0" && second.metric("kvasir_report_borrowed{") == "0" })
	if n := held(first); n == "0" {
		t.Error("the first picker has forgotten it, too")
	}
}
