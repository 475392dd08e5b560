//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/hack/demo/cpu"
	"github.com/kvasir-dev/kvasir/hack/demo/summary"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// apart sends everything through the pods without roles, and then through the same pods, where some prefill for the others. It
// fails with a *wrongError if a request failed or none was handed over. Hits are not compared: the pods that decode count what they have
// loaded as found.
func (s *session) apart(ctx context.Context) error {
	var wrong, rows []string
	for _, prefillers := range []int{0, s.prefillers} {
		name := "no roles"
		if prefillers > 0 {
			name = fmt.Sprintf("%d prefill, %d decode", prefillers, s.pods-prefillers)
		}
		samples, err := s.runApart(ctx, name, prefillers)
		if err != nil {
			return err
		}
		row := apartRow{name: name, Summary: summary.Of(samples)}
		row.add(samples)
		rows = append(rows, row.String())
		if row.Errors > 0 {
			wrong = append(wrong, fmt.Sprintf("%s: %d of %d requests failed, the first with: %s",
				row.name, row.Errors, row.Requests, row.FirstError))
		}
		if (row.handedOver > 0) != (prefillers > 0) {
			wrong = append(wrong, fmt.Sprintf("%s: %d requests were handed over", row.name, row.handedOver))
		}
	}
	s.say("\n%s%s\nTimes are in the engines' model time; the time of a token is the mean of each answer after its first one.\n",
		apartHead, strings.Join(rows, ""))
	if len(wrong) > 0 {
		return &wrongError{sentences: wrong}
	}
	return nil
}

// runApart starts a fleet, sends everything through it and ends it.
func (s *session) runApart(ctx context.Context, title string, prefillers int) (samples []summary.Sample, err error) {
	f, err := s.start(ctx, fmt.Sprintf("prefill-%d", prefillers), string(policy.MarginalCost), prefillers)
	if err != nil {
		return nil, err
	}
	defer func() {
		_, _, stopErr := f.Stop()
		err = errors.Join(err, stopErr)
	}()
	meter := cpu.Start(ctx)
	defer meter.Stop()
	return s.drive(ctx, title, string(policy.MarginalCost), f, meter)
}

const apartHead = "                      REQUESTS  ERRORS  HANDED OVER  TTFT P50      P90      P99  TOKEN P50      P90      P99  END MEAN\n"

// apartRow is the result of a run.
type apartRow struct {
	name string
	*summary.Summary
	handedOver int
	tokens     []time.Duration // the mean time of a token of each answer with several, ascending
	end        time.Duration   // mean
}

// add measures what a summary does not have.
func (r *apartRow) add(samples []summary.Sample) {
	answered := 0
	for i := range samples {
		x := &samples[i]
		if x.Err != "" {
			continue
		}
		answered++
		r.end += x.Total
		if x.Prefiller != "" {
			r.handedOver++
		}
		if x.Answer > 1 {
			r.tokens = append(r.tokens, (x.Total-x.TTFT)/time.Duration(x.Answer-1))
		}
	}
	slices.Sort(r.tokens)
	r.end /= time.Duration(max(1, answered))
}

func (r *apartRow) String() string {
	line := fmt.Sprintf("%-20s  %8d  %6d  %11d", r.name, r.Requests, r.Errors, r.handedOver)
	for i, q := range []float64{0.5, 0.9, 0.99} {
		line += fmt.Sprintf("  %*s", [...]int{8, 7, 7}[i], r.Quantile(q).Round(time.Millisecond))
	}
	for i, q := range []float64{0.5, 0.9, 0.99} {
		line += fmt.Sprintf("  %*s", [...]int{9, 7, 7}[i], summary.Quantile(r.tokens, q).Round(100*time.Microsecond))
	}
	return line + fmt.Sprintf("  %8s\n", r.end.Round(10*time.Millisecond))
}
