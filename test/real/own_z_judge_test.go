// The file's name puts its test behind all others: it takes longest, and where the budget of a run ends before it, vllmsim
// is still compared with the recordings (package judge, in make test).

package real

import (
	"errors"
	"flag"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	judging "github.com/kvasir-dev/kvasir/test/real/judge"
)

var (
	recordFlag = flag.Bool("real.record", false, "write what the engine of this release shows into the golden files, "+
		"in place of comparing it")
	variantsFlag = flag.String("real.variants", "", "judge only `engines` whose variants begin so, separated by commas, "+
		"such as \"with adapters,rank\"")
)

// TestTheSimulatorIsJudgedByTheEngine drives the engine with the requests of package judge. What it shows must be what is
// recorded of its release, and what vllmsim shows when it simulates the release, but for the differences in the list of
// that package.
func TestTheSimulatorIsJudgedByTheEngine(t *testing.T) {
	need(t)
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
	found, err := judging.Judge(t.Context(), run.release, filepath.Join(run.root, "models", "qwen2"), shown)
	if err != nil {
		t.Fatal(err)
	}
	refused, _, err := judging.Verdict(judging.Differences, found)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range refused {
		t.Error(d)
	}
	recorded, err := judging.Recording(run.release)
	if err != nil {
		t.Logf("This release is not recorded; -real.record does that: %v", err)
		return
	}
	for _, d := range judging.JudgeRecording(shown, recorded) {
		t.Errorf("%s: %s: the engine says %s, its recording %s; -real.record records again", d.Case, d.Path, d.Real, d.Sim)
	}
}

// observeAll starts an engine for each variant, two at the same time, and notes what they show until they end: starting and
// ending take most of it.
func observeAll(t *testing.T) (judging.Transcript, []judging.Frame) {
	t.Helper()
	all, frames := judging.Transcript{}, []judging.Frame(nil)
	for variants := range slices.Chunk(judgedVariants(t), atOnce) {
		shown, sent := observePair(t, variants)
		maps.Copy(all, shown)
		frames = append(frames, sent...)
	}
	return all, frames
}

// judgedVariants are those that the release and the flag -real.budget have room for: a run with a budget judges the first two. A
// variant that no release is recorded with is judged and recorded only by name: then somebody looks at what it shows first.
func judgedVariants(t *testing.T) (variants []judging.Variant) {
	t.Helper()
	for i, v := range judging.Variants {
		recorded, err := judging.HasRecording(v)
		if err != nil {
			t.Fatal(err)
		}
		chosen := *variantsFlag == "" && recorded
		for name := range strings.SplitSeq(*variantsFlag, ",") {
			chosen = chosen || v.Name != "" && strings.HasPrefix(v.Name, name)
		}
		switch {
		case !chosen, *budgetFlag > 0 && i >= atOnce, v.Windows && !atLeast(hybridSince), (v.Adapters || v.APIs || v.Pooling) && !atLeast("0.14"):
		case i < atOnce && atLeast("0.14") && !atLeast("0.15"): // one of the requests ends the engine of vLLM 0.14
		default:
			variants = append(variants, v)
		}
	}
	return variants
}

func observePair(t *testing.T, variants []judging.Variant) (judging.Transcript, []judging.Frame) {
	t.Helper()
	var configs []engineConfig
	for _, v := range variants {
		configs = append(configs, judged(v))
	}
	shown, frames, failures := make([]judging.Transcript, len(variants)), make([][]judging.Frame, len(variants)), make([]error, len(variants))
	var wg sync.WaitGroup
	engines := startEngines(t, configs...)
	for i, e := range engines {
		adapters := [2]string{writeAdapter(t, 1), writeAdapter(t, 2)}
		wg.Go(func() {
			local := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port+variants[i].Rank) }
			target := judging.Target{URL: e.url, Events: local(e.events), Replay: local(e.replay), Model: e.dir, Adapters: adapters,
				Terminate: e.terminate, QueueLimits: atLeast("0.29")}
			shown[i], frames[i], failures[i] = judging.Observe(t.Context(), target, variants[i])
		})
	}
	wg.Wait()
	for _, e := range engines {
		e.stop() // the next pair needs the places
	}
	if err := errors.Join(failures...); err != nil {
		t.Fatal(err)
	}
	all, sent := judging.Transcript{}, []judging.Frame(nil)
	for i := range variants {
		maps.Copy(all, shown[i])
		sent = append(sent, frames[i]...)
	}
	return all, sent
}

// judged is how the engine of a variant is started.
func judged(v judging.Variant) engineConfig {
	maxModelLen, blocks := v.Context()
	config := engineConfig{blocks: blocks, worker: true, flags: []string{"--max-model-len", strconv.Itoa(maxModelLen)}}
	if v.Key != "" {
		config.flags = append(config.flags, "--api-key", v.Key)
	}
	if v.Adapters {
		config.flags = append(config.flags, "--enable-lora", "--max-lora-rank", "8", "--max-loras", "2")
		config.env = []string{"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"}
	}
	if v.Windows {
		config.model = "hybrid"
	}
	if v.Rank > 0 {
		config.ranks = 2
	}
	if v.Pooling {
		config.flags = append(config.flags, "--runner", "pooling", "--convert", "embed")
	}
	if !v.Bounded() {
		config.flags = append(config.flags, noScaleOut)
		return config
	}
	if v.APIs {
		config.flags = append(config.flags, "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
	} else {
		config.env = []string{"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0"}
		config.flags = append(config.flags, "--no-enable-prompt-tokens-details")
	}
	config.flags = append(config.flags, "--max-num-seqs", "2")
	if atLeast("0.18") {
		config.flags = append(config.flags, "--shutdown-timeout", "5")
	}
	if atLeast("0.29") {
		config.flags = append(config.flags, "--max-num-queued-reqs", "2")
	}
	return config
}
