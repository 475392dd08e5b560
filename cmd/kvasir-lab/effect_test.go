package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/sim/lab"
)

// TestLabCommandsPrintWhatTheyMeasure runs each experiment small, as JSON.
func TestLabCommandsPrintWhatTheyMeasure(t *testing.T) {
	for args, variants := range map[string]int{
		"effect --of exchange --workload chat --requests 200 --seeds 1 -o json": 5,
		"effect --of spread --requests 200 --seeds 1 -o json":                   4,
		"effect --of adapters --requests 200 --seeds 1,2 -o json":               2,
		"effect --of islands --requests 200 --seeds 1 -o json":                  4,
		"effect --of shadow --workload chat --requests 200 --seeds 1 -o json":   7,
	} {
		status, out, errs := exec(t, "", strings.Fields(args)...)
		var got struct {
			Results []lab.Effect `json:"results"`
		}
		if err := json.Unmarshal([]byte(out), &got); status != 0 || err != nil || len(got.Results) != variants || got.Results[0].Relative != 1 {
			t.Errorf("%s: status %d, %v, %s%s", args, status, err, out, errs)
		}
	}
	status, out, errs := exec(t, "", strings.Fields("overload --workloads rag --horizon 20s --pods 1 --seeds 1 -o json")...)
	var got struct {
		Results []lab.Pressured `json:"results"`
	}
	if err := json.Unmarshal([]byte(out), &got); status != 0 || err != nil || len(got.Results) != 1 || got.Results[0].On.Offered < 2*got.Results[0].Saturated.Offered {
		t.Errorf("status %d, %v, %s%s", status, err, out, errs)
	}
	status, out, errs = exec(t, "", strings.Fields("routes --requests 200 --seeds 1 -o json")...)
	var routes struct {
		Results []lab.RouteScore `json:"results"`
	}
	if err := json.Unmarshal([]byte(out), &routes); status != 0 || err != nil || len(routes.Results) != 5 || routes.Results[4].Requests != 200 {
		t.Errorf("status %d, %v, %s%s", status, err, out, errs)
	}
	for _, wrong := range []string{"routes --patience 0s", "routes --seeds x", "routes -o html", "effect --of nothing", "overload --max-slowdown 1", "overload --tenants a", "run --exchange maybe"} {
		if status, _, _ := exec(t, "", strings.Fields(wrong)...); status != 2 {
			t.Errorf("%s: status %d", wrong, status)
		}
	}
}

// TestLabRunTakesADecisionLog: as it takes traces.
func TestLabRunTakesADecisionLog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "decisions.jsonl")
	line := `{"timestamp":1700000000000,"input_length":600,"output_length":9,"hash_ids":[11,12],"pool":"p","model":"m","strategy":"MarginalCost","tokens":"exact","candidates":[],"scored":2,"attempt":0,"outcome":"completed","cached":0,"waited_ms":0,"duration_ms":5}` + "\n"
	if err := os.WriteFile(file, []byte(line+strings.Replace(line, "1700000000000", "1700000009000", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	status, out, errs := exec(t, "", "run", "--trace", file, "--policies", "MarginalCost", "--pickers", "2", "-o", "json")
	var got lab.Report
	if err := json.Unmarshal([]byte(out), &got); status != 0 || err != nil || got.Results[0].Requests != 2 || got.Results[0].HitRatio < 0.4 {
		t.Errorf("status %d, %v, %s%s", status, err, out, errs)
	}
}

// TestBadLinesOfALogAreTold: the others are played; a log that has no others is an error.
func TestBadLinesOfALogAreTold(t *testing.T) {
	file := filepath.Join(t.TempDir(), "decisions.jsonl")
	line := `{"timestamp":1700000000000,"input_length":600,"output_length":0,"hash_ids":[11,12],"pool":"p","model":"m","strategy":"MarginalCost","outcome":"completed"}` + "\n"
	for text, want := range map[string]string{
		line + line[:40] + "\n" + line: "line 2: ",
		line[:40] + "\n":               "line 1: ",
		"":                             "no requests",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		status, out, errs := exec(t, "", "run", "--trace", file, "--policies", "RoundRobin", "-o", "json")
		if (status == 0) != strings.Contains(text, "\n"+line) || !strings.Contains(errs, want) {
			t.Errorf("%q: status %d, said %q, wrote %q", text, status, errs, out)
		}
	}
}

// TestASeedDrawsTheSameWorkloadInARunAndInASweep, and another seed another one.
func TestASeedDrawsTheSameWorkloadInARunAndInASweep(t *testing.T) {
	common := "--requests 60 --pods 2 --policies LMetric --block-tokens 128 -o json"
	status, out, errs := exec(t, "", strings.Fields("sweep --traces testdata/trace.jsonl --workloads chat --kv-tokens 0 --profiles 8b-h100 --loads 0.5 --seeds 1,2 "+common)...)
	var sweep struct {
		Configurations []lab.Cell `json:"configurations"`
	}
	if err := json.Unmarshal([]byte(out), &sweep); status != 0 || err != nil || len(sweep.Configurations) != 2 {
		t.Fatalf("status %d, %v, %s", status, err, errs)
	}
	for i, source := range []string{"--trace testdata/trace.jsonl", "--workload chat"} {
		cell := &sweep.Configurations[i]
		var runs []*lab.Result
		for j, speed := range cell.Speeds {
			status, out, errs := exec(t, "", strings.Fields(fmt.Sprintf("run %s --speed %v --seeds %d %s", source, speed, j+1, common))...)
			var run lab.Report
			if err := json.Unmarshal([]byte(out), &run); status != 0 || err != nil || len(run.Results) != 1 {
				t.Fatalf("status %d, %v, %s", status, err, errs)
			}
			runs = append(runs, run.Results...)
		}
		a, b := runs[0], runs[1]
		if mean := (a.TTFTSeconds.Mean + b.TTFTSeconds.Mean) / 2; math.Abs(mean-cell.Scores[0].TTFTMean) > 1e-9 {
			t.Errorf("%s: a mean of %v, in the sweep %v", source, mean, cell.Scores[0].TTFTMean)
		}
		if a.TTFTSeconds == b.TTFTSeconds || source == "--workload chat" && a.HitRatio == b.HitRatio {
			t.Errorf("%s: seeds 1 and 2 gave hits of %v and %v in %+v and %+v", source, a.HitRatio, b.HitRatio, a.TTFTSeconds, b.TTFTSeconds)
		}
	}
	status, out, errs = exec(t, "", strings.Fields("run --workload chat --seeds 1,2 "+common)...)
	var both lab.Report
	if err := json.Unmarshal([]byte(out), &both); status != 0 || err != nil || len(both.Results) != 2 || both.Results[0].HitRatio == both.Results[1].HitRatio {
		t.Errorf("status %d, %v, %s: two seeds of one command gave %s", status, err, errs, out)
	}
}

// TestEveryFlagOfARunIsObeyed, and JSON has the fields that others read.
func TestEveryFlagOfARunIsObeyed(t *testing.T) {
	args := "run --trace testdata/trace.jsonl --pods 3 --kv-tokens 200000 --profile 70b-tp4-h100 --speed 2 --policies MarginalCost,LMetric --pickers 2 --event-lag 50ms --max-turns 1 --seeds 3,4 --drop-report"
	status, out, errs := exec(t, "", strings.Fields(args+" -o json")...)
	type times struct{ Mean, P50, P90, P99 *float64 }
	var got struct {
		Setup   lab.Setup
		Results []struct {
			Strategy                *string
			Requests, Shed          *int
			HitRatio, Imbalance     *float64
			TTFTSeconds, E2ESeconds times
			Seed                    *uint64
			RequestsPerPod          []int
			Dropped                 lab.Dropped
		}
		Bounds struct{ InfiniteCacheHitRatio, PooledLRUHitRatio *float64 }
	}
	if err := json.Unmarshal([]byte(out), &got); status != 0 || err != nil || len(got.Results) != 4 {
		t.Fatalf("status %d, %v, %s%s", status, err, out, errs)
	}
	for _, name := range strings.Fields("results strategy requests shed hitRatio ttftSeconds mean p50 p90 p99 e2eSeconds imbalance seed bounds infiniteCacheHitRatio pooledLRUHitRatio") {
		if !strings.Contains(out, `"`+name+`":`) {
			t.Errorf("no field %s in %s", name, out)
		}
	}
	s := got.Setup
	if s.Pods != 3 || s.KVTokens != 200_000 || s.Profile != "70b-tp4-h100" || s.Speed != 2 || s.Pickers != 2 || s.EventLag.String() != "50ms" {
		t.Errorf("setup %+v", s)
	}
	if got.Bounds.InfiniteCacheHitRatio == nil || got.Bounds.PooledLRUHitRatio == nil {
		t.Errorf("no bounds in %s", out)
	}
	for i, r := range got.Results {
		if r.Strategy == nil || r.Requests == nil || r.Shed == nil || r.HitRatio == nil || r.Imbalance == nil || r.Seed == nil || r.TTFTSeconds.P99 == nil || r.E2ESeconds.P50 == nil {
			t.Fatalf("result %d lacks something: %s", i, out)
		}
		if want := []string{"MarginalCost", "LMetric"}[i/2]; *r.Strategy != want || *r.Seed != uint64(3+i%2) || len(r.RequestsPerPod) != 3 {
			t.Errorf("result %d: %s, seed %d, %d pods", i, *r.Strategy, *r.Seed, len(r.RequestsPerPod))
		}
		if *r.Requests != s.Requests || s.Requests > s.Sessions || r.Dropped.Turns == 0 {
			t.Errorf("result %d: %d requests of %d in %d sessions, dropped %+v: want one turn of each", i, *r.Requests, s.Requests, s.Sessions, r.Dropped)
		}
	}
	if _, out, _ := exec(t, "", strings.Fields(args)...); !strings.Contains(out, "beyond the turns of a session") {
		t.Errorf("no report of what was dropped: %s", out)
	}
	if _, out, _ := exec(t, "", strings.Fields(args+" -o html")...); strings.Count(out, "<svg") != 4 {
		t.Errorf("%d charts", strings.Count(out, "<svg"))
	}
}
