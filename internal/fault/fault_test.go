package fault_test

import (
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/fault"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

func TestAPanicIsReportedAndCaught(t *testing.T) {
	var reported *fault.Panic
	caught := fault.Catch(func() { panic("x") }, func(p *fault.Panic) { reported = p })
	if caught == nil || caught != reported || caught.Error() != "panic: x" || !strings.Contains(string(caught.Stack), "TestAPanicIsReportedAndCaught") {
		t.Errorf("%v, reported %v", caught, reported)
	}
	if caught := fault.Catch(func() {}, func(*fault.Panic) { t.Error("reported") }); caught != nil {
		t.Errorf("%v", caught)
	}
}

// TestAPanicInTheIndexGoesOn: locks of the index might be held, so the process cannot continue; but the message is named.
func TestAPanicInTheIndexGoesOn(t *testing.T) {
	reported := false
	defer func() {
		if v := recover(); v == nil || !reported {
			t.Errorf("recovered %v, reported %v", v, reported)
		}
	}()
	var none *kvindex.Index
	_ = fault.Catch(func() { none.Join() }, func(*fault.Panic) { reported = true })
}
