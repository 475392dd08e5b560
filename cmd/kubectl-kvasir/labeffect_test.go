package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/lab"
)

// TestLabCommandsPrintWhatTheyMeasure runs each experiment small, as JSON.
func TestLabCommandsPrintWhatTheyMeasure(t *testing.T) {
	for args, variants := range map[string]int{
		"lab effect --of exchange --workload chat --requests 200 --seeds 1 -o json": 5,
		"lab effect --of spread --requests 200 --seeds 1 -o json":                   4,
		"lab effect --of adapters --requests 200 --seeds 1,2 -o json":               2,
		"lab effect --of shadow --workload chat --requests 200 --seeds 1 -o json":   7,
	} {
		status, out, errs := exec(t, "", strings.Fields(args)...)
		var got struct {
			Results []lab.Effect `json:"results"`
		}
		if err := json.Unmarshal([]byte(out), &got); status != 0 || err != nil || len(got.Results) != variants || got.Results[0].Relative != 1 {
			t.Errorf("%s: status %d, %v, %s%s", args, status, err, out, errs)
		}
	}
	status, out, errs := exec(t, "", strings.Fields("lab overload --workloads rag --requests 300 --pods 2 -o json")...)
	var got struct {
		Results []lab.Pressured `json:"results"`
	}
	if err := json.Unmarshal([]byte(out), &got); status != 0 || err != nil || len(got.Results) != 1 || got.Results[0].On.Offered < 2*got.Results[0].Saturated.Offered {
		t.Errorf("status %d, %v, %s%s", status, err, out, errs)
	}
	for _, wrong := range []string{"lab effect --of nothing", "lab overload --max-slowdown 1", "lab overload --tenants a", "lab run --exchange maybe"} {
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
	status, out, errs := exec(t, "", "lab", "run", "--trace", file, "--policies", "MarginalCost", "--pickers", "2", "-o", "json")
	var got lab.Report
	if err := json.Unmarshal([]byte(out), &got); status != 0 || err != nil || got.Results[0].Requests != 2 || got.Results[0].HitRatio < 0.4 {
		t.Errorf("status %d, %v, %s%s", status, err, out, errs)
	}
}
