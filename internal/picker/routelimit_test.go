package picker

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/tenant"
	"github.com/kvasir-dev/kvasir/test/race"
)

func limited(l modelroute.Limits) modelroute.Route {
	r := canary(1, 0)
	r.Limits = l
	return r
}

// requestFor is a request for a completion as the proxy sends it.
func requestFor(i int, model string, header map[string]string) *Request {
	in := &Request{Route: openai.Completions, Body: completion(model, i<<8, 20, false), Header: func(name string) string { return header[name] }}
	in.Rename = func(r *openai.Request, model string) ([]byte, bool) {
		return openai.ReplaceModel(nil, in.Body, r, model), true
	}
	return in
}

// wantRefusal checks that a request was refused by its route.
func wantRefusal(t *testing.T, err error, code string) *Error {
	t.Helper()
	var refusal *Error
	if !errors.As(err, &refusal) {
		t.Fatalf("error %v", err)
	}
	if refusal.Status != 429 || refusal.Code != code || refusal.RetryAfter <= 0 || !strings.Contains(refusal.Message, "default/chat") {
		t.Fatalf("refused with %+v, want %s", refusal, code)
	}
	return refusal
}

func TestARouteLimitsItsRequests(t *testing.T) {
	clock := newClock()
	p := newPicker(t, clock)
	specs := routedSpecs(t, "stable", "next")
	if err := p.Apply(specs, limited(modelroute.Limits{RequestsPerMinute: 60, MaxConcurrent: 2})); err != nil {
		t.Fatal(err)
	}
	pick := func(model string) (*Decision, error) { return p.Pick(context.Background(), requestFor(1, model, nil)) }
	first, err := pick("chat")
	if err != nil {
		t.Fatal(err)
	}
	second, err := pick("chat")
	if err != nil {
		t.Fatal(err)
	}
	_, err = pick("chat")
	_ = wantRefusal(t, err, codeRouteConcurrent)
	other, err := pick("stable") // by its own name no route leads there
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []*Decision{first, second, other} {
		d.End(Completed)
		d.End(Completed)
	}
	for range 58 { // the 60 of a minute were there at the beginning
		d, err := pick("chat")
		if err != nil {
			t.Fatal(err)
		}
		d.End(Failed)
	}
	_, err = pick("chat")
	if after := wantRefusal(t, err, codeRouteRate).RetryAfter; after > time.Second {
		t.Errorf("retry after %s, a request is let through each second", after)
	}
	clock.advance(time.Second)
	if d, err := pick("chat"); err != nil {
		t.Error(err)
	} else {
		d.End(Completed)
	}
	if s := p.Routes()[0]; s.Refused != [2]int64{1, 1} || !s.Limited || s.Requests["default/stable"] != 61 {
		t.Errorf("counters %+v", s)
	}
	assertIdle(t, p)
}

// TestARefusedRequestCountsNowhere: not for the route if its client or its tenant's limits refuse it, and not for its tenant if the route
// does. So strangers cannot use up a route.
func TestARefusedRequestCountsNowhere(t *testing.T) {
	p := newPicker(t, newClock())
	specs := routedSpecs(t, "stable", "next")
	specs[0].Policy.Admission.Tenants = &TenantsSpec{Header: FairnessHeader, Reject: true, Default: &tenant.Class{Weight: 1, RequestsPerMinute: 3}}
	if err := p.Apply(specs, limited(modelroute.Limits{RequestsPerMinute: 4})); err != nil {
		t.Fatal(err)
	}
	pick := func(name string) error {
		d, err := p.Pick(context.Background(), requestFor(1, "chat", map[string]string{FairnessHeader: name}))
		if err == nil {
			d.End(Completed)
		}
		return err
	}
	code := func(err error) string {
		var refusal *Error
		if errors.As(err, &refusal) {
			return refusal.Code
		}
		return ""
	}
	for range 10 {
		if got := code(pick("")); got != codeUnknownTenant {
			t.Fatalf("a stranger: %q", got)
		}
	}
	for i, want := range []string{"", "", "", "requests_per_minute", "requests_per_minute"} {
		if got := code(pick("a")); got != want {
			t.Fatalf("request %d of the first tenant: %q, want %q", i, got, want)
		}
	}
	for i, want := range []string{"", codeRouteRate, codeRouteRate, codeRouteRate, codeRouteRate} {
		if got := code(pick("b")); got != want {
			t.Fatalf("request %d of the second tenant: %q, want %q", i, got, want)
		}
	}
	v := p.current.Load().pools[1]
	if left := v.meters.Rates(p.now(), "b", specs[0].Policy.Admission.Tenants.Default).Requests.Left; v.spec.Name != "stable" || left != 2 {
		t.Errorf("%d requests of the second tenant are left in pool %s, want 2", left, v.spec.Name)
	}
	assertIdle(t, p)
}

// TestARequestIsCountedOnceOnItsWayThroughFallbacks, and no place is lost, however it ends.
func TestARequestIsCountedOnceOnItsWayThroughFallbacks(t *testing.T) {
	p := newPicker(t, newClock())
	specs := routedSpecs(t, "stable", "next")
	route := limited(modelroute.Limits{RequestsPerMinute: 1000, MaxConcurrent: 1})
	rule := &route.Rules[0]
	rule.Fallbacks, rule.On, rule.Within = []modelroute.Backend{{Pool: "default/next"}}, modelroute.Of(modelroute.Down, modelroute.Cold), time.Hour
	if err := p.Apply(specs, route); err != nil {
		t.Fatal(err)
	}
	meter := func() int { return p.current.Load().routeList[0].counters.meter.meters.UnderWay("") }
	for range 3 {
		in := requestFor(1, "chat", nil)
		d, err := p.Pick(context.Background(), in)
		if err != nil {
			t.Fatal(err)
		}
		if !p.FallBack(in, false) {
			t.Fatal("no fallback")
		}
		d.End(Failed)
		if meter() != 1 {
			t.Fatal("the place was given away before the request has ended")
		}
		d, err = p.Pick(context.Background(), in)
		if err != nil || d.Pool != "next" {
			t.Fatal(d, err)
		}
		d.End(Completed)
		if meter() != 0 {
			t.Fatalf("%d requests are left", meter())
		}
	}
	route.Rules[0].Fallbacks[0].Pool = "default/missing"
	specs = routedSpecs(t, "stable", "next")
	specs[0].Endpoints, specs[1].Endpoints = nil, nil
	if err := p.Apply(specs, route); err != nil {
		t.Fatal(err)
	}
	for range 3 { // neither pool can take it
		if _, err := p.Pick(context.Background(), requestFor(1, "chat", nil)); err == nil || meter() != 0 {
			t.Fatalf("%v, %d requests are left", err, meter())
		}
	}
	if err := p.Apply(routedSpecs(t, "stable", "next"), route); err != nil {
		t.Fatal(err)
	}
	for range 3 { // refused after the limits
		in := requestFor(1, "chat", nil)
		in.Body = []byte(`{"model":"chat","prompt":"x","kv_transfer_params":{}}`)
		if _, err := p.Pick(context.Background(), in); err == nil || meter() != 0 {
			t.Fatalf("%v, %d requests are left", err, meter())
		}
	}
	if left := p.current.Load().routeList[0].counters.meter.meters.Rates(p.now(), "", &tenant.Class{RequestsPerMinute: 1000}).Requests.Left; left != 994 {
		t.Errorf("%d of 1000 requests are left after six, and three that no pool could take", left)
	}
}

// TestPickersHoldARouteToItsLimitsTogether: two to four pickers that exchange updates let through what one would, plus what arrives at all
// of them before the updates. What a picker that has gone had under way counts no more.
func TestPickersHoldARouteToItsLimitsTogether(t *testing.T) {
	pass := func(pickers int, delay time.Duration) (passed, atOnce int) {
		f := newFleet(t, pickers, 4, policy.LeastLoad, delay)
		for _, p := range f.pickers {
			spec := *p.current.Load().pools[0].spec
			route := limited(modelroute.Limits{RequestsPerMinute: 120, MaxConcurrent: 10})
			route.Rules[0].Backends = []modelroute.Backend{{Pool: spec.Namespace + "/" + spec.Name, Weight: 1}}
			if err := p.Apply([]Spec{spec}, route); err != nil {
				t.Fatal(err)
			}
		}
		ask := func(i int) *Decision {
			d, err := f.pickers[i%pickers].Pick(context.Background(), requestFor(i, "chat", nil))
			if err != nil {
				return nil
			}
			return d
		}
		var open []*Decision
		for i := range 30 {
			if d := ask(i); d != nil {
				open = append(open, d)
			}
			f.run(10 * time.Millisecond)
		}
		atOnce = len(open)
		for _, d := range open {
			d.End(Completed)
		}
		passed = atOnce
		for i := range 5 * 60 * 10 {
			if d := ask(i); d != nil {
				d.End(Completed)
				passed++
			}
			f.run(100 * time.Millisecond)
		}
		return passed, atOnce
	}
	alone, atOnce := pass(1, 0)
	if atOnce != 10 || alone < 5*120 {
		t.Fatalf("one picker lets through %d, %d at once", alone, atOnce)
	}
	several := []int{2, 4}
	if race.Enabled {
		several = several[:1]
	}
	for _, n := range several {
		together, atOnce := pass(n, time.Millisecond)
		if together < alone-2 || together > alone+n || atOnce > 10+n {
			t.Errorf("%d pickers let through %d, %d at once; one %d", n, together, atOnce, alone)
		}
	}
	if apart, _ := pass(2, 0); apart < 3*alone/2 {
		t.Errorf("two pickers that exchange nothing let through %d, one %d: the test shows nothing", apart, alone)
	}
}

// TestWhatPeersReportOfARoute is for the route alone: a pool's tenants and other routes have other names there.
func TestWhatPeersReportOfARoute(t *testing.T) {
	p := newPicker(t, newClock())
	if err := p.Apply(routedSpecs(t, "stable", "next"), limited(modelroute.Limits{MaxConcurrent: 2})); err != nil {
		t.Fatal(err)
	}
	report := func(name string, underWay int) { p.Spent(p.now(), name, 7, "", tenant.Usage{UnderWay: underWay}) }
	for _, name := range []string{"default/chat", "modelroute/default/other", "modelroute/chat", "modelroute/", ""} {
		report(name, 9)
	}
	d, err := p.Pick(context.Background(), requestFor(1, "chat", nil))
	if err != nil {
		t.Fatal(err)
	}
	d.End(Completed)
	report("modelroute/default/chat", 2)
	_, err = p.Pick(context.Background(), requestFor(1, "chat", nil))
	_ = wantRefusal(t, err, codeRouteConcurrent)
	p.Lost(7)
	if d, err = p.Pick(context.Background(), requestFor(1, "chat", nil)); err != nil {
		t.Fatal(err)
	}
	d.End(Completed)
	names := 0
	p.Meters(func(name string, _ *tenant.Meters) {
		if name == "modelroute/default/chat" {
			names++
		}
	})
	if names != 1 {
		t.Errorf("the route is reported %d times", names)
	}
}
