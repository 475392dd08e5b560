package hosts

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/test/dns"
)

func TestAddressesOfAHost(t *testing.T) {
	const four, six, both, none, unknown = "four.test.", "six.test.", "both.test.", "none.test.", "unknown.test."
	s := dns.New(t)
	s.Set(four, "10.0.0.2", "10.0.0.1")
	s.Set(six, "fd00::1")
	s.Set(both, "fd00::2", "10.0.0.3")
	s.Set(none)
	const fails = "fails"
	for name, tc := range map[string]struct {
		fault dns.Fault
		want  map[string]string
	}{
		"it answers": {dns.None, map[string]string{four: "[10.0.0.1 10.0.0.2]", six: "[fd00::1]", both: "[10.0.0.3]", none: fails,
			unknown: fails, "10.0.0.9": "[10.0.0.9]", "fd00::9": "[fd00::9]", "::ffff:10.0.0.9": "[10.0.0.9]"}},
		"it fails":            {dns.Failing, map[string]string{four: fails, six: fails, both: fails, "10.0.0.9": "[10.0.0.9]"}},
		"it knows no address": {dns.Empty, map[string]string{four: fails, six: fails, both: fails}},
		"it fails for IPv4":   {dns.FailingIPv4, map[string]string{four: fails, both: fails}},
		"it fails for IPv6":   {dns.FailingIPv6, map[string]string{four: "[10.0.0.1 10.0.0.2]", six: fails, both: "[10.0.0.3]"}},
		"it is silent":        {dns.Silent, map[string]string{both: fails}},
		"it answers nonsense": {dns.Garbage, map[string]string{both: fails}},
	} {
		s.Break(tc.fault)
		for host, want := range tc.want {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			if tc.fault == dns.Silent || tc.fault == dns.Garbage { // it ends with its context
				ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
			}
			found, err := Lookup(ctx, s.Resolver(), host)
			cancel()
			got := fmt.Sprint(found)
			if err != nil {
				got = fails
			}
			if got != want {
				t.Errorf("%s, %s: %s %v, want %s", name, host, got, err, want)
			}
		}
	}
}
