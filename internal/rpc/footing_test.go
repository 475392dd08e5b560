package rpc

import (
	"reflect"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

// TestEachFindingIsNews: the operator is woken by each finding of a picker that changes, whichever field of the state has it. A message
// alone is no news, because it has counts.
func TestEachFindingIsNews(t *testing.T) {
	all := 0
	for _, field := range reflect.VisibleFields(reflect.TypeFor[operatorfeed.State]()) {
		if field.Type != reflect.TypeFor[operatorfeed.Finding]() {
			continue
		}
		all++
		with := func(f operatorfeed.Finding) *operatorfeed.State {
			s := &operatorfeed.State{}
			reflect.ValueOf(s).Elem().FieldByIndex(field.Index).Set(reflect.ValueOf(f))
			return s
		}
		good := operatorfeed.Finding{Verdict: operatorfeed.Good, Reason: "Served", Message: "1 of 1"}
		counted, other, bad := good, good, good
		counted.Message, other.Reason, bad.Verdict = "2 of 2", "Else", operatorfeed.Bad
		if !sameFooting(with(good), with(counted)) {
			t.Errorf("%s: a message alone is news", field.Name)
		}
		for what, now := range map[string]operatorfeed.Finding{"no finding any more": {}, "another reason": other, "another verdict": bad} {
			if sameFooting(with(good), with(now)) {
				t.Errorf("%s: %s is no news", field.Name, what)
			}
		}
	}
	if want := len((&operatorfeed.State{}).Findings()); all != want {
		t.Errorf("a state has %d findings, and Findings returns %d", all, want)
	}
}
