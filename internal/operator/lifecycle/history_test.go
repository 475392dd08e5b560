package lifecycle

import (
	"testing"
)

func TestAnyHistoryEndsInTheDesiredState(t *testing.T) {
	seeds := uint64(1000)
	if testing.Short() {
		seeds = 200
	}
	kinds := map[kind]int{}
	for seed := range seeds {
		s := newSim(t, seed)
		s.say("seed %d", seed)
		for range 200 {
			s.step()
			if s.chance(8) {
				s.disturb()
			}
		}
		s.settle()
		for k, n := range s.kinds {
			kinds[k] += n
		}
	}
	for _, want := range []kind{
		{Create, CauseMissing}, {Unmark, CauseDemand}, {SetMark, CauseReplaced},
		{SetMark, CauseSurplus}, {SetMark, CauseNodeDies}, {Delete, CauseIdle},
		{Delete, CauseDeadline}, {Delete, CauseFinished}, {Delete, CauseReplaced},
		{Delete, CauseSurplus}, {WarmUp, ""}, {Show, ""},
	} {
		if kinds[want] == 0 {
			t.Errorf("no history had action %v: %v", want, kinds)
		}
	}
}
