package lab

import (
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/policy"
)

// rising makes the last of some pods dearer for a time after it has joined: its costs are divided by a share that rises from
// a tenth to one.
type rising struct {
	policy.Policy
	pods  int
	share func() float64
}

func (r rising) Score(q *policy.Request, candidates []policy.Candidate, out []policy.Cost) {
	r.Policy.Score(q, candidates, out)
	if len(candidates) == r.pods {
		out[r.pods-1].First /= r.share()
	}
}

// TestARisingShareForANewPodDoesNotPay: a pod that joins busy ones with an empty cache is priced by what it has to compute,
// as any other. A share that rises over some time (slow start) brings no earlier first tokens to the requests that arrive in the
// half minute after it has joined, so there is none.
func TestARisingShareForANewPodDoesNotPay(t *testing.T) {
	long(t)
	const join, speed = 40 * time.Second, 2.5
	first := func(over time.Duration, seed uint64) (mean, part float64) {
		w, err := Generate("agentic", 900, seed)
		if err != nil {
			t.Fatal(err)
		}
		c := small(t, "MarginalCost")
		c.Workload, c.Pods, c.Speed, c.Admission, c.Seed = w, 5, speed, DefaultAdmission(), seed
		var s *sim
		if over > 0 {
			c.NewStrategy = func(config policy.Config) (policy.Policy, error) {
				p, err := policy.New(config)
				return rising{p, c.Pods, func() float64 {
					return max(0.1, min(1, float64(s.now-join)/float64(over)))
				}}, err
			}
		}
		s = started(t, c)
		s.ready(t, 4)
		s.until(join)
		s.ready(t, 5)
		s.until(never)
		n := 0.0
		for _, r := range s.out.served {
			if r.arrived >= join && r.arrived < join+30*time.Second {
				mean += (r.first - r.arrived).Seconds()
				n++
			}
		}
		return mean / n, float64(s.out.perPod[4]) / float64(len(s.out.served))
	}
	all := func(over time.Duration) (mean, part float64) {
		for seed := range uint64(3) {
			m, p := first(over, seed+1)
			mean, part = mean+m/3, part+p/3
		}
		return mean, part
	}
	plain, part := all(0)
	t.Logf("%.3f s to the first token, the new pod has %.2f of all requests", plain, part)
	for _, over := range []time.Duration{5 * time.Second, 30 * time.Second} {
		slow, part := all(over)
		t.Logf("%.3f s with a share that rises for %v, %.2f of the requests", slow, over, part)
		if plain > 1.05*slow {
			t.Errorf("%.3f s to the first token, %.3f s where the new pod's share rises for %v", plain, slow, over)
		}
	}
}
