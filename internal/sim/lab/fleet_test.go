package lab

import (
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// started is a run that has not begun, for tests that change its endpoints.
func started(t *testing.T, c Config) *sim {
	t.Helper()
	if err := c.fill(); err != nil {
		t.Fatal(err)
	}
	s := &sim{Config: c}
	if err := s.setUp(); err != nil {
		t.Fatal(err)
	}
	return s
}

// until the time is reached, or all is over.
func (s *sim) until(at time.Duration) {
	for s.open > 0 && s.agenda.heap[0].at < at {
		s.advance()
	}
}

// ready says which of the pods take requests.
func (s *sim) ready(t *testing.T, pods int) {
	t.Helper()
	for i, p := range s.pickers {
		spec := *s.feeds[i][0].Spec
		spec.Endpoints = append(spec.Endpoints[:0:0], spec.Endpoints...)
		for j := range spec.Endpoints {
			spec.Endpoints[j].Ready = j < pods
		}
		if err := p.Apply([]picker.Spec{spec}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestANewPodIsFilled: a pod that joins four busy ones, holds nothing and has no measurements yet gets its part of the
// requests though others hold what they begin with, and not so much more that it would be swamped. The literal longest
// prefix leaves it alone at first, as the others hold the system prompt.
func TestANewPodIsFilled(t *testing.T) {
	long(t)
	joined := func(strategy string, speed float64) (part [3]float64, after float64) {
		w, err := Generate("agentic", 1600, 1)
		if err != nil {
			t.Fatal(err)
		}
		c := small(t, strategy)
		c.Workload, c.Pods, c.Speed = w, 5, speed
		s := started(t, c)
		s.ready(t, 4)
		last := s.arrivals[len(s.arrivals)-1]
		s.until(last * 2 / 5)
		if s.out.perPod[4] != 0 {
			t.Fatal("it has requests before it is there")
		}
		s.ready(t, 5)
		begun := len(s.out.ttft)
		for i := range part {
			before, all := s.out.perPod[4], 0
			for _, n := range s.out.perPod {
				all -= n
			}
			s.until(last * time.Duration(i+3) / 5)
			for _, n := range s.out.perPod {
				all += n
			}
			part[i] = float64(s.out.perPod[4]-before) / float64(all)
		}
		s.until(never)
		return part, timesOf(s.out.ttft[begun:]).Mean
	}
	for _, speed := range []float64{1, 2} {
		part, ttft := joined("MarginalCost", speed)
		literal, literalTTFT := joined("LongestPrefix/literal", speed)
		t.Logf("speed %g: of the requests of each fifth it gets %.2f, %.3f s to the first token; by the literal longest prefix %.2f, %.3f s", speed, part, ttft, literal, literalTTFT)
		if part[0] < 0.03 || part[0] > 0.4 || literal[0] > 0.01 {
			t.Errorf("speed %g: at first %.2f of the requests go to the new pod, %.2f by the literal longest prefix", speed, part[0], literal[0])
		}
		for i := range part[1:] {
			if part[1+i] < 0.1 || part[1+i] > 0.35 {
				t.Errorf("speed %g: %.2f of the requests of a fifth go to the new one of five pods", speed, part)
			}
		}
		if ttft > literalTTFT {
			t.Errorf("speed %g: %.3f s to the first token, %.3f s where the new pod is left alone", speed, ttft, literalTTFT)
		}
	}
}

// TestUnequalGPUsAreComparedInSeconds: two of four pods are about three times as slow. The default learns this and sends
// them less, and answers arrive sooner than under strategies that count tokens or requests and treat all pods as equal.
func TestUnequalGPUsAreComparedInSeconds(t *testing.T) {
	long(t)
	unequal := func(strategy string) (slow float64, r *Result, rates [2]float64) {
		c := small(t, strategy)
		c.Workload, c.Pods = slice(t).First(1200), 4
		s := started(t, c)
		for i := range s.pods[2:] {
			e, err := enginemodel.New(enginemodel.Config{
				NumBlocks: s.KVTokens / s.BlockTokens, BlockSize: s.BlockTokens, Time: profile(t, "70b-tp4-h100").Time, Seed: 1, Noise: uint64(i) + 9,
			})
			if err != nil {
				t.Fatal(err)
			}
			s.pods[i+2].engine = e
		}
		s.until(never)
		for i, e := range s.pickers[0].Stats()[0].Endpoints {
			rates[i/2] += e.Load.Rate / 2
		}
		r = s.out.result(s)
		return float64(r.RequestsPerPod[2]+r.RequestsPerPod[3]) / float64(r.Requests), r, rates
	}
	slow, ours, rates := unequal("MarginalCost")
	t.Logf("MarginalCost: %.2f of the requests go to the slow half, %.3f s; rates %.0f and %.0f tokens/s", slow, ours.TTFTSeconds.Mean, rates[0], rates[1])
	if slow > 0.4 || slow < 0.05 {
		t.Errorf("%.2f of the requests go to the slow half", slow)
	}
	if rates[0] < 2*rates[1] {
		t.Errorf("learned %.0f and %.0f tokens/s", rates[0], rates[1])
	}
	for _, name := range []string{"LMetric", "LeastPendingWork", "Unified", "LeastLoad", "RoundRobin"} {
		part, r, _ := unequal(name)
		t.Logf("%s: %.2f, %.3f s, %.2f s to the end", name, part, r.TTFTSeconds.Mean, r.E2ESeconds.Mean)
		if part < slow {
			t.Errorf("%s gives the slow half less than the default: %.2f and %.2f", name, part, slow)
		}
		if ours.TTFTSeconds.Mean > 1.05*r.TTFTSeconds.Mean || ours.E2ESeconds.Mean > r.E2ESeconds.Mean {
			t.Errorf("%s: %.3f s to the first token, %.2f s to the end; the default %.3f and %.2f", name, r.TTFTSeconds.Mean, r.E2ESeconds.Mean, ours.TTFTSeconds.Mean, ours.E2ESeconds.Mean)
		}
	}
}
