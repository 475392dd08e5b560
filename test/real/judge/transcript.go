package judge

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Observation is what one case has shown: values by path, as "body.usage.prompt_tokens" and "37".
type Observation map[string]string

// Transcript is what an engine has shown, by case.
type Transcript map[string]Observation

// set notes a value. A path that occurs again with another value keeps both, in order.
func (o Observation) set(path, value string) {
	if old, ok := o[path]; ok && old != value {
		if slices.Contains(strings.Split(old, " | "), value) {
			return
		}
		value = old + " | " + value
	}
	o[path] = value
}

// of returns the cases of some variants.
func (t Transcript) of(variants ...Variant) Transcript {
	out := Transcript{}
	for name, o := range t {
		for _, v := range variants {
			if v.has(name) {
				out[name] = o
			}
		}
	}
	return out
}

// without returns the cases of all other variants.
func (t Transcript) without(v Variant) Transcript {
	out := maps.Clone(t)
	maps.DeleteFunc(out, func(name string, _ Observation) bool { return v.has(name) })
	return out
}

// Variants are those that t has cases of.
func (t Transcript) Variants() (present []Variant) {
	for _, v := range Variants {
		if len(t.of(v)) > 0 {
			present = append(present, v)
		}
	}
	return present
}

// Judge compares what a release's engine has shown with what vllmsim shows when it simulates the release, with the model in dir.
// Models with windows are not simulated.
func Judge(ctx context.Context, release, dir string, engine Transcript) ([]Difference, error) {
	judged := slices.DeleteFunc(engine.Variants(), func(v Variant) bool { return v.Windows })
	simulated, err := simulateAll(ctx, release, dir, judged...)
	if err != nil {
		return nil, err
	}
	return Compare(engine.of(judged...), simulated), nil
}

// JudgeRecording compares an engine with the recording of its release, as far as both have shown the same variants.
func JudgeRecording(engine, recorded Transcript) []Difference {
	both := slices.DeleteFunc(engine.Variants(), func(v Variant) bool { return !slices.Contains(recorded.Variants(), v) })
	return Compare(engine.of(both...), recorded.of(both...))
}

// absent marks a path that one side lacks.
const absent = "(absent)"

// Difference is a path of a case at which two transcripts differ.
type Difference struct {
	Case, Path string
	// Real is the engine's value and Sim that of the simulator; either can be absent.
	Real, Sim string
}

// String is one line of a report.
func (d Difference) String() string {
	return fmt.Sprintf("%s: %s: the engine says %s, the simulator %s", d.Case, d.Path, d.Real, d.Sim)
}

// Compare lists the differences of two transcripts in order of case and path.
func Compare(engine, sim Transcript) []Difference {
	var out []Difference
	for _, name := range sortedUnion(engine, sim) {
		one, other := engine[name], sim[name]
		for _, path := range sortedUnion(one, other) {
			d := Difference{Case: name, Path: path, Real: absent, Sim: absent}
			if v, ok := one[path]; ok {
				d.Real = v
			}
			if v, ok := other[path]; ok {
				d.Sim = v
			}
			if d.Real != d.Sim {
				out = append(out, d)
			}
		}
	}
	return out
}

func sortedUnion[M ~map[string]V, V any](a, b M) []string {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	return slices.Compact(keys)
}

// notShown marks the name of a variant that base has and t has not, without its end.
const (
	notShown = "-- "
	nameEnds = ": "
)

// Write writes t as text, as its changes against base, which can be nil: "== case" begins a case, "path = value" is a
// value, "path -" one that base has and t has not, and "-- variant" a variant that t has no case of.
func (t Transcript) Write(w io.Writer, base Transcript) error {
	out := bufio.NewWriter(w)
	last := ""
	for _, v := range base.Variants() {
		if len(t.of(v)) == 0 {
			fmt.Fprintf(out, "%s%s\n", notShown, strings.TrimSuffix(v.Name, nameEnds))
			base = base.without(v)
		}
	}
	for _, d := range Compare(t, base) {
		if d.Case != last {
			fmt.Fprintf(out, "== %s\n", d.Case)
			last = d.Case
		}
		if d.Real == absent {
			fmt.Fprintf(out, "%s -\n", d.Path)
		} else {
			fmt.Fprintf(out, "%s = %s\n", d.Path, d.Real)
		}
	}
	return out.Flush()
}

// Read reads what Write has written; base is the one that was given to it and is not changed.
func Read(r io.Reader, base Transcript) (Transcript, error) {
	t := Transcript{}
	for name, o := range base {
		t[name] = maps.Clone(o)
	}
	var o Observation
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if name, ok := strings.CutPrefix(line, notShown); ok {
			t = t.without(Variant{Name: name + nameEnds})
			continue
		}
		if name, ok := strings.CutPrefix(line, "== "); ok {
			if t[name] == nil {
				t[name] = Observation{}
			}
			o = t[name]
			continue
		}
		path, value, isValue := strings.Cut(line, " = ")
		gone, isGone := strings.CutSuffix(line, " -")
		switch {
		case o == nil || !isValue && !isGone:
			return nil, fmt.Errorf("reading a transcript: unexpected line %q", line)
		case isValue:
			o[path] = value
		default:
			delete(o, gone)
		}
	}
	maps.DeleteFunc(t, func(_ string, o Observation) bool { return len(o) == 0 })
	return t, lines.Err()
}
