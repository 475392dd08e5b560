package request

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

func TestErrorsOfThePickerHaveAReason(t *testing.T) {
	for want, status := range map[string]int{
		RefusedUnreadable: 400, RefusedTenant: 403, RefusedModel: 404, RefusedTooLarge: 413, RefusedTooMuch: 429, RefusedNoEndpoint: 503,
	} {
		why := RefusalOf(fmt.Errorf("picking: %w", &picker.Error{Status: status}))
		if why.Reason != want || why.Status != status || why.Cause != nil {
			t.Errorf("status %d: %+v, want the reason %s", status, why, want)
		}
		if !slices.Contains(ProxyReasons, want) || !slices.Contains(GatewayReasons, want) {
			t.Errorf("%s is not among the reasons", want)
		}
	}
	if why := RefusalOf(&picker.Error{Status: 503, Code: picker.CodeOverloaded}); why.Reason != RefusedOverload {
		t.Errorf("a shortage is %s", why.Reason)
	}
	for _, code := range []string{picker.CodeHook, picker.CodeHookFailed} {
		if why := RefusalOf(&picker.Error{Status: 503, Code: code}); why.Reason != RefusedPolicy || !slices.Contains(GatewayReasons, RefusedPolicy) {
			t.Errorf("%s is %s", code, why.Reason)
		}
	}
	unknown := errors.New("x")
	if why := RefusalOf(unknown); why.Reason != RefusedPick || why.Status != 500 || !errors.Is(why.Cause, unknown) {
		t.Errorf("another error: %+v", why)
	}
}

func TestRetryAfter(t *testing.T) {
	for want, e := range map[string]picker.Error{
		"": {Status: 400}, "1": {Status: 503}, "2": {Status: 429, RetryAfter: 1001 * time.Millisecond}, "60": {Status: 404, RetryAfter: time.Minute},
	} {
		if got := RetryAfter(&e); got != want {
			t.Errorf("status %d after %v: %q, want %q", e.Status, e.RetryAfter, got, want)
		}
	}
}
