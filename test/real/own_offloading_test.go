package real

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/test/real/vllmcpu"
)

// understoodFile has what vLLM's tier p2p takes from parameters, recorded by offloading/record.py. Tests that need no engine play it:
// TestTheTierIsSentWhatItUnderstands of internal/openai, and TestTheTierUnderstandsAsRecorded of vllmsim.
const understoodFile = "offloading/wire.json"

// TestTheTierUnderstandsAsRecorded: the tier runs on GPUs only ("CPU Offloading is currently only supported on CUDA-alike and XPU GPUs"),
// but its code that reads parameters runs here.
func TestTheTierUnderstandsAsRecorded(t *testing.T) {
	need(t)
	if !atLeast("0.32") {
		leaveOut(t, "the tier p2p is compared with vLLM 0.32 and newer")
	}
	var recorded []map[string]any
	raw, err := os.ReadFile(understoodFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &recorded); err != nil {
		t.Fatal(err)
	}
	connector, err := vllmcpu.NIXL(run.root, run.venv)
	if err != nil {
		t.Fatal(err)
	}
	var in, errors bytes.Buffer
	for _, r := range recorded {
		if err := json.NewEncoder(&in).Encode(r["parameters"]); err != nil {
			t.Fatal(err)
		}
	}
	record := exec.Command(filepath.Join(run.venv, "bin", "python"), "offloading/record.py")
	record.Env = append(os.Environ(), "PYTHONPATH="+connector.Dir)
	record.Stdin, record.Stderr = &in, &errors
	out, err := record.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, errors.String())
	}
	lines := json.NewDecoder(bytes.NewReader(out))
	var now []map[string]any
	for _, r := range recorded {
		understood := map[string]any{}
		if err := lines.Decode(&understood); err != nil {
			t.Fatal(err)
		}
		understood["parameters"] = r["parameters"]
		now = append(now, understood)
	}
	if flag.Lookup("real.update").Value.String() == "true" {
		text, err := json.MarshalIndent(now, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(understoodFile, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(recorded, now); diff != "" {
		t.Errorf("what is recorded (-) and what this release understands (+):\n%s", diff)
	}
}
