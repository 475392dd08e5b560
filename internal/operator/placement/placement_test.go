package placement

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var now = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

func island(name, price string, least, most int) Island {
	p, err := ParsePrice(price)
	if err != nil {
		panic(err)
	}
	return Island{Name: name, Price: p, Min: least, Max: most, Timeout: 15 * time.Minute}
}

func TestChoose(t *testing.T) {
	islands := []Island{island("reserved", "9.80", 1, 8), island("spot", "3.10", 0, -1), island("far", "3.10", 0, 2)}
	islands[1].Latency, islands[2].Latency = 6*time.Millisecond, 60*time.Millisecond
	rests := State{Failures: 1, Exhausted: now.Add(-time.Minute)}
	for _, c := range []struct {
		name   string
		states map[string]State
		want   string
		reason Reason
	}{
		{"the minimum comes first", nil, "reserved", BelowMinimum},
		{"then the cheapest, and of those the nearer", map[string]State{"reserved": {Pods: 1}}, "spot", Cheapest},
		{"without the exhausted", map[string]State{"reserved": {Pods: 1}, "spot": rests}, "far", Cheapest},
		{"the dear one when the cheap ones are exhausted", map[string]State{"reserved": {Pods: 1}, "spot": rests, "far": rests}, "reserved", NextCheapest},
		{"none when all are", map[string]State{"reserved": rests, "spot": rests, "far": {Pods: 2}}, "", AllExhausted},
		{"a minimum that gives no nodes does not hold up the others", map[string]State{"reserved": rests}, "spot", Cheapest},
		{"a rest ends", map[string]State{"reserved": {Pods: 1}, "spot": {Failures: 1, Exhausted: now.Add(-15 * time.Minute)}}, "spot", Cheapest},
		{"a second failure rests longer", map[string]State{"reserved": {Pods: 1}, "spot": {Failures: 2, Exhausted: now.Add(-29 * time.Minute)}}, "far", Cheapest},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, reason := Choose(now, islands, c.states); got != c.want || reason != c.reason {
				t.Errorf("chosen %q because %s, want %q because %s", got, reason, c.want, c.reason)
			}
		})
	}
	full := []Island{island("a", "1", 0, 2)}
	if got, reason := Choose(now, full, map[string]State{"a": {Pods: 2}}); got != "" || reason != NoRoom {
		t.Errorf("chosen %q because %s in a full pool", got, reason)
	}
}

func TestRetryIsWhenAChoiceChanges(t *testing.T) {
	islands := []Island{island("a", "1", 0, -1), island("b", "2", 0, -1)}
	states := map[string]State{"a": {Failures: 2, Exhausted: now}, "b": {Failures: 1, Exhausted: now}}
	if got, _ := Choose(now, islands, states); got != "" {
		t.Fatalf("%q is chosen while all rest", got)
	}
	at := Retry(now, islands, states)
	if got, _ := Choose(at, islands, states); got != "b" || !at.Equal(now.Add(15*time.Minute)) {
		t.Errorf("at %s %q is chosen, want b after 15 minutes", at, got)
	}
	if at := Retry(now, islands, nil); !at.IsZero() {
		t.Errorf("retry at %s although none rests", at)
	}
}

func TestARestIsBounded(t *testing.T) {
	i := island("a", "1", 0, -1)
	last := time.Duration(0)
	for failures := 1; failures < 100; failures++ {
		rest := i.Rest(failures)
		if rest < last || rest > longestRest {
			t.Fatalf("rest of %s after %d failures, %s before", rest, failures, last)
		}
		last = rest
	}
	if last != longestRest {
		t.Errorf("rest of %s after a hundred failures", last)
	}
}

func TestSpare(t *testing.T) {
	islands := []Island{island("reserved", "9.80", 2, 8), island("spot", "3.10", 0, 3), island("near", "20", 0, -1)}
	got := Spare(islands, map[string]State{"reserved": {Pods: 2}, "spot": {Pods: 4}, "near": {Pods: 1}, "gone": {Pods: 1}, "": {}})
	want := []string{"gone", "spot", "near"} // reserved keeps its minimum
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("spare islands (-want +got):\n%s", diff)
	}
}

// A pool that grows and shrinks by these rules keeps every minimum and maximum, and pays the least it can.
func TestSizesOfIslands(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		var islands []Island
		least := 0
		for k := range rng.IntN(5) + 1 {
			i := Island{Name: fmt.Sprint("i", k), Price: rng.Int64N(5), Min: rng.IntN(3), Max: rng.IntN(6) + 2, Timeout: time.Minute}
			least += i.Min
			islands = append(islands, i)
		}
		states := map[string]State{}
		pods := 0
		for range 60 {
			if rng.IntN(2) == 0 || pods <= least {
				name, reason := Choose(now, islands, states)
				if name == "" {
					if reason != NoRoom {
						t.Fatalf("seed %d: no island because %s, and none is exhausted", seed, reason)
					}
					continue
				}
				pods++
				states[name] = State{Pods: states[name].Pods + 1}
				continue
			}
			spare := Spare(islands, states)
			if len(spare) == 0 {
				t.Fatalf("seed %d: nothing to spare of %d pods, %d needed", seed, pods, least)
			}
			pods--
			states[spare[0]] = State{Pods: states[spare[0]].Pods - 1}
		}
		for _, i := range islands {
			n := states[i.Name].Pods
			if n < i.Min && pods >= least || n > i.Max {
				t.Fatalf("seed %d: %d pods on %+v", seed, n, i)
			}
			for _, j := range islands { // no pod stands where a cheaper place is free
				if m := states[j.Name].Pods; n > i.Min && m < j.Max && j.Price < i.Price {
					t.Fatalf("seed %d: %d pods on %+v while %+v has room with %d", seed, n, i, j, m)
				}
			}
		}
	}
}

func TestPrices(t *testing.T) {
	for s, want := range map[string]int64{"0": 0, "9.80": 9_800_000, "3": 3_000_000, "0.000001": 1, "12345678.123456": 12345678123456} {
		if got, err := ParsePrice(s); err != nil || got != want {
			t.Errorf("%q is %d (%v), want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", ".", "1.", ".5", "-1", "1e3", "1,5", "123456789", "1.1234567", " 1", "1.2.3", "٣"} {
		if got, err := ParsePrice(s); err == nil {
			t.Errorf("%q is read as %d", s, got)
		}
	}
}

func FuzzParsePrice(f *testing.F) {
	f.Add("9.80")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParsePrice(s)
		if err != nil {
			return
		}
		want, err := strconv.ParseFloat(s, 64)
		if err != nil || float64(got) < want*1e6-1 || float64(got) > want*1e6+1 {
			t.Errorf("%q is read as %d millionths", s, got)
		}
	})
}
