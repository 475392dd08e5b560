package lab

import (
	"fmt"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// pod is an engine and the step that it computes.
type pod struct {
	engine *enginemodel.Engine
	busy   bool
	result enginemodel.StepResult // of the step under way

	adapters adapters
}

func (s *sim) newPod(i int) (*pod, error) {
	e, err := enginemodel.New(enginemodel.Config{
		NumBlocks: s.KVTokens / s.BlockTokens, BlockSize: s.BlockTokens, Time: s.profileOf(i).Time, Uneven: s.Uneven,
		Seed: 1, Noise: uint64(i) + 1,
	})
	if err != nil {
		return nil, fmt.Errorf("making pod %d: %w", i, err)
	}
	return &pod{engine: e, adapters: adapters{Adapters: s.Adapters, here: map[string]*adapter{}}}, nil
}

// step lets a pod begin its next step, if it has anything to do.
func (s *sim) step(i int) {
	p := s.pods[i]
	if p.busy = false; s.holdStep(i) {
		return
	}
	p.result, p.busy = p.engine.Step(s.now)
	if p.busy {
		s.agenda.add(s.now+p.result.Duration, stepEnd, i)
	}
}

// endStep brings what a step has made: cache events first, as they leave the engine with its outputs.
func (s *sim) endStep(i int) {
	if s.holdStep(i) {
		return
	}
	p := s.pods[i]
	s.publish(i, p.result.Events)
	for j := range p.result.Outputs {
		out := &p.result.Outputs[j]
		if s.Gaps {
			s.token(out)
		}
		if !out.First && !out.Last {
			continue
		}
		slot := out.Request.Slot
		if out.First {
			s.answer(begins, slot)
		}
		if out.Last {
			if name := out.Request.Adapter; name != "" {
				p.adapters.left(s.now, name)
				s.bringIn(i)
			}
			s.answer(ends, slot)
		}
	}
	s.poll() // requests that wait for this pod are in its next step
	s.step(i)
}

// begin takes note of a request's first token.
func (s *sim) begin(slot int) {
	x, tenant := s.live[slot], s.Workload.Requests[slot].Tenant
	if x.decision.Leg() == picker.PrefillLeg {
		return // its token is thrown away
	}
	x.begun = true
	x.decision.FirstToken()
	computed := x.computedBy()
	s.out.firstToken(s.now-x.arrived, s.now-x.at, computed, tenant)
	s.out.served = append(s.out.served, served{
		arrived: x.arrived, first: s.now, input: computed.PromptTokens(), computed: computed.PromptTokens() - computed.CachedTokens,
		tenant: tenant,
	})
}

// end takes note that a request has been answered.
func (s *sim) end(slot int) {
	x := s.live[slot]
	x.decision.Usage(x.request.PromptTokens(), x.request.CachedTokens)
	if x.decision.Leg() == picker.PrefillLeg {
		s.handOver(slot)
		return
	}
	x.decision.Generated(len(x.request.Output()))
	x.decision.End(picker.Completed)
	s.out.ended(s.now, s.now-x.arrived, x.pod)
	s.over(slot)
}

// news are cache events on their way: a pod's, of one step.
type news struct {
	pod    int
	events []enginemodel.Event
}

// publish sends a pod's cache events to the pickers.
func (s *sim) publish(i int, events []enginemodel.Event) {
	if len(events) == 0 {
		return
	}
	if s.EventLag == 0 {
		s.apply(news{i, events})
		return
	}
	kept := make([]enginemodel.Event, len(events))
	for j, e := range events {
		if e.Kind == enginemodel.Removed { // the engine reuses these
			e.Hashes = append([]enginemodel.Hash(nil), e.Hashes...)
		}
		kept[j] = e
	}
	s.news = append(s.news, news{i, kept})
	s.agenda.add(s.now+s.EventLag, lagOver, 0)
}

// deliver the oldest news.
func (s *sim) deliver() {
	n := s.news[0]
	s.news = s.news[1:]
	s.apply(n)
}

// apply enters events into the pickers' indexes. Keys are made once for all of them. Removals that follow one another
// are entered together.
func (s *sim) apply(n news) {
	for j := 0; j < len(n.events); {
		e := &n.events[j]
		s.hashes = s.hashes[:0]
		for {
			for _, h := range n.events[j].Hashes {
				s.hashes = append(s.hashes, kvevent.Hash(h))
			}
			j++
			if e.Kind != enginemodel.Removed || j == len(n.events) || n.events[j].Kind != enginemodel.Removed {
				break
			}
		}
		if e.Kind == enginemodel.Stored {
			s.store(n.pod, e)
			continue
		}
		for p := range s.pickers {
			w := s.feeds[p][n.pod].Writer
			if e.Kind == enginemodel.Removed {
				w.Drop(kvblock.GPU, 0, s.hashes)
			} else {
				w.Clear()
			}
		}
	}
}

func (s *sim) store(pod int, e *enginemodel.Event) {
	parent, key := kvindex.Parent{Hash: kvevent.Hash(e.Parent), OK: e.Parent != 0}, s.rootOf(modelOf(e.Adapter))
	if parent.OK {
		var known bool
		if key, known = s.feeds[0][pod].Writer.Key(0, parent.Hash); !known {
			panic("lab: an engine stored a block whose parent it had not announced")
		}
	}
	s.stored = kvblock.AppendKeys(s.stored[:0], key, e.Tokens, s.BlockTokens)
	for p := range s.pickers {
		feed := &s.feeds[p][pod]
		feed.Writer.Store(kvblock.GPU, 0, parent, s.hashes, s.stored)
		s.pickers[p].Confirm(feed, s.stored)
	}
}

// scrape shows the engines' metrics to the pickers.
func (s *sim) scrape() {
	for i, pod := range s.pods {
		if s.feeds[0][i].Writer == nil {
			continue // its pool has no endpoint yet
		}
		st := pod.engine.Stats()
		r := load.Report{
			Running: st.Running, Waiting: st.Waiting,
			KVUsage: float64(st.UsedBlocks) / float64(st.NumBlocks), KVTokens: st.NumBlocks * s.BlockTokens,
			Generated: float64(st.GenerationTokens),
		}
		if a := &pod.adapters; a.PerPod > 0 && !a.Unreported {
			r.MaxAdapters, r.Adapters = a.PerPod, a.names()
		}
		r.Waiting += len(pod.adapters.waiting)
		for j := range s.pickers {
			s.pickers[j].Observe(s.feeds[j][i].Endpoint.ID, s.clock(), r)
		}
	}
	s.peers.expire(s.clock())
	s.agenda.add(s.now+s.ScrapeEvery, scrapes, 0)
}

func podName(i int) string { return fmt.Sprintf("pod-%d", i) }
