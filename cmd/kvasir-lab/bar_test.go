package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestLongWorkOfTheLabShowsABarOnTerminalsOnly: on standard error, from none of the runs to all of them.
func TestLongWorkOfTheLabShowsABarOnTerminalsOnly(t *testing.T) {
	for args, all := range map[string]string{
		"run --workload chat --requests 100 --policies MarginalCost,RoundRobin --seeds 1,2 -o json": "4",
		"effect --of adapters --requests 100 --seeds 1,2 -o json":                                   "4",
		"effect --of shadow --workload chat --requests 100 --seeds 1 -o json":                       "8",
		"overload --workloads rag,chat --horizon 5s --pods 1 --seeds 1 -o json":                     "2",
	} {
		on := func(live bool) (shown, printed string) {
			var out, errs bytes.Buffer
			if status := run(t.Context(), strings.Fields(args), stdio{In: strings.NewReader(""), Out: &out, Err: &errs, Live: live}); status != 0 {
				t.Fatalf("%s: status %d, %s", args, status, &errs)
			}
			return errs.String(), out.String()
		}
		shown, printed := on(true)
		if !strings.HasPrefix(shown, "\r["+strings.Repeat(".", 24)+"] 0 of "+all+" runs") || strings.Count(shown, "\n") != 1 ||
			!strings.Contains(shown[strings.LastIndex(shown, "\r"):], "] "+all+" of "+all+" runs") {
			t.Errorf("%s: on a terminal %q", args, shown)
		}
		if strings.Contains(printed, "\r") {
			t.Errorf("%s: the bar is on standard output", args)
		}
		if shown, _ := on(false); shown != "" {
			t.Errorf("%s: elsewhere %q", args, shown)
		}
	}
}
