package openai

import (
	"encoding/json"
	"os"
	"testing"
)

// The tier p2p of vLLM's offloading connector understands the parameters of both legs, and each as what it is.
func TestTheTierIsSentWhatItUnderstands(t *testing.T) {
	raw, err := os.ReadFile("../../test/real/offloading/wire.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded []struct {
		Parameters json.RawMessage
		Source     *struct {
			Peer string `json:"peer_id"`
			Name string `json:"kv_request_id"`
			Asks bool   `json:"do_probe"`
		}
		Dest *struct {
			Name string `json:"kv_request_id"`
		}
	}
	if err := json.Unmarshal(raw, &recorded); err != nil {
		t.Fatal(err)
	}
	first, second := OffloadingParameters("a", "10.0.0.1", 5710)
	pulled, seen := PullParameters("a", "10.0.0.1", 5710), 0
	for _, r := range recorded {
		switch compact(t, string(r.Parameters)) {
		case string(first):
			if seen++; r.Source != nil || r.Dest == nil || r.Dest.Name != "a" {
				t.Errorf("the first leg is understood as %+v", r)
			}
		case string(second):
			if seen++; r.Dest != nil || r.Source == nil || r.Source.Name != "a" || r.Source.Peer != "10.0.0.1:5710" || r.Source.Asks {
				t.Errorf("the second leg is understood as %+v", r)
			}
		case string(pulled):
			if seen++; r.Dest != nil || r.Source == nil || r.Source.Name != "a" || r.Source.Peer != "10.0.0.1:5710" || !r.Source.Asks {
				t.Errorf("a pull is understood as %+v", r)
			}
		}
	}
	if seen != 3 {
		t.Errorf("%d of 3 are recorded: %s, %s, %s", seen, first, second, pulled)
	}
}

func TestParametersOfMooncake(t *testing.T) {
	first, second := MooncakeParameters("x", "http://10.0.0.1:8998", "e")
	if want := `{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"x"}`; string(first) != want {
		t.Errorf("the first leg: %s, want %s", first, want)
	}
	want := `{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"x","remote_bootstrap_addr":"http://10.0.0.1:8998","remote_engine_id":"e"}`
	if string(second) != want {
		t.Errorf("the second leg: %s, want %s", second, want)
	}
}
