package picker

import "github.com/kvasir-dev/kvasir/internal/picker/circuit"

// Suspects are the requests on which engines have aborted.
func (p *Picker) Suspects() *circuit.Suspects { return p.suspects }

// CutOff notes that the answer to the request with a mark ended early, and that the gateway does not say why.
func (d *Decision) CutOff(s *circuit.Suspects, mark uint64) {
	d.mu.Lock()
	t, elsewhere, now := &d.Targets[d.target], d.elsewhere, d.now()
	d.mu.Unlock()
	if !elsewhere {
		s.CutOff(mark, t.Endpoint, &t.member.circuit, now)
	}
}

// BrokeOff notes that a gateway answered the request with a mark by itself, because the engine aborted on it. certain: the
// gateway says so. Else a failure to connect looks the same, and an abort counts only if the endpoint did not fail before.
func (d *Decision) BrokeOff(s *circuit.Suspects, mark uint64, certain bool) {
	d.mu.Lock()
	t, counts, now := &d.Targets[d.target], !d.elsewhere && (certain || d.sound), d.now()
	d.mu.Unlock()
	if counts {
		s.Broke(mark, t.Endpoint.ID.Pod, now)
	}
}

// giveUpTrial lets another request try the target, if this one did and there is no verdict. d.mu is held.
func (d *Decision) giveUpTrial() {
	if d.probe {
		d.probe = false
		d.Targets[d.target].member.circuit.GiveUp()
	}
}
