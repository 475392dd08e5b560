package circuit

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// The table against its model, which forgets nothing before its time.
func TestSuspectsAgainstAModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	s, now := NewSuspects(), time.Unix(1, 0)
	type record struct {
		engines map[string]bool
		last    time.Time
	}
	model := map[uint64]record{}
	for range 20_000 {
		now = now.Add(time.Duration(rng.IntN(int(Suspicion / 50))))
		mark, by := uint64(rng.IntN(50)), fmt.Sprint(rng.IntN(4))
		m, ok := model[mark]
		if !ok || now.Sub(m.last) >= Suspicion {
			m = record{engines: map[string]bool{}}
		}
		if rng.IntN(2) == 0 {
			m.engines[by], m.last = true, now
			model[mark] = m
			if got, want := s.Broke(mark, by, now), len(m.engines) >= maxBreaks; got != want {
				t.Fatalf("enough %v, want %v", got, want)
			}
			continue
		}
		want := time.Duration(0)
		if len(m.engines) >= maxBreaks {
			want = m.last.Add(Suspicion).Sub(now)
		}
		if got := s.Refused(mark, now); got != want {
			t.Fatalf("refused for %v, want %v", got, want)
		}
	}
	for i := range 3 * maxSuspicious {
		s.Broke(uint64(1000+i), "", now.Add(time.Duration(i)))
		if n := len(s.all); n > maxSuspicious || int64(n) != s.known.Load() {
			t.Fatalf("%d requests are remembered, %d counted", n, s.known.Load())
		}
	}
	if s.all[uint64(1000+3*maxSuspicious-1)] == nil || s.all[1000] != nil {
		t.Error("it is not the oldest that is forgotten")
	}
}

// A client does not hide a request behind a nonce, and prompts of equally many token ids are different requests.
func TestMark(t *testing.T) {
	s := NewSuspects()
	mark := func(body string) uint64 { return s.Mark("POST", "/v1/completions", "", []byte(body)) }
	long, other := strings.Repeat("7,8,", markEdge/8), strings.Repeat("[1, 2]", markEdge)
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{`{"prompt":"poison","seed":1}`, `{"prompt":"poison","seed":2}`, true},
		{`{"prompt":"poison [c0ffee]"}`, `{"prompt":"poison [c0ffed]"}`, true},
		{`{"prompt":"poison, 2026-11-22"}`, `{"prompt":"poison, 2026-11-23"}`, true},
		{`{"prompt":[1,2,3]}`, "{\n  \"prompt\": [\n    1,\n    2,\n    3\n  ]\n}", true},
		{`{"prompt":[1,2,3]}`, `{"prompt":[1,2,4]}`, false},
		{`{"prompt":[[1,2],[3]]}`, `{"prompt":[[1,2],[4]]}`, false},
		{`{"prompt":[` + long + long + long + `1]}`, `{"prompt":[` + long + long + long + `2]}`, false},
		{`{"prompt":"` + other + `1"}`, `{"prompt":"` + other + `2"}`, true},
		{`{"prompt":"poison"}`, `{"prompt":"toxin"}`, false},
	} {
		if same := mark(c.a) == mark(c.b); same != c.same {
			t.Errorf("%.40s and %.40s: same %v, want %v", c.a, c.b, same, c.same)
		}
	}
}
