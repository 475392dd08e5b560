package placement

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// market is a model of three islands through a week: reserved nodes that are always there, few and dear; spot nodes, cheap,
// with more or less of them for some hours, and at times none; and a region farther away.
type market struct {
	islands []Island
	rooms   map[string]int // nodes that there are now
	pods    []instance
	states  map[string]State

	paid          float64 // for pods with a node, in units of Price and hours
	served        float64 // hours of pods that serve
	wanted, short float64 // hours of pods that were wanted, and of those that were missing
}

// instance is a pod: where it is, since when it waits for a node, and when it serves.
type instance struct {
	island  string
	waiting time.Time // zero with a node
	serves  time.Time
}

// begin of all weeks.
var begin = time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)

// starts is how long a pod takes to serve once it has a node.
const starts = 3 * time.Minute

func newMarket() *market {
	return &market{
		islands: []Island{
			{Name: "reserved", Price: 9_800_000, Max: 3, Timeout: 15 * time.Minute},
			{Name: "spot", Price: 3_100_000, Max: -1, Timeout: 15 * time.Minute},
			{Name: "far", Price: 6_000_000, Max: -1, Latency: 30 * time.Millisecond, Timeout: 15 * time.Minute},
		},
		rooms: map[string]int{"reserved": 3, "spot": 6, "far": 100}, states: map[string]State{},
	}
}

// step plays a minute in which so many pods are wanted; choose names the island of a new one.
func (m *market) step(now time.Time, size int, choose func() string) {
	for m.count(); len(m.pods) < size; m.count() {
		island := choose()
		if island == "" {
			break
		}
		m.pods = append(m.pods, instance{island: island, waiting: now})
	}
	for len(m.pods) > size {
		dearest := Spare(m.islands, m.states)[0]
		k := slices.IndexFunc(m.pods, func(p instance) bool { return p.island == dearest })
		m.pods = slices.Delete(m.pods, k, k+1)
		m.count()
	}
	used := map[string]int{}
	m.pods = slices.DeleteFunc(m.pods, func(p instance) bool { // spot nodes are reclaimed
		if p.waiting.IsZero() {
			used[p.island]++
		}
		return p.waiting.IsZero() && used[p.island] > m.rooms[p.island]
	})
	serving := 0
	for k := range m.pods {
		p := &m.pods[k]
		if !p.waiting.IsZero() && used[p.island] < m.rooms[p.island] {
			used[p.island]++
			p.waiting, p.serves = time.Time{}, now.Add(starts)
			s := m.states[p.island]
			s.Failures = 0
			m.states[p.island] = s
		}
		if p.waiting.IsZero() {
			m.paid += float64(m.island(p.island).Price) / 60
			if !now.Before(p.serves) {
				serving++
			}
		}
	}
	m.served += float64(serving) / 60
	m.wanted += float64(size) / 60
	m.short += float64(max(0, size-serving)) / 60
}

func (m *market) island(name string) *Island {
	return &m.islands[slices.IndexFunc(m.islands, func(i Island) bool { return i.Name == name })]
}

// count brings the states up to date.
func (m *market) count() {
	for k := range m.islands {
		s := m.states[m.islands[k].Name]
		s.Pods = 0
		for _, p := range m.pods {
			if p.island == m.islands[k].Name {
				s.Pods++
			}
		}
		m.states[m.islands[k].Name] = s
	}
}

// giveUp takes pods back that have waited for too long, as the operator does.
func (m *market) giveUp(now time.Time) {
	m.pods = slices.DeleteFunc(m.pods, func(p instance) bool {
		if p.waiting.IsZero() || !m.island(p.island).Late(now, p.waiting) {
			return false
		}
		s := m.states[p.island]
		if s.Exhausted.Before(p.waiting) { // pods that waited together are one failure
			s.Failures++
		}
		s.Exhausted = now
		m.states[p.island] = s
		return true
	})
}

// week plays one with one way to place pods, and reports what a pod that serves costs for an hour, in units of the
// currency, and the part of the wanted pods that was missing.
func week(seed uint64, place func(m *market, now time.Time, made int) string, givesUp bool) (price, missing float64) {
	m, rng := newMarket(), rand.New(rand.NewPCG(seed, 3))
	made := 0
	for minute := range 7 * 24 * 60 {
		now := begin.Add(time.Duration(minute) * time.Minute)
		if minute%180 == 0 {
			m.rooms["spot"] = max(0, rng.IntN(9)-2)
		}
		if givesUp {
			m.giveUp(now)
		}
		size := int(math.Round(5 - 3*math.Cos(2*math.Pi*float64(minute)/(24*60))))
		m.step(now, size, func() string { made++; return place(m, now, made) })
	}
	return m.paid / m.served / 1e6, m.short / m.wanted
}

// TestIslandsSaveMoneyAndWaits compares the choice of islands with pods that are spread over them whatever they cost, and
// with pods that all go to the cheapest one and wait there.
func TestIslandsSaveMoneyAndWaits(t *testing.T) {
	choice := func(m *market, now time.Time, _ int) string {
		name, _ := Choose(now, m.islands, m.states)
		return name
	}
	inTurn := func(m *market, _ time.Time, made int) string {
		for k := range m.islands {
			if i := &m.islands[(made+k)%len(m.islands)]; !i.full(m.states[i.Name]) {
				return i.Name
			}
		}
		return ""
	}
	cheapest := func(*market, time.Time, int) string { return "spot" }
	for seed := range uint64(3) {
		chosen, missing := week(seed, choice, true)
		spread, spreadMissing := week(seed, inTurn, true)
		waiting, waitingMissing := week(seed, cheapest, false)
		t.Logf("week %d: %.2f for a pod's hour and %.1f %% of the pods missing; spread %.2f, %.1f %%; all on the cheapest %.2f, %.1f %%",
			seed, chosen, 100*missing, spread, 100*spreadMissing, waiting, 100*waitingMissing)
		if chosen > 0.9*spread {
			t.Errorf("a pod's hour costs %.2f, spread over all islands %.2f", chosen, spread)
		}
		if missing > waitingMissing/2 {
			t.Errorf("%.3f of the pods are missing, %.3f where they wait for the cheapest island", missing, waitingMissing)
		}
	}
}
