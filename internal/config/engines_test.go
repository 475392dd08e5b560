package config

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/hosts"
	"github.com/kvasir-dev/kvasir/test/dns"
)

func TestEngineURLsAreReadAsPeopleTypeThem(t *testing.T) {
	for name, tc := range map[string]struct{ list, want string }{
		"one":                         {"http://a:8000", "a:8000 0 0"},
		"two":                         {"http://a:8000,http://b:8001", "a:8000 0 0;b:8001 0 0"},
		"blanks and a trailing comma": {" http://a:8000, http://b:8000 ,", "a:8000 0 0;b:8000 0 0"},
		"without a scheme":            {"a:8000", "a:8000 0 0"},
		"a base URL of clients":       {"http://a:8000/v1/", "a:8000 0 0"},
		"a trailing slash":            {"http://a:8000/", "a:8000 0 0"},
		"an address of IPv6":          {"http://[::1]:8000", "[::1]:8000 0 0"},
		"capitals":                    {"HTTP://A:8000", "a:8000 0 0"},
		"ports of events":             {"http://a:8000?events=5557&replay=5657", "a:8000 5557 5657"},
		"no replay":                   {"http://a:8000?events=5557", "a:8000 5557 0"},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := ParseEngineURLs(tc.list)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range all {
				got = append(got, strings.Join([]string{e.authority(), itoa(e.events), itoa(e.replay)}, " "))
			}
			if text := strings.Join(got, ";"); text != tc.want {
				t.Errorf("read as %q, want %q", text, tc.want)
			}
		})
	}
}

func itoa(n int) string { return strings.TrimPrefix(hostPort("", n), ":") }

func TestWrongEngineURLsAreRefusedInOneLine(t *testing.T) {
	for name, tc := range map[string]struct{ list, want string }{
		"nothing":                       {" , ", "no engine given"},
		"no port":                       {"http://a", "http://a:8000"},
		"no port with https":            {"https://a", "https://a:8000"},
		"no host":                       {"http://:8000", "host is missing"},
		"another scheme":                {"tcp://a:8000", `scheme "tcp"`},
		"a port that is none":           {"http://a:80000", "80000"},
		"a port of letters":             {"http://a:http", "invalid port"},
		"a path":                        {"http://a:8000/v1/completions", "http://a:8000"},
		"a fragment":                    {"http://a:8000#x", "leave out"},
		"a password":                    {"http://u:p@a:8000", "user or password"},
		"an unknown parameter":          {"http://a:8000?event=1", `"event"`},
		"a replay port without events":  {"http://a:8000?replay=1", "needs events"},
		"two ports":                     {"http://a:8000?events=1&events=2", "one port"},
		"an engine twice":               {"http://a:8000,a:8000/v1", "twice"},
		"an address to listen on":       {"http://0.0.0.0:8000", "unspecified"},
		"http and https":                {"http://a:1,https://b:2", "cannot be mixed"},
		"https with two names":          {"https://a:1,https://b:2", "one host name"},
		"https with an address":         {"https://10.0.0.1:1", "one host name"},
		"a blank in the place of comma": {"http://a:8000 http://b:8000", "invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseEngineURLs(tc.list)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, tc.want)
			}
		})
	}
}

// resolved is what host names resolve to in a test.
type resolved map[string][]netip.Addr

func (n resolved) lookUp(_ context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	if found, ok := n[host]; ok {
		return found, nil
	}
	return nil, errors.New("no such host")
}

func enginesAt(t *testing.T, n resolved, list string) *Engines {
	t.Helper()
	urls, err := ParseEngineURLs(list)
	if err != nil {
		t.Fatal(err)
	}
	a, err := admitter()
	if err != nil {
		t.Fatal(err)
	}
	e, err := newEngines(urls, "m", a, Settings{Root: testRoot}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	e.lookUp = n.lookUp
	return e
}

// addresses of the only pool's endpoints, with the names that people see.
func addressesOf(t *testing.T, s State) string {
	t.Helper()
	var all []string
	for _, e := range only(t, s).Endpoints {
		all = append(all, e.Pod+"="+e.Address)
	}
	return strings.Join(all, " ")
}

func ips(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// TestEnginesStayWhileNamesDoNotResolve: whatever is wrong with the name service, engines keep the addresses that they had, the
// status names the host, and everything is as before when the service is back.
func TestEnginesStayWhileNamesDoNotResolve(t *testing.T) {
	s := dns.New(t)
	s.Set("a.test.", "fd00::1", "10.0.0.1")
	s.Set("b.test.", "10.0.0.2", "10.0.0.3")
	e := enginesAt(t, nil, "http://a.test.:8000,http://b.test.:8000,http://10.0.0.9:8000")
	e.lookUp = func(ctx context.Context, host string) ([]netip.Addr, error) {
		return hosts.Lookup(ctx, s.Resolver(), host)
	}
	state, problems := load(t, e.directory)
	wantNoProblem(t, problems)
	before := addressesOf(t, state)
	for _, fault := range []dns.Fault{dns.Failing, dns.Empty, dns.FailingIPv4, dns.Silent, dns.Garbage} {
		s.Break(fault)
		state, problems := load(t, e.directory)
		if got := addressesOf(t, state); got != before {
			t.Errorf("fault %d: endpoints %s, want %s", fault, got, before)
		}
		if len(problems) != 2 {
			t.Errorf("fault %d: problems %q, want one for each name", fault, problems)
		}
		wantProblem(t, problems, `--engines http://a.test.:8000: looking up host "a.test."`)
		wantProblem(t, problems, "(the last good state stays in force)")
		s.Break(dns.None)
		state, problems = load(t, e.directory)
		wantNoProblem(t, problems)
		if got := addressesOf(t, state); got != before {
			t.Errorf("after fault %d: endpoints %s, want %s", fault, got, before)
		}
	}
	s.Break(dns.FailingIPv6)
	state, problems = load(t, e.directory)
	wantNoProblem(t, problems)
	if got := addressesOf(t, state); got != before {
		t.Errorf("without answers about IPv6: endpoints %s, want %s", got, before)
	}
}

func TestEnginesWithoutFilesMakeAPoolWithAllDefaults(t *testing.T) {
	n := resolved{"a": ips("10.0.0.1")}
	e := enginesAt(t, n, "http://a:8000,http://127.0.0.1:8001?events=5001&replay=6001")
	s, problems := load(t, e.directory)
	wantNoProblem(t, problems)
	spec := only(t, s)
	if spec.Name != EnginesPool || spec.Model != "m" || spec.BlockTokens != 16 || spec.Policy.Name != "" {
		t.Errorf("unexpected pool %+v", spec)
	}
	if got, want := addressesOf(t, s), "a:8000=10.0.0.1:8000 127.0.0.1:8001=127.0.0.1:8001"; got != want {
		t.Errorf("endpoints %s, want %s", got, want)
	}
	assumed, given := spec.Endpoints[0], spec.Endpoints[1]
	if !assumed.EventsAssumed || !assumed.ReplayAssumed || assumed.EventsAddress != "10.0.0.1:5557" {
		t.Errorf("the ports of events of %+v are not assumed", assumed)
	}
	if given.EventsAssumed || given.EventsAddress != "127.0.0.1:5001" || given.ReplayAddress != "127.0.0.1:6001" {
		t.Errorf("the ports of events of %+v are not those given", given)
	}
}

// TestTwoNamesOfAnEngine: which names stand for one engine is known only when they are resolved.
func TestTwoNamesOfAnEngine(t *testing.T) {
	n := resolved{"a": ips("10.0.0.1"), "b": ips("10.0.0.1", "10.0.0.2")}
	s, problems := load(t, enginesAt(t, n, "http://a:8000,http://b:8000").directory)
	wantProblem(t, problems, "--engines http://b:8000", "10.0.0.1:8000", "(--engines http://a:8000)")
	if got, want := addressesOf(t, s), "a:8000=10.0.0.1:8000 10.0.0.2:8000=10.0.0.2:8000"; got != want {
		t.Errorf("endpoints %s, want %s", got, want)
	}
}

func TestHostNamesAreFollowed(t *testing.T) {
	n := resolved{"a": ips("10.0.0.1", "10.0.0.2"), "six": ips("fd00::6")}
	e := enginesAt(t, n, "http://a:8000,http://six:8000,http://later:8000")
	step := func(what, endpoints string, wanted ...string) State {
		t.Helper()
		s, problems := load(t, e.directory)
		if got := addressesOf(t, s); got != endpoints {
			t.Errorf("%s: endpoints %s, want %s", what, got, endpoints)
		}
		if len(problems) != len(wanted) {
			t.Errorf("%s: problems %q, want %q", what, problems, wanted)
		}
		for _, want := range wanted {
			wantProblem(t, problems, want)
		}
		return s
	}
	step("several addresses", "10.0.0.1:8000=10.0.0.1:8000 10.0.0.2:8000=10.0.0.2:8000 six:8000=[fd00::6]:8000",
		`--engines http://later:8000: looking up host "later"`)
	n["later"] = ips("10.0.0.9")
	n["a"] = ips("10.0.0.1")
	before := step("another answer", "a:8000=10.0.0.1:8000 six:8000=[fd00::6]:8000 later:8000=10.0.0.9:8000")
	delete(n, "a")
	after := step("no answer", "a:8000=10.0.0.1:8000 six:8000=[fd00::6]:8000 later:8000=10.0.0.9:8000",
		"(the last good state stays in force)")
	if id := (endpoint.ID{Pod: "10.0.0.1:8000"}); before.Specs[0].Endpoints[0].ID != id || after.Specs[0].Endpoints[0].ID != id {
		t.Error("an engine that keeps its address has another identity")
	}
	if _, changed := e.directory.Load(context.Background()); changed {
		t.Error("equal answers are a change")
	}
}

func TestTLSOfEnginesIsForTheirHostName(t *testing.T) {
	e := enginesAt(t, resolved{"a.example": ips("10.0.0.1")}, "https://a.example:8443")
	s, problems := load(t, e.directory)
	wantNoProblem(t, problems)
	if w := only(t, s).Endpoints[0].Wire; !w.TLS || w.ServerName != "a.example" {
		t.Errorf("engines are called as %+v", w)
	}
}

func TestAModelNameThatNoPoolCanHaveIsRefused(t *testing.T) {
	urls, err := ParseEngineURLs("a:8000")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewEngines(urls, "two words", Settings{Root: testRoot}, logr.Discard()); err == nil ||
		!strings.Contains(err.Error(), `--model "two words"`) {
		t.Errorf("error %v, want one about --model", err)
	}
}
