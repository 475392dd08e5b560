package lab

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/replicas"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// choice is what of a decision must be the same.
type choice struct {
	Pod                            string
	Predicted, Confirmed, InFlight int
	Cost                           policy.Cost
}

func choices(d *picker.Decision) []choice {
	var list []choice
	for i := range d.Targets {
		t := &d.Targets[i]
		list = append(list, choice{t.Endpoint.Pod, t.Predicted, t.Confirmed, t.InFlight, t.Cost})
	}
	return list
}

// TestTheLabChoosesAsALivePickerDoes runs the lab with a second picker beside its own: that one gets each request as live
// traffic does, as a body that it parses and makes keys of, and the same cache events, reports, first tokens and ends at
// the same times. Every ordered list of targets, with matches, loads and costs, must be the same.
func TestTheLabChoosesAsALivePickerDoes(t *testing.T) {
	for _, name := range []string{"MarginalCost", "Unified", "LMetric", "LongestPrefix", "Sticky", "LeastPendingWork", "RoundRobin", "Rendezvous"} {
		t.Run(name, func(t *testing.T) {
			w, err := Generate("agentic", 300, 5)
			if err != nil {
				t.Fatal(err)
			}
			c := small(t, name)
			c.Workload, c.Speed, c.EventLag = w, 4, 20*time.Millisecond
			if err := c.fill(); err != nil {
				t.Fatal(err)
			}
			s := &sim{Config: c}
			if err := s.setUp(); err != nil {
				t.Fatal(err)
			}
			live, err := s.newPicker(replicas.NewOutbox(9))
			if err != nil {
				t.Fatal(err)
			}
			s.pickers, s.feeds = append(s.pickers, live), append(s.feeds, live.Feeds())

			open, picked := map[int]*picker.Decision{}, 0
			for s.open > 0 {
				next := s.agenda.heap[0]
				var outputs []enginemodel.Output
				switch next.kind {
				case arrival:
					s.now = next.at
					open[int(next.n)] = pickLive(t, live, &s.Workload.Requests[next.n])
				case stepEnd:
					outputs = append(outputs, s.pods[next.n].result.Outputs...)
				}
				s.advance()
				if next.kind == arrival {
					picked++
					if diff := cmp.Diff(choices(open[int(next.n)]), choices(s.live[next.n].decision)); diff != "" {
						t.Fatalf("request %d: live and lab differ:\n%s", picked, diff)
					}
				}
				for i := range outputs {
					finish(open, &outputs[i])
				}
			}
			if picked != 300 || len(open) != 0 {
				t.Errorf("%d requests were compared, %d have not ended", picked, len(open))
			}
		})
	}
}

func pickLive(t *testing.T, p *picker.Picker, r *Request) *picker.Decision {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": model, "prompt": r.Prompt(), "max_tokens": r.Output, "stream": true})
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Pick(context.Background(), &picker.Request{Route: openai.Completions, Body: body, Header: r.header})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// finish reports to the live picker's decision what the lab's was notified of.
func finish(open map[int]*picker.Decision, out *enginemodel.Output) {
	d := open[out.Request.Slot]
	if out.First {
		d.FirstToken()
	}
	if out.Last {
		d.Usage(out.Request.PromptTokens(), out.Request.CachedTokens)
		d.Generated(len(out.Request.Output()))
		d.End(picker.Completed)
		delete(open, out.Request.Slot)
	}
}
