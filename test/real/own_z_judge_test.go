// The file's name puts its test behind all others: it takes longest, and where the budget of a run ends before it, vllmsim
// is still compared with the recordings (package judge, in make test).

package real

import (
	"errors"
	"flag"
	"maps"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	judging "github.com/kvasir-dev/kvasir/test/real/judge"
)

var recordFlag = flag.Bool("real.record", false, "write what the engine of this release shows into the golden files, in place of comparing it")

// TestTheSimulatorIsJudgedByTheEngine drives the engine with the requests of package judge. What it shows must be what is
// recorded of its release, and what vllmsim shows when it simulates the release, but for the differences in the list of
// that package.
func TestTheSimulatorIsJudgedByTheEngine(t *testing.T) {
	need(t)
	if atLeast("0.14") && !atLeast("0.15") {
		leaveOut(t, "one of the judge's requests ends the engine of vLLM 0.14")
	}
	shown, frames := observeAll(t)
	if *recordFlag {
		root, err := filepath.Abs("../..")
		if err != nil {
			t.Fatal(err)
		}
		if err := judging.Record(root, run.release, shown, frames); err != nil {
			t.Fatal(err)
		}
		return
	}
	dir := filepath.Join(run.root, "models", "qwen2")
	simulated, err := judging.SimulateAll(t.Context(), run.release, dir)
	if err != nil {
		t.Fatal(err)
	}
	refused, _, err := judging.Verdict(judging.Differences, judging.Compare(shown, simulated))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range refused {
		t.Error(d)
	}
	if recorded, err := judging.Recording(run.release); err != nil {
		t.Logf("This release is not recorded; -real.record does that: %v", err)
	} else {
		for _, d := range judging.Compare(shown, recorded) {
			t.Errorf("%s: %s: the engine says %s, its recording %s; -real.record records again", d.Case, d.Path, d.Real, d.Sim)
		}
	}
}

// observeAll starts an engine for each variant and notes what they show until they end. Both run at the same time: starting
// and ending take most of it.
func observeAll(t *testing.T) (judging.Transcript, []judging.Frame) {
	t.Helper()
	variants := []judging.Variant{judging.Plain, judging.Options}
	var configs []engineConfig
	for _, v := range variants {
		configs = append(configs, judged(v))
	}
	var shown [2]judging.Transcript
	var frames [2][]judging.Frame
	var failures [2]error
	var wg sync.WaitGroup
	for i, e := range startEngines(t, configs...) {
		wg.Go(func() {
			local := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
			target := judging.Target{URL: e.url, Events: local(e.events), Replay: local(e.replay), Model: e.dir, Terminate: e.terminate,
				QueueLimits: atLeast("0.29")}
			shown[i], frames[i], failures[i] = judging.Observe(t.Context(), target, variants[i])
		})
	}
	wg.Wait()
	if err := errors.Join(failures[:]...); err != nil {
		t.Fatal(err)
	}
	maps.Copy(shown[0], shown[1])
	return shown[0], append(frames[0], frames[1]...)
}

// judged is how the engine of a variant is started.
func judged(v judging.Variant) engineConfig {
	maxModelLen, blocks := v.Context()
	config := engineConfig{blocks: blocks, flags: []string{"--max-model-len", strconv.Itoa(maxModelLen)}}
	if v.Key != "" {
		config.flags = append(config.flags, "--api-key", v.Key)
	}
	if !v.Options {
		config.flags = append(config.flags, noScaleOut)
		return config
	}
	config.env = []string{"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0"}
	config.flags = append(config.flags, "--no-enable-prompt-tokens-details", "--max-num-seqs", "2")
	if atLeast("0.18") {
		config.flags = append(config.flags, "--shutdown-timeout", "5")
	}
	if atLeast("0.29") {
		config.flags = append(config.flags, "--max-num-queued-reqs", "2")
	}
	return config
}
