package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// newPair starts two pickers, each a process of its own, in front of the same engines. They exchange updates.
func newPair(t *testing.T, n int, config vllmsim.Config, strategy string) (first, second *fleet) {
	t.Helper()
	key, secret := filepath.Join(t.TempDir(), "key"), filepath.Join(t.TempDir(), "secret")
	for path, text := range map[string]string{key: strings.Repeat("k", 32), secret: strings.Repeat("s", 16)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	addrs := []string{freeAddress(t), freeAddress(t)}
	args := func(i int) []string {
		return []string{"--key-file", key, "--report-address", addrs[i], "--report-insecure",
			"--peers", strings.Join(addrs, ","), "--peers-secret-file", secret}
	}
	first = newFleetWith(t, n, config, strategy, func(f *fleet) { f.args = args(0) })
	second = &fleet{t: t, dir: first.dir, config: first.config, engines: first.engines, client: first.client, args: args(1)}
	second.startPicker()
	for _, f := range []*fleet{first, second} {
		f.until("the other picker is connected", f.seesOnePeer)
	}
	return first, second
}

func (f *fleet) seesOnePeer() bool {
	return f.metric("kvasir_peers_heard") == 1 && f.metric("kvasir_peers_told") == 1
}

// peerInFlight is what the picker counts of other pickers' requests.
func (f *fleet) peerInFlight() float64 {
	f.t.Helper()
	return f.metric("kvasir_endpoint_peer_inflight_requests")
}

// load sends completions through a picker until stop, several at a time. It counts those that were answered in full.
func (f *fleet) load(ctx context.Context, sending *sync.WaitGroup, family int) (answered *atomic.Int64) {
	answered = &atomic.Int64{}
	for worker := range 6 {
		sending.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				finish, err := f.start(ctx, "/v1/completions", completion(tokens(family+worker*100+n%50, 480), 24))
				if err != nil {
					time.Sleep(5 * time.Millisecond) // the picker is gone, or the test
					continue
				}
				if a := finish(); a.status == http.StatusOK && strings.Contains(a.body, "[DONE]") {
					answered.Add(1)
				}
			}
		})
	}
	return answered
}

// TestAPickerIsKilledUnderLoad kills one of two pickers with all its requests. The other, under load itself, has forgotten
// them soon after; when its own requests have ended it counts nothing. It accepts a restarted picker again.
func TestAPickerIsKilledUnderLoad(t *testing.T) {
	first, second := newPair(t, 3, vllmsim.Config{SpeedUp: 4}, "MarginalCost")
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	lifetime, end := context.WithCancel(ctx) // of the picker that is killed
	defer end()
	var dying, sending sync.WaitGroup
	first.load(lifetime, &dying, 1000)
	answered := second.load(ctx, &sending, 5000)
	for _, f := range []*fleet{first, second} {
		f.until("it counts what the other has sent", func() bool { return f.peerInFlight() > 0 && f.inFlight(-1) > 0 })
	}
	if n := second.metric("kvasir_peer_assumptions_total", `outcome="taken"`); n == 0 {
		t.Error("nothing was assumed for the other picker")
	}

	if err := first.picker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	second.until("the dead picker's requests are forgotten", func() bool {
		return second.peerInFlight() == 0 && second.metric("kvasir_peer_guesses") == 0
	})
	t.Logf("the counters of the dead picker were gone after %v", time.Since(killed).Round(10*time.Millisecond))
	if since := time.Since(killed); since > 10*time.Second {
		t.Errorf("that took %v", since)
	}
	before := answered.Load()
	second.until("the other goes on", func() bool { return answered.Load() > before+20 })

	// The killed one restarts under the same address, while the other still works.
	end()
	dying.Wait()
	first.startPicker()
	first.load(ctx, &sending, 1000)
	for _, f := range []*fleet{first, second} {
		f.until("the other picker is connected again", f.seesOnePeer)
	}
	first.until("it counts what the other has sent", func() bool { return first.peerInFlight() > 0 })
	stop()
	sending.Wait()
	for _, f := range []*fleet{first, second} {
		f.until("nothing is left", func() bool {
			return f.inFlight(-1) == 0 && f.peerInFlight() == 0 && f.metric("kvasir_endpoint_pending_tokens") == 0 &&
				f.metric("kvasir_endpoint_peer_pending_tokens") == 0 && f.metric("kvasir_peer_guesses") == 0 &&
				f.metric("kvasir_index_speculative_blocks") == 0
		})
	}
}

// TestPickersSpeculateForEachOther: requests with one new prefix go to one pod, through whichever picker, though the pod has
// not announced it yet.
func TestPickersSpeculateForEachOther(t *testing.T) {
	first, second := newPair(t, 4, vllmsim.Config{SpeedUp: 20}, "StickyLeastLoaded")
	for _, e := range first.engines {
		e.Pause()
	}
	prompt := tokens(1, 320)
	_, result := first.background("/v1/completions", completion(prompt, 1))
	second.until("it assumes what the other has sent", func() bool { return second.metric("kvasir_index_speculative_blocks") == 20 })
	_, more := second.background("/v1/completions", completion(prompt, 1))
	second.until("the same prompt is under way", func() bool { return second.inFlight(-1) == 1 })
	for _, e := range first.engines {
		e.Resume()
	}
	a, b := <-result, <-more
	if a.status != http.StatusOK || b.status != http.StatusOK || a.pod != b.pod || b.predicted != 304 || b.confirmed != 0 {
		t.Errorf("pods %d and %d, the second predicted %d tokens, %d of them confirmed", a.pod, b.pod, b.predicted, b.confirmed)
	}
}

// turns sends requests to pickers in turns, as a Service does.
type turns struct {
	t    *testing.T
	url  string
	next atomic.Uint64
}

func inTurns(t *testing.T, pickers ...*fleet) *turns {
	t.Helper()
	x := &turns{t: t}
	front := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		to, err := url.Parse(pickers[x.next.Add(1)%uint64(len(pickers))].proxy)
		if err != nil {
			t.Error(err)
			return
		}
		r.SetURL(to)
	}})
	t.Cleanup(front.Close)
	x.url = front.URL
	return x
}

// session sends a completion of a session, and returns the pod that has served it.
func (x *turns) session(name string, body any) (pod int) {
	x.t.Helper()
	payload, err := json.Marshal(body)
	if err != nil {
		x.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(x.t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, x.url+"/v1/completions", bytes.NewReader(payload))
	if err != nil {
		x.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Session-Id", name)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		x.t.Fatal(err)
	}
	a := readAnswer(resp)
	if a.status != http.StatusOK || a.pod < 0 {
		x.t.Fatalf("%s: status %d, pod %d: %s", name, a.status, a.pod, a.body)
	}
	return a.pod
}

// moved is how many turns of sessions, from one on, went to another pod than the session's first turn, which is entered into at.
func (x *turns) moved(sessions, from, turns int, at map[string]int, body func(session, turn int) any) (n int) {
	x.t.Helper()
	for turn := from; turn < from+turns; turn++ {
		for i := range sessions {
			name := fmt.Sprint("session-", i)
			pod := x.session(name, body(i, turn))
			if home, known := at[name]; known && home != pod {
				n++
			} else {
				at[name] = pod
			}
			time.Sleep(50 * time.Millisecond) // a home takes one millisecond, and at most 5 more where the machine is not busy
		}
	}
	return n
}

// TestASessionStaysOnItsPodBehindTwoPickers, whichever of them its requests meet, also after one of them was killed and has started again.
// Under ApproximatePrefix texts go to the pod that has them, too. Pickers that do not exchange move sessions.
func TestASessionStaysOnItsPodBehindTwoPickers(t *testing.T) {
	const pods, sessions, each = 5, 7, 4 // an odd number of sessions: each meets both pickers in turns
	// Equal prompts would go to the same pod without any memory, by the strategies' last tie-break.
	fresh := func(session, turn int) any { return completion(tokens(1+session+100*turn, 64), 1) }
	grown := func(session, turn int) any {
		text := strings.Repeat(fmt.Sprintf("text of session %d; ", session), 50*(turn+1))
		return map[string]any{"model": "m", "prompt": text, "max_tokens": 1, "stream": true}
	}
	for strategy, body := range map[string]func(session, turn int) any{"Sticky": fresh, "ApproximatePrefix": grown} {
		t.Run(strategy, func(t *testing.T) {
			first, second := newPair(t, pods, vllmsim.Config{SpeedUp: 50}, strategy)
			front, at := inTurns(t, first, second), map[string]int{}
			if n := front.moved(sessions, 0, each, at, body); n > 0 {
				t.Errorf("%d turns of %d went to another pod", n, sessions*each)
			}
			if err := first.picker.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			<-first.exited
			first.startPicker()
			if n := inTurns(t, first).moved(sessions, each, 1, at, body); n > 0 {
				t.Errorf("%d turns of %d went to another pod after a picker has started again", n, sessions)
			}
		})
	}
	alone := newFleet(t, pods, vllmsim.Config{SpeedUp: 50}, "Sticky")
	other := &fleet{t: t, dir: alone.dir, config: alone.config, engines: alone.engines, client: alone.client}
	other.startPicker()
	// Each picker chooses a home by keys of its own, and two homes are the same one time in five: all of 21, once in 10^14 runs.
	if n := inTurns(t, alone, other).moved(3*sessions, 0, 2, map[string]int{}, fresh); n == 0 {
		t.Error("without the exchange no session has moved: this shows no use")
	}
}
