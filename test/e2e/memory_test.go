package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestTheReporterIsSmall mirrors 100,000 blocks, and another 100,000 that take their place; all of them are sent to a picker
// and saved, and then keyed by another root.
func TestTheReporterIsSmall(t *testing.T) {
	const blocks, most = 100_000, 64 << 20
	args := insecure
	args.engine = []string{"--num-gpu-blocks", strconv.Itoa(blocks), "--speed-up", "100000"}
	s := newSite(t, 1, args)
	p := s.pods[0]
	s.untilServing(p)
	rng := rand.New(rand.NewPCG(3, 3))
	fill := func(blocks int) {
		for n := 0; n < blocks; n += 512 {
			prompt := make([]int, 512*16)
			for i := range prompt {
				prompt[i] = rng.IntN(100_000)
			}
			if status := s.post("http://"+p.http+"/v1/completions", map[string]any{"model": "m", "prompt": prompt, "max_tokens": 1}); status != 200 {
				t.Fatalf("the engine answers %d", status)
			}
			if n/512%32 == 31 { // no real engine is so much faster than its reporter
				s.until("the reporter has followed", func() bool { return int(s.held(0)) == s.blocks(p) })
			}
		}
	}
	fill(blocks)
	fill(blocks)
	s.untilEqual("a full cache")
	s.rotateKeys()
	s.untilEqual("keys of another root")
	if n := s.blocks(p); n < blocks*9/10 {
		t.Fatalf("the cache has only %d blocks", n)
	}
	now, peak := memoryOf(t, p.reporter, "VmRSS"), memoryOf(t, p.reporter, "VmHWM")
	t.Logf("%d blocks: %.1f MiB resident, %.1f MiB at most", s.blocks(p), float64(now)/(1<<20), float64(peak)/(1<<20))
	if peak > most {
		t.Errorf("the reporter took %d bytes, at most %d are wanted", peak, most)
	}
}

// memoryOf reads a line of the kernel's account of a process, in bytes.
func memoryOf(t *testing.T, p *program, name string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Skip("the kernel does not tell: ", err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == name+":" && fields[2] == "kB" {
			n, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatalf("no %s in %s", name, text)
	return 0
}
