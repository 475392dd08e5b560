//go:build unix

package main

import (
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/hack/demo/summary"
)

func TestARowHasTheTimesOfTokensAfterTheFirst(t *testing.T) {
	samples := []summary.Sample{
		{Answer: 11, TTFT: time.Second, Total: 2 * time.Second, Prefiller: "pod-0"},
		{Answer: 21, TTFT: 2 * time.Second, Total: 8 * time.Second},
		{Answer: 1, TTFT: time.Second, Total: time.Second},
		{Err: "broken", Total: time.Hour},
	}
	r := apartRow{name: "1 prefill, 3 decode", Summary: summary.Of(samples)}
	r.add(samples)
	const want = "1 prefill, 3 decode          4       1            1        1s       2s       2s      100ms    300ms    300ms     3.67s\n"
	if got := r.String(); got != want || len(got) != len(apartHead) {
		t.Errorf("\n%q, want\n%q; the head is\n%q", got, want, apartHead)
	}
}
