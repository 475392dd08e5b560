package judge

import (
	"bufio"
	"bytes"
	"cmp"
	"embed"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// recorded are the transcripts of real engines. That of the newest release is complete; each other one is written as its
// changes against the next newer one, so that a file shows what a release has changed.
//
//go:embed testdata
var recorded embed.FS

// Recordings read testdata of this package; FramesDir is where the frames lie, seen from the root of the repository.
const (
	transcriptsDir = "testdata"
	FramesDir      = "internal/vllm/testdata/recorded"
)

// Releases lists the recorded releases, newest first.
func Releases() ([]string, error) {
	entries, err := recorded.ReadDir(transcriptsDir)
	if err != nil {
		return nil, fmt.Errorf("listing recordings: %w", err)
	}
	var list []string
	for _, e := range entries {
		if release, ok := strings.CutSuffix(e.Name(), ".txt"); ok {
			list = append(list, release)
		}
	}
	slices.SortFunc(list, func(a, b string) int { return cmp.Compare(number(b), number(a)) })
	return list, nil
}

func number(release string) vllmsim.Release {
	r, err := vllmsim.ParseRelease(release)
	if err != nil {
		return 0 // newer than the simulator knows would be an error elsewhere
	}
	return r
}

// Recording is the transcript of a recorded release.
func Recording(release string) (Transcript, error) {
	list, err := Releases()
	if err != nil {
		return nil, err
	}
	var t Transcript
	for _, name := range list {
		data, err := recorded.ReadFile(transcriptsDir + "/" + name + ".txt")
		if err != nil {
			return nil, fmt.Errorf("reading a recording: %w", err)
		}
		if t, err = Read(bytes.NewReader(data), t); err != nil {
			return nil, fmt.Errorf("recording %s: %w", name, err)
		}
		if name == release {
			return t, nil
		}
	}
	return nil, fmt.Errorf("no recording of release %s", release)
}

// HasRecording reports whether any release is recorded with the variant.
func HasRecording(v Variant) (bool, error) {
	list, err := Releases()
	if err != nil {
		return false, err
	}
	for _, release := range list {
		t, err := Recording(release)
		if err != nil || slices.Contains(t.Variants(), v) {
			return err == nil, err
		}
	}
	return false, nil
}

// Record writes what an engine of a release has shown into the repository at root: its transcript, those of the next
// older release, which is written as changes against it, and its frames. Of variants that it has not shown, what was recorded
// before stays.
func Record(root, release string, t Transcript, frames []Frame) error {
	list, err := Releases()
	if err != nil {
		return err
	}
	path := filepath.Join(root, FramesDir, release+".txt")
	if slices.Contains(list, release) {
		before, err := Recording(release)
		if err != nil {
			return err
		}
		sent, err := ReadFrames(path)
		if err != nil {
			return err
		}
		t, frames = merge(before, t), mergeFrames(sent, frames)
	}
	all := map[string]Transcript{release: t}
	for _, name := range list {
		if name != release {
			if all[name], err = Recording(name); err != nil {
				return err
			}
		}
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(number(b), number(a)) })
	var base Transcript
	for _, name := range names {
		var b bytes.Buffer
		if err := all[name].Write(&b, base); err != nil {
			return fmt.Errorf("writing the recording of %s: %w", name, err)
		}
		base = all[name]
		if err := os.WriteFile(filepath.Join(root, "test/real/judge", transcriptsDir, name+".txt"), b.Bytes(), 0o644); err != nil {
			return fmt.Errorf("writing the recording of %s: %w", name, err)
		}
	}
	return writeFrames(path, frames)
}

// merge returns what was recorded before, with the variants of now in place of those.
func merge(before, now Transcript) Transcript {
	kept := slices.DeleteFunc(before.Variants(), func(v Variant) bool { return slices.Contains(now.Variants(), v) })
	all := before.of(kept...)
	maps.Copy(all, now)
	return all
}

// mergeFrames does the same with frames, and sorts them by variant.
func mergeFrames(before, now []Frame) (all []Frame) {
	for _, v := range Variants {
		of := func(list []Frame) []Frame {
			return slices.DeleteFunc(slices.Clone(list), func(f Frame) bool { return !v.has(f.Case) })
		}
		if sent := of(now); len(sent) > 0 {
			all = append(all, sent...)
		} else {
			all = append(all, of(before)...)
		}
	}
	return all
}

// writeFrames writes messages one a line: the number, the payload in hexadecimal digits, and the case.
func writeFrames(path string, frames []Frame) error {
	var b bytes.Buffer
	for _, f := range frames {
		fmt.Fprintf(&b, "%d %x %s\n", f.Seq, f.Payload, f.Case)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("writing recorded frames: %w", err)
	}
	return nil
}

// ReadFrames reads a file of recorded frames.
func ReadFrames(path string) ([]Frame, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading recorded frames: %w", err)
	}
	var out []Frame
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		seq, rest, _ := strings.Cut(lines.Text(), " ")
		digits, name, ok := strings.Cut(rest, " ")
		n, errSeq := strconv.ParseUint(seq, 10, 64)
		payload, errHex := hex.DecodeString(digits)
		if !ok || errSeq != nil || errHex != nil {
			return nil, fmt.Errorf("reading recorded frames: %s: line %q", path, lines.Text())
		}
		out = append(out, Frame{Case: name, Seq: n, Payload: payload})
	}
	return out, lines.Err()
}
