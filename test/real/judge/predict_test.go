package judge

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// keyTokens are in one key of the index: the engines' blocks are two keys.
const keyTokens = 16

// unknowable are the steps before which no message shows what the engine will find, with the reason.
var unknowable = map[string]string{
	"a prompt for the other weights": "events name the adapter only; pickers find in the list of models that its weights have changed",
}

// TestRecordedEventsPredictWhatTheEngineFound gives the recorded messages of each release to an index, in the order in which the
// engine has sent them, and looks each prompt up before its own messages arrive. What is found is what the engine has then
// counted as found: over repeated, longer and salted prompts, evictions, resets, adapters, a rank of two, and layers with windows.
func TestRecordedEventsPredictWhatTheEngineFound(t *testing.T) {
	releases, err := Releases()
	if err != nil {
		t.Fatal(err)
	}
	for _, release := range releases {
		shown, err := Recording(release)
		if err != nil {
			t.Fatal(err)
		}
		frames, err := ReadFrames(filepath.Join("../../..", FramesDir, release+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range shown.Variants() {
			if v.APIs || v.Pooling {
				continue // no step of theirs is about the cache
			}
			t.Run(strings.TrimSuffix(strings.TrimSpace(release+" "+v.Name), ":"), func(t *testing.T) { follows(t, v, shown, frames) })
		}
	}
}

// follows plays one engine.
func follows(t *testing.T, v Variant, shown Transcript, frames []Frame) {
	index, hits := newFollowed(t), 0
	j := judge{Variant: v}
	for _, s := range j.cached() {
		seen := shown[v.Name+"cache: "+s.name]
		if s.path == "" && seen["status"] == "200" {
			found := 0
			if text, ok := seen["counted vllm:prefix_cache_hits_total"]; ok {
				if _, err := fmt.Sscan(text, &found); err != nil {
					t.Fatal(err)
				}
			}
			if predicted := index.predicts(s); predicted != found && unknowable[s.name] == "" && !clears(frames, v.Name+s.name) {
				t.Errorf("%s: predicted %d of %d tokens, the engine found %d", s.name, predicted, len(s.prompt), found)
			}
			hits += found
		}
		for _, f := range frames {
			if f.Case == v.Name+s.name {
				index.take(f)
			}
		}
	}
	if hits == 0 {
		t.Error("the engine found nothing of any prompt: the recording shows nothing")
	}
}

// clears reports whether the first message of a step begins with a reset: the engine had not announced it before. An idle rank of
// several announces a reset with its next step only.
func clears(frames []Frame, step string) bool {
	i := slices.IndexFunc(frames, func(f Frame) bool { return f.Case == step })
	return i >= 0 && bytes.Contains(frames[i].Payload[:min(len(frames[i].Payload), 40)], []byte("AllBlocksCleared"))
}

// followed is an index that follows one engine.
type followed struct {
	index  *kvindex.Index
	holder kvindex.Holder
	seed   kvblock.Seed
	stream *events.Stream
}

func newFollowed(t *testing.T) *followed {
	seed, err := kvblock.NewSeed([]byte(strings.Repeat("s", kvblock.MinSeedBytes)))
	if err != nil {
		t.Fatal(err)
	}
	f := &followed{index: kvindex.NewIndex(kvindex.Options{}), seed: seed}
	f.holder = f.index.Join()
	f.stream = events.NewStream(events.Feed{
		Engine: "VLLM", Keys: events.Keys{Model: Model, Seed: seed, BlockTokens: keyTokens}, Writer: f.index.Writer(f.holder),
	}, events.Config{})
	f.stream.Up(t.Context())
	return f
}

// take applies a message.
func (f *followed) take(frame Frame) {
	f.stream.Take([][]byte{nil, binary.BigEndian.AppendUint64(nil, frame.Seq), frame.Payload})
	for f.stream.Work() {
	}
}

// predicts is how many tokens of a step's prompt the engine holds by its events, in whole blocks and without the last token.
func (f *followed) predicts(s cacheStep) int {
	if strings.Contains(s.fields, "prompt_logprobs") {
		return 0 // the engine does not look
	}
	model, salt, ids := Model, "", make([]uint32, len(s.prompt))
	for name := range strings.FieldsFuncSeq(s.fields, func(r rune) bool { return strings.ContainsRune(`, ":`, r) }) {
		switch name {
		case "tuned", "other":
			model = name
		case "salt":
			salt = name
		}
	}
	for i, id := range s.prompt {
		ids[i] = uint32(id)
	}
	usable := (len(ids) - 1) / keyTokens
	keys := kvblock.AppendKeys(nil, f.seed.Root(model, salt), ids, keyTokens)
	var found [1]kvindex.Match
	f.index.Match(keys[:min(len(keys), usable)], []kvindex.Holder{f.holder}, found[:])
	match := found[0].Whole(usable, BlockSize/keyTokens)
	return match.Blocks() * keyTokens
}
