package tokencheck

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/test/race"
)

// TestOneEngineThatDiffersFailsNoProof: the engine that is asked first makes other tokens than the files. Two others of its version
// decide. With fewer, or if they do not agree, the proof fails.
func TestOneEngineThatDiffersFailsNoProof(t *testing.T) {
	full := smallModel(t, chatml)
	other := smallModel(t, strings.Replace(chatml, "assistant", "model", 1))
	third := smallModel(t, strings.Replace(chatml, "assistant", "third", 1))
	oldTools := smallModel(t, chatml+"{% if tools %}x{% endif %}")
	const wrong, right, odd, mute, toolsWrong = "wrong", "right", "odd", "mute", "wrong for tools"
	for name, tc := range map[string]struct {
		engines []string
		ranks   bool // all are ranks behind one port
		state   State
		chats   bool
		probes  uint64
	}{
		"the first of three":                     {[]string{wrong, right, right}, false, Exact, true, 3},
		"the first of three, for a kind":         {[]string{toolsWrong, right, right}, false, Exact, true, 3},
		"the first of eight, some do not answer": {[]string{wrong, mute, mute, right, right, right, right, right}, false, Exact, true, 3},
		"another than the first":                 {[]string{right, wrong, wrong}, false, Exact, true, 1},
		"the first of two":                       {[]string{wrong, right}, false, Failed, false, 1},
		"two of three":                           {[]string{wrong, wrong, right}, false, Failed, false, 3},
		"all":                                    {[]string{wrong, wrong, wrong}, false, Failed, false, 3},
		"each in its own way":                    {[]string{wrong, odd, right}, false, Failed, false, 3},
		"others that do not answer":              {[]string{wrong, mute, mute, mute, mute, mute, right, right}, false, Failed, false, 1},
		"ranks of one engine":                    {[]string{wrong, right, right}, true, Failed, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(Files{Set: full})
				defer h.Set(nil)
				var pods []string
				for i, kind := range tc.engines {
					pods = append(pods, fmt.Sprintf("%d %s", i, kind))
					set := full
					switch kind {
					case wrong:
						set = other
					case odd:
						set = third
					case toolsWrong:
						set = oldTools
					}
					h.engine(pods[i], v24, set, settings[0])
				}
				h.silent = func(pod string) error {
					if strings.HasSuffix(pod, mute) {
						return errors.New("busy")
					}
					return nil
				}
				h.pods(pods...)
				if tc.ranks {
					for i := range h.pool.Endpoints {
						h.pool.Endpoints[i].ID, h.pool.Endpoints[i].Address = endpoint.ID{Pod: "a", Rank: i}, "a:1"
					}
				}
				h.apply()
				time.Sleep(4 * time.Minute)
				h.expect(t, name, tc.state, true, tc.chats)
				s, _ := h.Status("n", "p")
				if s.Probes != tc.probes || s.Unproven != 0 {
					t.Errorf("%d probes, want %d; unproven %v", s.Probes, tc.probes, s.Unproven)
				}
				if race.Enabled && (tc.state != Exact || tc.probes == 1) {
					return // the same is done each half minute, by the same goroutine
				}
				time.Sleep(proveEvery)
				h.expect(t, "an hour later", tc.state, true, tc.chats)
				if tc.state == Exact && tc.probes > 1 {
					h.mu.Lock()
					h.silent = func(pod string) error {
						if pod != pods[0] {
							return errors.New("busy")
						}
						return nil
					}
					h.mu.Unlock()
					time.Sleep(proveEvery)
					h.expect(t, "when only the one that differs answers", tc.state, true, tc.chats)
				}
			})
		})
	}
}
