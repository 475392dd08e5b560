package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// poolWith is the small pool with further lines in its spec.
func poolWith(spec string) string {
	return strings.Replace(smallPool, "spec: {", "spec: {"+spec+", ", 1)
}

func TestEndpointsOfSlices(t *testing.T) {
	// at is an endpoint of pod u0 on 10.0.0.7; zero ports mean no address.
	at := func(rank, http, events, replay, header int) endpoint.Endpoint {
		e := endpoint.Endpoint{
			ID: endpoint.ID{Pod: "u0", Rank: rank}, Pod: "m-0", Namespace: "default",
			Address: hostPort("10.0.0.7", http), RankHeader: header, EventRank: max(rank, header), Ready: true, Serving: true,
		}
		if events > 0 {
			e.EventsAddress, e.ReplayAddress = hostPort("10.0.0.7", events), hostPort("10.0.0.7", replay)
		}
		return e
	}
	with := func(e endpoint.Endpoint, change func(*endpoint.Endpoint)) endpoint.Endpoint {
		change(&e)
		return e
	}
	// assumed marks the ports of events that are not configured.
	assumed := func(e endpoint.Endpoint) endpoint.Endpoint {
		return with(e, func(e *endpoint.Endpoint) { e.EventsAssumed, e.ReplayAssumed = true, true })
	}
	const (
		pod    = "{addresses: [10.0.0.7], targetRef: {kind: Pod, name: m-0, uid: u0}}"
		header = "engine: {dataParallel: {ranks: 2}}"
		ported = "engine: {dataParallel: {ranks: 2, addressing: PortPerRank}}"
		three  = "[{name: http, port: 8001}, {name: kv-events, port: 6001}, {name: kv-replay, port: 7001}]"
	)
	plain := at(0, 8001, 6001, 7001, -1)
	for name, tc := range map[string]struct {
		pool, meta, family, ports, endpoints string
		want                                 []endpoint.Endpoint
	}{
		"ports that the slice names":         {ports: three, endpoints: pod, want: []endpoint.Endpoint{plain}},
		"ports that only the pool names":     {pool: "engine: {ports: {http: 81, events: 82, replay: 83}}", ports: "[]", endpoints: pod, want: []endpoint.Endpoint{at(0, 81, 82, 83, -1)}},
		"ports without a role":               {ports: "[{name: http, port: 8001}, {name: metrics, port: 1}, {name: gossip, protocol: UDP}]", endpoints: pod, want: []endpoint.Endpoint{assumed(at(0, 8001, 5557, 5657, -1))}},
		"events that the pool names":         {pool: "engine: {ports: {events: 82}}", ports: "[]", endpoints: pod, want: []endpoint.Endpoint{with(at(0, 8000, 82, 5657, -1), func(e *endpoint.Endpoint) { e.ReplayAssumed = true })}},
		"a replay port that the slice names": {ports: "[{name: http, port: 8001}, {name: kv-replay, port: 7}]", endpoints: pod, want: []endpoint.Endpoint{with(at(0, 8001, 5557, 7, -1), func(e *endpoint.Endpoint) { e.EventsAssumed = true })}},
		"no events":                          {pool: "engine: {events: {source: None}}", ports: three, endpoints: pod, want: []endpoint.Endpoint{at(0, 8001, 0, 0, -1)}},
		"publishers that dial": {pool: "engine: {events: {source: Listen}, dataParallel: {ranks: 2}}", meta: `annotations: {kvasir.dev/start-rank: "8"}`, ports: "[]", endpoints: pod, want: []endpoint.Endpoint{
			with(at(0, 8000, 0, 0, 8), func(e *endpoint.Endpoint) { e.DialsIn, e.ReplayAddress = true, "10.0.0.7:5665" }),
			with(at(1, 8000, 0, 0, 9), func(e *endpoint.Endpoint) { e.DialsIn, e.ReplayAddress = true, "10.0.0.7:5666" }),
		}},
		"ranks by header":               {pool: header, ports: three, endpoints: pod, want: []endpoint.Endpoint{at(0, 8001, 6001, 7001, 0), at(1, 8001, 6002, 7002, 1)}},
		"ranks by port":                 {pool: ported, ports: three, endpoints: pod, want: []endpoint.Endpoint{at(0, 8001, 6001, 7001, -1), at(1, 8002, 6002, 7002, -1)}},
		"ranks on ports of their own":   {pool: ported, ports: "[{name: http, port: 8001}, {name: http-1, port: 9001}, {name: kv-events-1, port: 9002}, {name: kv-replay-1, port: 9003}]", endpoints: pod, want: []endpoint.Endpoint{assumed(at(0, 8001, 5557, 5657, -1)), at(1, 9001, 9002, 9003, -1)}},
		"a later node of many":          {pool: header, meta: `annotations: {kvasir.dev/start-rank: "8"}`, ports: "[]", endpoints: pod, want: []endpoint.Endpoint{assumed(at(0, 8000, 5565, 5665, 8)), assumed(at(1, 8000, 5566, 5666, 9))}},
		"a later node with ports named": {pool: header, meta: `annotations: {kvasir.dev/start-rank: "8"}`, ports: three, endpoints: pod, want: []endpoint.Endpoint{at(0, 8001, 6001, 7001, 8), at(1, 8001, 6002, 7002, 9)}},
		"the first node of one":         {meta: `annotations: {kvasir.dev/start-rank: "0"}`, ports: three, endpoints: pod, want: []endpoint.Endpoint{plain}},
		"no UID":                        {ports: three, endpoints: "{addresses: [10.0.0.7], targetRef: {name: m-0}}", want: []endpoint.Endpoint{with(plain, func(e *endpoint.Endpoint) { e.ID.Pod = "default/m-0" })}},
		"a pod of another namespace":    {ports: three, endpoints: "{addresses: [10.0.0.7], targetRef: {name: m-0, namespace: o}}", want: []endpoint.Endpoint{with(plain, func(e *endpoint.Endpoint) { e.ID.Pod, e.Namespace = "o/m-0", "o" })}},
		"only the first address counts": {ports: three, endpoints: "{addresses: [10.0.0.7, 10.0.0.8], targetRef: {name: m-0, uid: u0}}", want: []endpoint.Endpoint{plain}},
		"IPv6": {family: "IPv6", ports: "[{name: http, port: 8001}]", endpoints: "{addresses: ['fd00::7'], targetRef: {name: m-0, uid: u0}}", want: []endpoint.Endpoint{with(assumed(at(0, 8001, 1, 1, -1)), func(e *endpoint.Endpoint) {
			e.Address, e.EventsAddress, e.ReplayAddress = "[fd00::7]:8001", "[fd00::7]:5557", "[fd00::7]:5657"
		})}},
		"not ready":             {ports: three, endpoints: "{addresses: [10.0.0.7], conditions: {ready: false}, targetRef: {name: m-0, uid: u0}}", want: []endpoint.Endpoint{with(plain, func(e *endpoint.Endpoint) { e.Ready, e.Serving = false, false })}},
		"draining":              {ports: three, endpoints: "{addresses: [10.0.0.7], conditions: {ready: false, serving: true, terminating: true}, targetRef: {name: m-0, uid: u0}}", want: []endpoint.Endpoint{with(plain, func(e *endpoint.Endpoint) { e.Ready, e.Terminating = false, true })}},
		"a socket":              {meta: "annotations: {kvasir.dev/http-socket: /run/vllm/0.sock}", ports: three, endpoints: pod, want: []endpoint.Endpoint{with(plain, func(e *endpoint.Endpoint) { e.Socket = "/run/vllm/0.sock" })}},
		"an island":             {meta: "labels: {kvasir.dev/pool: m, kvasir.dev/island: eu}", ports: three, endpoints: pod, want: []endpoint.Endpoint{with(plain, func(e *endpoint.Endpoint) { e.Island = "eu" })}},
		"an island of a region": {pool: "placement: {islandLabel: region}", meta: "labels: {kvasir.dev/pool: m, region: eu}", ports: three, endpoints: pod, want: []endpoint.Endpoint{with(plain, func(e *endpoint.Endpoint) { e.Island = "eu" })}},
		"a role, for no policy": {meta: "labels: {kvasir.dev/pool: m, kvasir.dev/role: prefill}", ports: three, endpoints: pod, want: []endpoint.Endpoint{plain}},
		"nobody":                {ports: three, endpoints: ""},
	} {
		t.Run(name, func(t *testing.T) {
			pool := smallPool
			if tc.pool != "" {
				pool = poolWith(tc.pool)
			}
			d := open(t, "pool.yaml", pool, "pods.yaml", sliceText(tc.meta, tc.family, tc.ports, tc.endpoints))
			s, problems := load(t, d)
			wantNoProblem(t, problems)
			if diff := cmp.Diff(tc.want, only(t, s).Endpoints); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
		})
	}
}

// sliceText is a slice of the small pool.
func sliceText(meta, family, ports, endpoints string) string {
	if !strings.Contains(meta, "labels:") {
		meta = strings.Trim("labels: {kvasir.dev/pool: m}, "+meta, ", ")
	}
	if family == "" {
		family = "IPv4"
	}
	return "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, " + meta + "}\naddressType: " + family +
		"\nports: " + ports + "\nendpoints: [" + endpoints + "]\n"
}

func TestSlicesThatAreRefused(t *testing.T) {
	const pod = "{addresses: [10.0.0.7], targetRef: {kind: Pod, name: m-0, uid: u0}}"
	for name, tc := range map[string]struct {
		pool, meta, family, ports, endpoints string
		problem                              []string
	}{
		"a role that does not exist": {meta: "labels: {kvasir.dev/pool: m, kvasir.dev/role: prefiller}", ports: "[]", endpoints: pod, problem: []string{"metadata.labels[kvasir.dev/role]", "prefiller"}},
		"names":                      {family: "FQDN", ports: "[]", problem: []string{"addressType", `"FQDN"`}},
		"an unknown field":           {ports: "[]", endpoints: "{addresses: [10.0.0.7], targetRef: {name: m-0}, island: x}", problem: []string{"endpoints[0].island", "unknown field"}},
		"a wrong type":               {ports: "[{name: http, port: x}]", problem: []string{"port"}},
		"no pod":                     {ports: "[]", endpoints: "{addresses: [10.0.0.7]}", problem: []string{"endpoints[0].targetRef.name", "Required"}},
		"no pod's name":              {ports: "[]", endpoints: "{addresses: [10.0.0.7], targetRef: {uid: u0}}", problem: []string{"endpoints[0].targetRef.name"}},
		"not a pod":                  {ports: "[]", endpoints: "{addresses: [10.0.0.7], targetRef: {kind: Node, name: m-0}}", problem: []string{"endpoints[0].targetRef.kind"}},
		"a pod twice":                {ports: "[]", endpoints: pod + ", " + pod, problem: []string{"endpoints[1].targetRef", "Duplicate"}},
		"no address":                 {ports: "[]", endpoints: "{addresses: [], targetRef: {name: m-0}}", problem: []string{"endpoints[0].addresses"}},
		"an address of another kind": {ports: "[]", endpoints: "{addresses: ['fd00::7'], targetRef: {name: m-0}}", problem: []string{"endpoints[0].addresses[0]", "IPv4"}},
		"an IPv4 address in IPv6":    {family: "IPv6", ports: "[]", endpoints: "{addresses: ['::ffff:10.0.0.7'], targetRef: {name: m-0}}", problem: []string{"endpoints[0].addresses[0]", "IPv6"}},
		"no IP address":              {ports: "[]", endpoints: "{addresses: [example], targetRef: {name: m-0}}", problem: []string{"endpoints[0].addresses[0]"}},
		"the unspecified address":    {ports: "[]", endpoints: "{addresses: [0.0.0.0], targetRef: {name: m-0}}", problem: []string{"endpoints[0].addresses[0]"}},
		"a link-local address":       {ports: "[]", endpoints: "{addresses: [169.254.1.1], targetRef: {name: m-0}}", problem: []string{"endpoints[0].addresses[0]"}},
		"a multicast address":        {ports: "[]", endpoints: "{addresses: [224.0.0.1], targetRef: {name: m-0}}", problem: []string{"endpoints[0].addresses[0]"}},
		"two ports of one name":      {ports: "[{name: http, port: 1}, {name: http, port: 2}]", problem: []string{"ports[1].name", "Duplicate"}},
		"a port without a number":    {ports: "[{name: http}]", problem: []string{"ports[0].port"}},
		"a port beyond the last":     {ports: "[{name: http, port: 65536}]", problem: []string{"ports[0].port"}},
		"events over UDP":            {ports: "[{name: kv-events, port: 1, protocol: UDP}]", problem: []string{"ports[0].protocol"}},
		"a rank that does not exist": {ports: "[{name: kv-events-1, port: 1}]", problem: []string{"ports[0].name", "1 ranks"}},
		"a port of a rank by header": {pool: "engine: {dataParallel: {ranks: 2}}", ports: "[{name: http-1, port: 1}]", problem: []string{"ports[0].name", "Header"}},
		"ports that run out":         {pool: "engine: {dataParallel: {ranks: 2}}", ports: "[{name: kv-events, port: 65535}]", problem: []string{"ports", "65536"}},
		"a start rank of words":      {meta: "annotations: {kvasir.dev/start-rank: first}", ports: "[]", problem: []string{"metadata.annotations[kvasir.dev/start-rank]"}},
		"a socket without a root":    {meta: "annotations: {kvasir.dev/http-socket: run/0.sock}", ports: "[]", problem: []string{"metadata.annotations[kvasir.dev/http-socket]"}},
		"a socket of two":            {meta: "annotations: {kvasir.dev/http-socket: /run/0.sock}", ports: "[]", endpoints: pod + ", {addresses: [10.0.0.8], targetRef: {name: m-1}}", problem: []string{"endpoints", "at most one"}},
		"a socket for many ports":    {pool: "engine: {dataParallel: {ranks: 2, addressing: PortPerRank}}", meta: "annotations: {kvasir.dev/http-socket: /run/0.sock}", ports: "[]", endpoints: pod, problem: []string{"http-socket", "PortPerRank"}},
		"no pool":                    {meta: "labels: {app: m}", ports: "[]", problem: []string{"metadata.labels[kvasir.dev/pool]", "Required"}},
		"an unknown pool":            {meta: "labels: {kvasir.dev/pool: other}", ports: "[]", problem: []string{"metadata.labels[kvasir.dev/pool]", "default/other"}},
		"a wrong label":              {meta: "labels: {kvasir.dev/pool: m, a: '?'}", ports: "[]", problem: []string{"metadata.labels"}},
	} {
		t.Run(name, func(t *testing.T) {
			pool := smallPool
			if tc.pool != "" {
				pool = poolWith(tc.pool)
			}
			d := open(t, "pool.yaml", pool, "pods.yaml", sliceText(tc.meta, tc.family, tc.ports, tc.endpoints))
			s, problems := load(t, d)
			wantProblem(t, problems, append(tc.problem, "pods.yaml:", ": EndpointSlice default/s: ")...)
			if n := len(only(t, s).Endpoints); n != 0 {
				t.Errorf("%d endpoints of a slice that is refused", n)
			}
		})
	}
}

func TestAPodStandsInOneSlice(t *testing.T) {
	other := strings.NewReplacer("m-a", "m-b", "127.0.0.1", "127.0.0.9").Replace(smallSlice) +
		"- {addresses: [127.0.0.2], targetRef: {kind: Pod, name: m-1, uid: u1}}\n"
	d := open(t, "pool.yaml", smallPool, "a.yaml", smallSlice, "b.yaml", other)
	s, problems := load(t, d)
	wantProblem(t, problems, "b.yaml", "EndpointSlice default/m-b", "endpoints[0].targetRef", "m-0", "default/m-a")
	var got []string
	for _, e := range only(t, s).Endpoints {
		got = append(got, e.Address)
	}
	if diff := cmp.Diff([]string{"127.0.0.1:8001", "127.0.0.2:8001"}, got); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

// TestAnEngineIsListedOnce: two endpoints with one address would send an engine twice the requests of the others.
func TestAnEngineIsListedOnce(t *testing.T) {
	const first = "{addresses: [10.0.0.7], targetRef: {name: m-0}}, "
	second := func(more string) string { return first + "{addresses: [10.0.0.7], targetRef: {name: m-1}" + more + "}" }
	const address, another = "endpoints[1].addresses[0]", ", {addresses: [10.0.0.8], targetRef: {name: m-2}}"
	for name, tc := range map[string]struct {
		pool, endpoints string
		want            int
		problem         []string
	}{
		"of two pods":                {"", second("") + another, 2, []string{address, "10.0.0.7:8000, the engine of pod m-0 of EndpointSlice default/s (pods.yaml) already"}},
		"of two pods of many ranks":  {"engine: {dataParallel: {ranks: 2}}", second(""), 2, []string{address, "10.0.0.7:8000, the engine of pod m-0"}},
		"of a pod that is at an end": {"", second(", conditions: {terminating: true}"), 2, nil},
		"of its ranks":               {"engine: {dataParallel: {ranks: 2}}", first, 2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			pool := smallPool
			if tc.pool != "" {
				pool = poolWith(tc.pool)
			}
			s, problems := load(t, open(t, "pool.yaml", pool, "pods.yaml", sliceText("", "", "[]", tc.endpoints)))
			if len(tc.problem) == 0 {
				wantNoProblem(t, problems)
			} else {
				wantProblem(t, problems, append(tc.problem, "pods.yaml:")...)
			}
			if n := len(only(t, s).Endpoints); n != tc.want || len(problems) > 1 {
				t.Errorf("%d endpoints, want %d; problems %q", n, tc.want, problems)
			}
		})
	}
}

// TestAPodThatIsRefusedHasNoAddress: a pod with one rank where another pod is keeps no further pod off the ports of its other ranks.
func TestAPodThatIsRefusedHasNoAddress(t *testing.T) {
	slice := func(name string, port int) string {
		text := sliceText("", "", fmt.Sprintf("[{name: http, port: %d}]", port), "{addresses: [10.0.0.7], targetRef: {name: m-"+name+"}}")
		return strings.Replace(text, "name: s", "name: "+name, 1)
	}
	s, problems := load(t, open(t, "pool.yaml", poolWith("engine: {dataParallel: {ranks: 2, addressing: PortPerRank}}"),
		"a.yaml", slice("a", 8000), "b.yaml", slice("b", 7999), "c.yaml", slice("c", 7998)))
	wantProblem(t, problems, "b.yaml", "10.0.0.7:8000", "m-a")
	var pods []string
	for _, ep := range only(t, s).Endpoints {
		pods = append(pods, ep.Pod)
	}
	if want := []string{"m-a", "m-a", "m-c", "m-c"}; !slices.Equal(pods, want) || len(problems) != 1 {
		t.Errorf("endpoints of %v, want %v; problems %q", pods, want, problems)
	}
}

func TestAnAddressHasOneForm(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.7:8000": "10.0.0.7:8000", "[fd00:0::1]:8000": "[fd00::1]:8000", "[::ffff:10.0.0.7]:8000": "10.0.0.7:8000", "engine:8000": "engine:8000",
	} {
		if got := canonical(address); got != want {
			t.Errorf("%s is %s, want %s", address, got, want)
		}
	}
}

func TestAnEngineInTwoFilesCountsInTheFirst(t *testing.T) {
	other := strings.NewReplacer("m-a", "m-b", "m-0", "m-1", "u0", "u1").Replace(smallSlice)
	d := open(t, "pool.yaml", smallPool, "a.yaml", smallSlice, "b.yaml", other)
	s, problems := load(t, d)
	wantProblem(t, problems, "b.yaml", "EndpointSlice default/m-b", "127.0.0.1:8001", "m-0", "default/m-a (a.yaml)")
	if got := only(t, s).Endpoints; len(got) != 1 || got[0].Pod != "m-0" {
		t.Errorf("endpoints %+v", got)
	}
	write(t, d.file("b.yaml"), strings.Replace(other, "8001", "8002", 1))
	s, problems = load(t, d)
	wantNoProblem(t, problems)
	if got := only(t, s).Endpoints; len(got) != 2 {
		t.Errorf("endpoints %+v", got)
	}
}

func TestASliceThatDoesNotFitItsPoolAnyMoreKeepsItsEndpoints(t *testing.T) {
	d := open(t, "pool.yaml", poolWith("engine: {dataParallel: {ranks: 2}}"),
		"pods.yaml", sliceText("", "", "[{name: kv-events-1, port: 1}]", "{addresses: [10.0.0.7], targetRef: {name: m-0}}"))
	_, problems := load(t, d)
	wantNoProblem(t, problems)
	write(t, d.file("pool.yaml"), smallPool)
	s, problems := load(t, d)
	wantProblem(t, problems, "pods.yaml", "ports[0].name", "last good")
	if n := len(only(t, s).Endpoints); n != 2 {
		t.Errorf("%d endpoints, want the 2 of before", n)
	}
}
