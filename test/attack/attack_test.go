// Package attack tests the memory law: however hostile clients are, the picker stays within the memory of its container,
// serves those that behave, and has everything back afterwards.
package attack

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvasir-dev/kvasir/test/envoytest"
)

var (
	attackFor = flag.Duration("attack", 0, "`duration` of the attack at each size of memory; 0 skips it")
	times     = flag.Bool("attack.times", true, "also compare times with those of a picker that is not attacked")
	program   = flag.String("picker", "", "`file` of the picker to attack; built if empty")
)

func TestMain(m *testing.M) {
	if text := os.Getenv(attackEnv); text != "" {
		if err := attack(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const (
	// workers is how many well-behaved clients send requests on each road, one after the other.
	workers = 8
	// mostSlower bounds the time of the slowest answers under attack, in those of other times.
	mostSlower = 2
	// leastShare of the requests per second of other times, and leastServed of the requests, are answered under attack.
	leastShare, leastServed = 1.0 / mostSlower, 0.99
	// rounds is how often the two are compared at most: other programs of the machine disturb a round, but not all.
	rounds = 3
	// mostUsed of the container's memory is ever used.
	mostUsed = 0.97
)

// TestTheMemoryLaw lets hostile clients at a picker at once: every kind, and headerFloods alone, which other kinds would keep from the
// connections that they need.
func TestTheMemoryLaw(t *testing.T) {
	if *attackFor == 0 {
		t.Skip("NOT RUN: -attack is not set (make attack)")
	}
	binary := *program
	if binary == "" {
		binary = filepath.Join(t.TempDir(), "picker")
		if out, err := exec.Command("go", "build", "-o", binary, "github.com/kvasir-dev/kvasir/cmd/picker").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	for _, limit := range []int64{512 << 20, 1 << 30, 2 << 30} {
		t.Run(fmt.Sprintf("%d MiB", limit>>20), func(t *testing.T) { theLaw(t, binary, limit) })
		t.Run(fmt.Sprintf("%d MiB, floods of headers", limit>>20), func(t *testing.T) {
			if os.Getenv(kindsEnv) == "" {
				t.Setenv(kindsEnv, strings.Join(headerFloods, "; "))
			}
			theLaw(t, binary, limit)
		})
	}
}

// theLaw compares what well-behaved clients get of the picker that is attacked with what they get of it while another picker is: so
// the machine is as busy in both cases.
func theLaw(t *testing.T, binary string, limit int64) {
	v := startVictim(t, binary, limit)
	other := v
	if *times {
		other = startVictim(t, binary, limit)
	}
	gate, err := envoytest.New(envoytest.Options{Pickers: []string{v.at.ExtProc}, Seed: 1,
		Dial: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}})
	if err != nil {
		t.Fatal(err)
	}
	gateway := httptest.NewServer(gate)
	t.Cleanup(func() { gateway.Close(); gate.Close() })
	roads := map[string]string{"the proxy": "http://" + v.at.Proxy, "ext_proc": gateway.URL}

	measure(t, roads, time.Second) // warm
	v.remember(limit)
	before := v.settled(nil)
	var wrong []string
	for round := 0; round == 0 || wrong != nil && round < rounds; round++ {
		quiet := map[string]*result{}
		if *times {
			stop := other.attackers()
			quiet = measure(t, roads, min(*attackFor, time.Minute))
			stop()
		}
		stop := v.attackers()
		attacked := measure(t, roads, *attackFor)
		t.Logf("acts of hostile clients:\n%s", stop())
		wrong = nil
		for road := range roads {
			if slower := judge(t, road, quiet[road], attacked[road]); slower != "" {
				wrong = append(wrong, slower)
			}
		}
	}
	if wrong != nil {
		t.Errorf("in each of %d rounds, of the last: %s", rounds, strings.Join(wrong, "; "))
	}
	after := v.settled(&before)

	peak := v.group.peak()
	t.Logf("memory: peak %d MiB of %d; heap %.0f MiB before, %.0f after; goroutines %.0f and %.0f; descriptors %.0f and %.0f", peak>>20,
		limit>>20, before.heap/(1<<20), after.heap/(1<<20), before.goroutines, after.goroutines, before.descriptors, after.descriptors)
	if killed := v.group.killed(); killed > 0 || float64(peak) > mostUsed*float64(limit) {
		t.Errorf("%d bytes of %d were used, %d processes were killed", peak, limit, killed)
	}
}

// judge checks what the clients of a road got under attack, and compares it with what they got at a quiet time, unless that is nil. It
// returns what was too slow.
func judge(t *testing.T, road string, q, a *result) (slower string) {
	t.Helper()
	if a.served() < leastServed {
		t.Errorf("%s: failures under attack, of %d: %s", road, a.all(), first(a.failures))
	}
	if q == nil {
		t.Logf("%s: the slowest take %v under attack; %d of %d failed", road, a.tail(), len(a.failures), a.all())
		return ""
	}
	if q.served() < 1 {
		t.Errorf("%s: failures: %s", road, first(q.failures))
	}
	t.Logf("%s: the slowest take %v, and %v under attack; %.0f and %.0f requests a second; %d of %d failed", road, q.tail(), a.tail(),
		q.rate(), a.rate(), len(a.failures), a.all())
	t.Logf("%s: the slowest under attack %s", road, a.slowest)
	if a.tail() > mostSlower*q.tail() || a.rate() < leastShare*q.rate() {
		return fmt.Sprintf("%s: the slowest take %v and %v under attack, %.1f requests a second are served and %.1f", road, q.tail(), a.tail(),
			q.rate(), a.rate())
	}
	return ""
}

func first(failures []string) string {
	slices.Sort(failures)
	return strings.Join(slices.Compact(failures), "; ")
}

// settled waits until the picker holds no more than it did, and returns what that is.
func (v *victim) settled(before *state) (now state) {
	v.t.Helper()
	// net/http keeps a stream of HTTP/2 that was reset until the deadline of its body, which is patience at least.
	const connections, few, some, within = 1 << 20, 40, 24 << 20, 2 * patience
	deadline := time.Now().Add(within)
	for {
		s, ok := v.look()
		if ok && before == nil && s.clients < connections {
			return s
		}
		if ok && before != nil && s.goroutines <= before.goroutines+few && s.clients <= before.clients+connections &&
			s.heap <= before.heap+some && s.descriptors <= before.descriptors+few {
			return s
		}
		select {
		case <-v.exited:
			v.t.Fatalf("the picker has ended; %d of its group were killed for their memory", v.group.killed())
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			_, stacks := v.get(v.at.Metrics, "/debug/pprof/goroutine?debug=1")
			v.t.Errorf("what the attack has taken is not back: %+v, and before %+v\n%.16000s", s, *before, stacks)
			return s
		}
	}
}

// result is what the clients of one road got.
type result struct {
	took     []time.Duration // sorted
	failures []string
	during   time.Duration // the requests that began in it are counted
	inTime   int           // requests that ended in it, too
	slowest  string        // what is known of the request that took longest
}

func (r *result) all() int        { return len(r.took) + len(r.failures) }
func (r *result) rate() float64   { return float64(r.inTime) / r.during.Seconds() }
func (r *result) served() float64 { return float64(len(r.took)) / float64(max(1, r.all())) }

// tail is the 99th percentile, or of fewer than 1,000 answers the 95th: the 99th of a few is the luck of one or two.
func (r *result) tail() time.Duration {
	percent := 99
	if len(r.took) < 1000 {
		percent = 95
	}
	if len(r.took) == 0 {
		return 0
	}
	return r.took[len(r.took)*percent/100].Round(time.Millisecond)
}

// measure sends the requests of well-behaved clients on all roads.
func measure(t *testing.T, roads map[string]string, during time.Duration) map[string]*result {
	t.Helper()
	all := map[string]*result{}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * workers}, Timeout: patience}
	defer client.CloseIdleConnections()
	var clients sync.WaitGroup
	begin := time.Now()
	for road, url := range roads {
		r := &result{}
		all[road] = r
		var mu sync.Mutex
		for worker := range workers {
			clients.Go(func() {
				for n := 0; time.Since(begin) < during; n++ {
					start := time.Now()
					header, failure := complete(client, url, fmt.Sprintf("conversation %d of worker %d %s", n%4, worker, strings.Repeat(" and so on", 60)))
					took := time.Since(start)
					mu.Lock()
					switch {
					case failure != "":
						r.failures = append(r.failures, failure)
					case time.Since(begin) < during:
						r.inTime++
						fallthrough
					default:
						if len(r.took) == 0 || took > slices.Max(r.took) {
							r.slowest = fmt.Sprintf("began after %v, took %v; %v", start.Sub(begin).Round(time.Millisecond), took.Round(time.Millisecond), header)
						}
						r.took = append(r.took, took)
					}
					mu.Unlock()
				}
			})
		}
	}
	clients.Wait()
	for _, r := range all {
		r.during = during
		slices.Sort(r.took)
	}
	return all
}

// complete sends one request, and returns what was wrong with its answer.
func complete(client *http.Client, url, prompt string) (account, failure string) {
	body := fmt.Sprintf(`{"model":"m","stream":true,"max_tokens":16,"prompt":%q}`, prompt)
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return "", err.Error()
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+goodKey)
	begin := time.Now()
	resp, err := client.Do(r)
	if err != nil {
		return "", err.Error()
	}
	defer resp.Body.Close()
	account = fmt.Sprintf("header after %v, of endpoint %q", time.Since(begin).Round(time.Millisecond), resp.Header.Get("X-Kvasir-Endpoint"))
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return account, "aborted: " + err.Error()
	case resp.StatusCode != http.StatusOK:
		return account, fmt.Sprintf("%d: %.200s", resp.StatusCode, text)
	case !strings.Contains(string(text), "[DONE]"):
		return account, "no end"
	}
	return account, ""
}
