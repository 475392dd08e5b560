//go:build unix

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/sim/trace"
)

// programs is a directory with files of the programs' names.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"picker", "vllmsim"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho broken >&2\nexit 1\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFlagsThatCannotBeAreRefused(t *testing.T) {
	bin := programs(t)
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no strategy":           {[]string{"--strategy", " ,"}, "0 strategies"},
		"too many strategies":   {[]string{"--strategy", "a,b,c,d,e,f,g,h,i"}, "9 strategies"},
		"an unknown strategy":   {[]string{"--strategy", "BestGuess"}, `there is no strategy "BestGuess"`},
		"a strategy twice":      {[]string{"--strategy", "Random,Random"}, "Random twice"},
		"no time":               {[]string{"--duration", "0s"}, "--duration"},
		"negative requests":     {[]string{"--requests", "-1"}, "--requests"},
		"no speed":              {[]string{"--speed-up", "0"}, "--speed-up"},
		"a speed that is none":  {[]string{"--speed-up", "NaN"}, "--speed-up"},
		"no rate":               {[]string{"--rate", "0"}, "--rate"},
		"negative chats":        {[]string{"--chats", "-1"}, "--chats"},
		"no pods":               {[]string{"--pods", "0"}, "--pods"},
		"a cache too small":     {[]string{"--kv-tokens", "100000"}, "--kv-tokens"},
		"all pods prefill":      {[]string{"--pods", "4", "--prefillers", "4"}, "--prefillers"},
		"roles that are kept":   {[]string{"--prefillers", "1", "--keep"}, "--keep"},
		"no streaming":          {[]string{"--stream-interval", "0"}, "--stream-interval"},
		"programs not built":    {[]string{"--bin", filepath.Join(bin, "none")}, "picker"},
		"an unexpected word":    {[]string{"now"}, `"now"`},
		"a flag that is none":   {[]string{"--colour"}, "colour"},
		"a cut without a trace": {[]string{"cut", "--to", "x"}, "--from"},
	} {
		t.Run(name, func(t *testing.T) {
			args := tc.args
			if args[0] != "cut" && args[0] != "--bin" {
				args = append([]string{"--bin", bin}, args...)
			}
			var out, errs strings.Builder
			if code := command(context.Background(), args, &out, &errs); code != exitFailed || !strings.Contains(errs.String(), tc.want) {
				t.Errorf("exit code %d, %q; want %d and %q", code, errs.String(), exitFailed, tc.want)
			}
		})
	}
}

func TestHelpIsNoFailure(t *testing.T) {
	var out, errs strings.Builder
	if code := command(context.Background(), []string{"--help"}, &out, &errs); code != 0 || !strings.Contains(errs.String(), "-speed-up") {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
}

func TestWorkloadIsTheTracesBeginningAtItsRate(t *testing.T) {
	list := []trace.Request{{Timestamp: 0}, {Timestamp: 0}, {Timestamp: 3000}, {Timestamp: 6000}, {Timestamp: 9000}}
	o := options{duration: time.Second, speedUp: 4, rate: 2} // 4 s of model time, 8 s of the trace
	for name, tc := range map[string]struct {
		limit int
		want  []time.Duration
	}{
		"bounded by time":     {0, []time.Duration{375 * time.Millisecond, 1125 * time.Millisecond, 2250 * time.Millisecond, 3750 * time.Millisecond}},
		"bounded by requests": {2, []time.Duration{375 * time.Millisecond, 1125 * time.Millisecond}},
	} {
		t.Run(name, func(t *testing.T) {
			o := o
			o.requests = tc.limit
			requests, arrivals := o.workload(list)
			if diff := cmp.Diff(tc.want, arrivals); diff != "" || len(requests) != len(arrivals) {
				t.Errorf("%d requests, arrivals %s", len(requests), diff)
			}
		})
	}
}

func TestDefaultsTakeNoMoreThanTheSliceHas(t *testing.T) {
	o, err := parseOptions([]string{"--bin", programs(t)}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := o.plan()
	if err != nil {
		t.Fatal(err)
	}
	list, err := trace.Slice()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(plan.Trace); n == 0 || n == len(list) {
		t.Errorf("%d of the slice's %d requests are replayed", n, len(list))
	}
	if plan.Chat.Requests() == 0 {
		t.Error("there are no chats")
	}
}

func TestAProgramThatDiesEndsTheDemoAndLeavesNoFiles(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var out, errs strings.Builder
	code := command(context.Background(), []string{"--bin", programs(t), "--out", filepath.Join(t.TempDir(), "out")}, &out, &errs)
	if code != exitFailed || !strings.Contains(errs.String(), "broken") {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("%s is left", left[0].Name())
	}
}

func TestCutWritesTheSliceOfATrace(t *testing.T) {
	dir := t.TempDir()
	whole, part := filepath.Join(dir, "whole"), filepath.Join(dir, "part")
	const text = `{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [0]}
{"timestamp": 60000, "input_length": 600, "output_length": 5, "hash_ids": [7, 9]}
{"timestamp": 120000, "input_length": 5, "output_length": 5, "hash_ids": [3]}
`
	if err := os.WriteFile(whole, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs strings.Builder
	args := []string{"cut", "--from", whole, "--to", part, "--start", "1m", "--length", "1m"}
	if code := command(context.Background(), args, &out, &errs); code != 0 {
		t.Fatalf("exit code %d, %s", code, errs.String())
	}
	packed, err := os.ReadFile(part)
	if err != nil {
		t.Fatal(err)
	}
	got, err := trace.ReadGzip(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	want := []trace.Request{{Timestamp: 0, Input: 600, Output: 5, Blocks: []int{0, 1}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(out.String(), "1 of 3 requests") {
		t.Error(out.String())
	}
}
