package server

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/scrape"
	"github.com/kvasir-dev/kvasir/internal/events"
)

func TestEnginesAreServedWithoutAFile(t *testing.T) {
	first, second := engine(t, "m"), engine(t, "m")
	i, o := listenWith(t, "--engines", "http://"+first.Addr()+",localhost:"+portOf(t, second.Addr())+"/v1/", "--model", "m")
	i.run(o)
	i.eventually("both engines are followed", func() bool {
		_, body := i.get(i.listeners.metrics, "/status?output=json")
		return strings.Contains(body, `"endpoints":{"total":2,"ready":2,"synced":2,"degraded":0}`)
	})
	if status, body := i.complete("m"); status != http.StatusOK {
		t.Errorf("status %d, %s", status, body)
	}
}

func TestWrongSourcesAreRefusedInOneLine(t *testing.T) {
	for name, tc := range map[string]struct{ args, want string }{
		"nothing":                            {"", "--engines http://HOST:PORT,... --model NAME"},
		"engines without a model":            {"--engines a:8000", "http://a:8000/v1/models"},
		"a model without engines":            {"--model m", "--model needs --engines"},
		"engines and a directory":            {"--engines a:8000 --model m --standalone d", "excludes"},
		"engines and a cluster":              {"--engines a:8000 --model m --pool n/p", "excludes"},
		"engines and a fleet":                {"--engines a:8000 --model m --fleet n/f", "excludes"},
		"a fleet and a pool":                 {"--fleet n/f --pool n/p", "--fleet excludes"},
		"a fleet and a gateway's pool":       {"--fleet n/f --gateway-pool n/p", "--fleet excludes"},
		"a fleet and a directory":            {"--fleet n/f --standalone d", "excludes"},
		"half a fleet":                       {"--fleet f", `--fleet "f": want NAMESPACE/NAME`},
		"engines and a kubeconfig":           {"--engines a:8000 --model m --kubeconfig k", "--kubeconfig needs --pool"},
		"blanks between engines":             {"--engines http://a:8000 http://b:8000 --model m", "by commas"},
		"an engine without a port":           {"--engines http://a --model m", `--engines: "http://a": the port is missing`},
		"the same engine in two --engines":   {"--engines a:8000 --engines a:8000 --model m", "twice"},
		"no engines in a list that is given": {"--engines= --model m", "no engine given"},
	} {
		t.Run(name, func(t *testing.T) {
			var said bytes.Buffer
			if status := Main(strings.Fields(tc.args), &said, &said); status != 2 {
				t.Errorf("exit status %d, want 2", status)
			}
			if text := said.String(); !strings.Contains(text, tc.want) || strings.Count(text, "\n") != 1 {
				t.Errorf("said %q, want one line with %q", text, tc.want)
			}
		})
	}
}

// Two engines on one host cannot both publish on the default port. Until they report theirs, it is not known whose events are on it.
func TestAnAssumedPortOfSeveralEnginesIsNotSubscribedTo(t *testing.T) {
	feed := func(pod, address string, assumed bool) events.Feed {
		return events.Feed{Endpoint: endpoint.Endpoint{ID: endpoint.ID{Pod: pod}, EventsAddress: address, EventsAssumed: assumed}}
	}
	s := newEventSources(logr.Discard())
	feeds := map[string][]events.Feed{
		"p": {feed("a", "h:5557", true), feed("b", "h:5557", true), feed("alone", "i:5557", true)},
		"q": {feed("c", "j:5557", true), feed("d", "j:5557", false)},
	}
	want := func(what string, ids ...string) {
		t.Helper()
		unclear := s.unclear(feeds)
		for _, pod := range []string{"a", "b", "alone", "c", "d"} {
			if unclear[endpoint.ID{Pod: pod}] != slices.Contains(ids, pod) {
				t.Errorf("%s: unclear are %v, want %v", what, unclear, ids)
			}
		}
	}
	want("neither has reported", "a", "b", "c")
	s.report(endpoint.ID{Pod: "a"}, scrape.EventSource{Answered: true, Events: 5557})
	want("a has reported the port that b is assumed to have", "b", "c")
	s.report(endpoint.ID{Pod: "b"}, scrape.EventSource{Answered: true, Events: 5558})
	want("both have reported", "c")
}

func TestAddressesWithoutAuthenticationAreLocalOutsideAClusterUnlessGiven(t *testing.T) {
	for arguments, want := range map[string][5]string{
		"--engines a:8000 --model m":                              {"127.0.0.1:8080", "127.0.0.1:9002", "127.0.0.1:9003", "127.0.0.1:9090", ":9004"},
		"--standalone d":                                          {"127.0.0.1:8080", "127.0.0.1:9002", "127.0.0.1:9003", "127.0.0.1:9090", ":9004"},
		"--standalone d --report-insecure":                        {"127.0.0.1:8080", "127.0.0.1:9002", "127.0.0.1:9003", "127.0.0.1:9090", "127.0.0.1:9004"},
		"--standalone d --report-insecure --report-address :9004": {"127.0.0.1:8080", "127.0.0.1:9002", "127.0.0.1:9003", "127.0.0.1:9090", ":9004"},
		"--standalone d --proxy-address :8080 --ext-proc-address= --health-address h:1": {":8080", "", "h:1", "127.0.0.1:9090", ":9004"},
		"--pool n/p":         {":8080", ":9002", ":9003", ":9090", ":9004"},
		"--fleet n/f":        {":8080", ":9002", ":9003", ":9090", ":9004"},
		"--gateway-pool n/p": {":8080", ":9002", ":9003", ":9090", ":9004"},
	} {
		o, err := parse(strings.Fields(arguments), io.Discard, io.Discard)
		if err != nil {
			t.Fatalf("%s: %v", arguments, err)
		}
		if got := [...]string{o.proxyAddress, o.gateways.address, o.healthAddress, o.metricsAddress, o.reports.address}; got != want {
			t.Errorf("%s: %v, want %v", arguments, got, want)
		}
	}
}
