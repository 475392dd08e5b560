package main

import (
	"bytes"
	"strings"
	"testing"
)

// exec runs the program on input and returns what it wrote.
func exec(t *testing.T, input string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), args, stdio{In: strings.NewReader(input), Out: &out, Err: &errs})
	return status, out.String(), errs.String()
}

func TestCommandLine(t *testing.T) {
	for args, tc := range map[string]struct {
		status int
		out    string
	}{
		"":            {2, "a command is missing"},
		"bake":        {2, `unknown command "bake"`},
		"run x":       {2, `unexpected argument "x"`},
		"--help":      {0, "overload"},
		"run --help":  {0, "kvasir-lab run --policies five"},
		"--version":   {0, "kvasir-lab "},
		"version":     {0, "kvasir-lab "},
		"run --traec": {2, "; see 'kvasir-lab run --help'\n"},

		"run --stall 30s":                          {2, `--stall is "30s", want AT:FOR`},
		"run --stall 30s:-1s":                      {2, "want AT:FOR"},
		"run --requests 20 --stall 0s:5s -o json":  {0, `"results"`},
		"effect --of exchange --admission perhaps": {2, `--admission is "perhaps"`},

		"disaggregation --pods 1":        {2, "--prefillers: want numbers from 1 to fewer than the pods"},
		"disaggregation --prefillers 8":  {2, "--prefillers: want"},
		"disaggregation --loads 0":       {2, "--loads: 0 is not above 0"},
		"disaggregation --loads NaN":     {2, "--loads: NaN is not above 0"},
		"disaggregation --thresholds 0":  {2, "--thresholds: want numbers from 1 on"},
		"disaggregation --workloads tea": {2, "--workloads: "},
		"disaggregation --policy all":    {2, "is not one strategy"},
		"disaggregation --requests 0":    {2, "--requests must be above 0"},
		"disaggregation --seeds 1,":      {2, "--seeds: "},
		"disaggregation --workloads documents --requests 40 --pods 2 --prefillers 1 --loads 0.5 --seeds 1 --thresholds 512": {0, "from 512"},
	} {
		if status, out, errs := exec(t, "", strings.Fields(args)...); status != tc.status || !strings.Contains(out+errs, tc.out) {
			t.Errorf("%q: status %d, %s%s", args, status, out, errs)
		}
	}
	for _, c := range newRoot(stdio{}).Commands() {
		if c.Example == "" || !strings.Contains(c.Example, "  kvasir-lab "+c.Name()) {
			t.Errorf("the help of %s has no example", c.Name())
		}
	}
}
