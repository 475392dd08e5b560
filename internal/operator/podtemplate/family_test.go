package podtemplate

import (
	"slices"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// vLLM without --host binds addresses of IPv4 alone: in a cluster whose pods have addresses of IPv6 first, nothing would reach it.
func TestEnginesListenWhereTheirPodsAreReached(t *testing.T) {
	for name, tc := range map[string]struct {
		ipv6   bool
		engine v1alpha1.EngineType
		args   []string
		want   string // value that is added
	}{
		"IPv4 first":             {args: []string{"--model", "m"}},
		"IPv6 first":             {ipv6: true, args: []string{"--model", "m"}, want: "::"},
		"an address that is set": {ipv6: true, args: []string{"--host", "fd00::1"}},
		"set by an equals sign":  {ipv6: true, args: []string{"--host=fd00::1"}},
		"another engine":         {ipv6: true, engine: v1alpha1.EngineSGLang, args: []string{"--model", "m"}},
	} {
		t.Run(name, func(t *testing.T) {
			shape := &Shape{Template: template(t, smallest), Wiring: defaulted()}
			shape.Template.Spec.Containers[0].Args = tc.args
			if tc.engine != "" {
				shape.Wiring.Type = string(tc.engine)
			}
			o := options()
			o.IPv6 = tc.ipv6
			pod, _, err := Pod(shape, o)
			if err != nil {
				t.Fatal(err)
			}
			added, got := pod.Spec.Containers[0].Args[len(tc.args):], ""
			if i := slices.Index(added, FlagHost); i >= 0 {
				got = added[i+1]
			}
			if got != tc.want {
				t.Errorf("%s %q, want %q", FlagHost, got, tc.want)
			}
		})
	}
}

// The event sockets of vLLM know addresses of IPv4 only.
func TestEventsThatNobodyCanReceiveAreNamed(t *testing.T) {
	for name, tc := range map[string]struct {
		ipv6   bool
		source v1alpha1.EventSource
		args   []string
		named  bool
	}{
		"a reporter":              {ipv6: true, source: v1alpha1.EventsReporter},
		"what the default is":     {ipv6: true, source: v1alpha1.EventsAuto},
		"pickers connect":         {ipv6: true, source: v1alpha1.EventsSubscribe, named: true},
		"pickers listen":          {ipv6: true, source: v1alpha1.EventsListen, named: true},
		"pickers connect by IPv4": {source: v1alpha1.EventsSubscribe},
		"no events":               {ipv6: true, source: v1alpha1.EventsNone},
		"what the user has set":   {ipv6: true, source: v1alpha1.EventsSubscribe, args: []string{FlagEvents, `{"endpoint":"tcp://*:0"}`}},
	} {
		t.Run(name, func(t *testing.T) {
			shape := &Shape{Template: template(t, smallest), Wiring: defaulted()}
			shape.Template.Spec.Containers[0].Args = append([]string{"--model", "m"}, tc.args...)
			shape.Wiring.Source = string(tc.source)
			o := options()
			o.IPv6 = tc.ipv6
			pod, skipped, err := Pod(shape, o)
			if err != nil {
				t.Fatal(err)
			}
			named := slices.ContainsFunc(skipped, func(s Skipped) bool { return s.What == FlagEvents && strings.Contains(s.Why, "Reporter") })
			if added := slices.Contains(Injected(pod), FlagEvents); named != tc.named || added && named {
				t.Errorf("skipped %v, added %t", skipped, added)
			}
		})
	}
}
