package scaling

import (
	"math"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

// reporting plays a picker that sends its totals and pods every few seconds.
type reporting struct {
	pool   operatorfeed.Pool
	totals operatorfeed.Totals
	pods   map[string]operatorfeed.PodState
}

func (p *reporting) view(now time.Time) operatorfeed.View {
	p.pool.Receive(now, operatorfeed.State{Picker: "a", Incarnation: 1, Ready: true, Pods: p.pods, Totals: p.totals})
	return p.pool.View(now, []operatorfeed.Expected{{Picker: "a", Ready: true}})
}

func TestSamplesAreWhatWasCounted(t *testing.T) {
	p := reporting{pods: map[string]operatorfeed.PodState{
		"u": {InFlight: 15, Waiting: 3, UncachedTokens: 8000, KVUsage: 0.9, Blocks: 600},
		"v": {KVUsage: 0.1, Blocks: 400},
		"w": {Waiting: 99, KVUsage: 1}, // does not serve
	}}
	serving := []string{"u", "v"}
	var m Meter
	view := p.view(epoch)
	if s := m.Sample(epoch, &view, serving); s != nil {
		t.Fatalf("the first sample says %+v", s)
	}
	p.totals = operatorfeed.Totals{
		Requests: 10, PromptTokens: 100_000, HitTokens: 60_000, PrefillTokens: 40_000, WorkSeconds: 20, Evictions: 100,
		Refused: 5, Waiting: 4, LastRequest: epoch.Add(9 * time.Second),
	}
	for range 50 {
		p.totals.TTFT.Add(0.3)
	}
	now := epoch.Add(10 * time.Second)
	view = p.view(now)
	s := m.Sample(now, &view, serving)
	want := Sample{
		Serving: 2, Waiting: 4 + 3, Idle: 1,
		Load:     (20 + 5*2.0) / 10,   // placed, and refused ones of two seconds each
		Backlog:  4*2.0 + 8000/2000.0, // waiting ones, and tokens at 2000 a second
		HitRatio: 0.6, Turnover: 100 * time.Second, TTFTP99: s.TTFTP99, LastRequest: epoch.Add(9 * time.Second),
	}
	if *s != want {
		t.Errorf("sample %+v\nwant   %+v", *s, want)
	}
	if ms := s.TTFTP99.Milliseconds(); ms < 226 || ms > 320 {
		t.Errorf("99th percentile %d ms of 300 ms each", ms)
	}
	now = now.Add(10 * time.Second)
	view = p.view(now)
	if s = m.Sample(now, &view, serving); math.Abs(s.Load-(1+3.0/12+0.1)) > 1e-9 {
		t.Errorf("load %.2f when nothing came, want what the engines bear and what waits there", s.Load)
	}
}

func TestWindowsForget(t *testing.T) {
	p := reporting{pods: map[string]operatorfeed.PodState{"u": {Blocks: 1000}}}
	var m Meter
	var s *Sample
	for i := range 400 {
		now := epoch.Add(time.Duration(i) * 5 * time.Second)
		hits, seconds := int64(900), 0.1
		if i > 200 {
			hits, seconds = 100, 5
		}
		p.totals.Requests++
		p.totals.PromptTokens += 1000
		p.totals.HitTokens += hits
		p.totals.TTFT.Add(seconds)
		view := p.view(now)
		s = m.Sample(now, &view, []string{"u"})
		switch {
		case i == 200 && (s.HitRatio != 0.9 || s.TTFTP99 > 200*time.Millisecond):
			t.Errorf("before: %+v", s)
		case i == 226 && s.TTFTP99 < 4*time.Second:
			t.Errorf("two minutes after: %+v", s)
		}
	}
	if s.HitRatio != 0.1 || s.TTFTP99 < 4*time.Second || s.TTFTP99 > 6*time.Second {
		t.Errorf("after: %+v", s)
	}
	if n := len(m.history); n > 125 {
		t.Errorf("%d readings are kept", n)
	}
}

func TestUnheardPickersSayNothing(t *testing.T) {
	p := reporting{}
	var m Meter
	view := p.view(epoch)
	m.Sample(epoch, &view, nil)
	silent := operatorfeed.View{}
	if s := m.Sample(epoch.Add(5*time.Second), &silent, nil); s != nil {
		t.Errorf("%+v although no picker reports", s)
	}
	p.totals.WorkSeconds = 1e6 // counted while no report arrived
	view = p.view(epoch.Add(10 * time.Second))
	if s := m.Sample(epoch.Add(10*time.Second), &view, nil); s != nil {
		t.Errorf("%+v from totals of an unknown time", s)
	}
}

// TestEachRoleIsMeasuredByItsOwnPods: prefill pods by what was sent to them, decode pods by what they hold and what waits for them.
func TestEachRoleIsMeasuredByItsOwnPods(t *testing.T) {
	p := reporting{pods: map[string]operatorfeed.PodState{
		"p": {WorkSeconds: 1000}, "q": {WorkSeconds: 1000}, "d": {WorkSeconds: 1000}, "e": {WorkSeconds: 1000},
	}}
	prefill, decode := Meter{Part: Prefills}, Meter{Part: Decodes}
	view := p.view(epoch)
	prefill.Sample(epoch, &view, []string{"p", "q"})
	decode.Sample(epoch, &view, []string{"d", "e"})

	p.pods = map[string]operatorfeed.PodState{
		"p": {WorkSeconds: 1009, InFlight: 7, UncachedTokens: 8000},
		"q": {WorkSeconds: 1006, InFlight: 1},
		"d": {WorkSeconds: 1001, InFlight: 20, KVUsage: 0.7},
		"e": {WorkSeconds: 4, InFlight: 30, KVUsage: 0.6}, // its picker has begun again
	}
	p.totals = operatorfeed.Totals{Requests: 10, PrefillTokens: 40_000, WorkSeconds: 20, Refused: 5, Waiting: 4}
	now := epoch.Add(10 * time.Second)
	view = p.view(now)
	got := prefill.Sample(now, &view, []string{"p", "q", "new"})
	want := Sample{Serving: 3, Waiting: 6, Idle: 1, Load: (9 + 6) / 10.0, Backlog: 8000 / 2000.0, HitRatio: -1}
	if *got != want {
		t.Errorf("prefill %+v\nwant    %+v", *got, want)
	}
	got = decode.Sample(now, &view, []string{"d", "e"})
	want = Sample{Serving: 2, Waiting: 4, Load: (1 + 4 + 5*2.0) / 10, Backlog: 4 * 2.0, HitRatio: -1}
	if *got != want {
		t.Errorf("decode %+v\nwant   %+v", *got, want)
	}

	p.pods["new"] = operatorfeed.PodState{WorkSeconds: 500} // a replica that reports it for the first time has counted for long
	for range 2 {
		now = now.Add(10 * time.Second)
		view = p.view(now)
		if got = prefill.Sample(now, &view, []string{"p", "q", "new"}); got.Load != 0 {
			t.Errorf("load %.1f though nothing was sent", got.Load)
		}
		if got = decode.Sample(now, &view, []string{"d", "e"}); math.Abs(got.Load-1.3) > 1e-9 {
			t.Errorf("load %.2f of decode pods whose caches are used by 1.3", got.Load)
		}
	}
}
