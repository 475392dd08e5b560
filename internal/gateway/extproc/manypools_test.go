package extproc

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// listed are the models of an answer.
func listed(t *testing.T, text string) (names []string) {
	t.Helper()
	var list request.ModelList
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for i := range list.Data {
		names = append(names, list.Data[i].ID)
	}
	slices.Sort(names)
	return names
}

func (g *standIn) get(path string, header ...string) *http.Response {
	g.t.Helper()
	r, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, g.url+path, http.NoBody)
	if err != nil {
		g.t.Fatal(err)
	}
	return g.do(r, header...)
}

// reported has a message report which endpoint has served.
func reported(m *pb.ProcessingRequest, address string) *pb.ProcessingRequest {
	m.MetadataContext = &core.Metadata{FilterMetadata: map[string]*structpb.Struct{
		destinationSpace: {Fields: map[string]*structpb.Value{servedKey: structpb.NewStringValue(address)}},
	}}
	return m
}

// TestAPortForAllPoolsListsTheirModels, of several pools and of routes: no engine has the list. A port for one pool, and one pool without
// routes, leave the list to the engine.
func TestAPortForAllPoolsListsTheirModels(t *testing.T) {
	theirs := engine(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"object":"list","data":[{"id":"of the engine"}]}`))
	})
	a, b := named("a", theirs), named("org/b", theirs)
	route := modelroute.Route{Namespace: "default", Name: "chat", Models: []string{"chat"},
		Rules: []modelroute.Rule{{Backends: []modelroute.Backend{{Pool: "default/a", Weight: 1}}}}}
	for name, tc := range map[string]struct {
		pool   string
		specs  []picker.Spec
		routes []modelroute.Route
		want   []string
	}{
		"two pools":            {"", []picker.Spec{a, b}, nil, []string{"a", "org/b"}},
		"a pool and a route":   {"", []picker.Spec{a}, []modelroute.Route{route}, []string{"a", "chat"}},
		"one pool":             {"", []picker.Spec{a}, nil, []string{"of the engine"}},
		"a port for one of it": {"default/a", []picker.Spec{a, b}, []modelroute.Route{route}, []string{"of the engine"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, Options{Pool: tc.pool}, ServeOptions{}, tc.specs...)
			if err := h.picker.Apply(tc.specs, tc.routes...); err != nil {
				t.Fatal(err)
			}
			g := h.envoy(envoytest.Options{})
			answer := g.get("/v1/models?all=1")
			text := read(t, answer)
			if got := listed(t, text); answer.StatusCode != http.StatusOK || !slices.Equal(got, tc.want) {
				t.Errorf("%d %v, want %v", answer.StatusCode, got, tc.want)
			}
			if tc.want[0] == "of the engine" {
				return
			}
			if kind := answer.Header.Get("Content-Type"); kind != "application/json" {
				t.Errorf("it is of type %q", kind)
			}
			for _, name := range tc.want {
				one := g.get("/v1/models/" + strings.ReplaceAll(name, "/", "%2F"))
				if text := read(t, one); one.StatusCode != http.StatusOK || !strings.Contains(text, `"id":"`+name+`"`) {
					t.Errorf("model %s: %d %s", name, one.StatusCode, text)
				}
			}
			if other := g.get("/v1/models/unknown"); other.StatusCode != http.StatusNotFound {
				t.Errorf("an unknown model: %d", other.StatusCode)
			}
		})
	}
}

// TestTenantsBehindAGatewayListTheirModels, and clients that are none nothing.
func TestTenantsBehindAGatewayListTheirModels(t *testing.T) {
	a, b := keyed(t, "127.0.0.1:1"), keyed(t, "127.0.0.1:2")
	a.Model, a.Aliases, a.Adapters = "m", nil, nil
	b.Name, b.Model, b.Aliases, b.Adapters, b.Endpoints[0].ID.Pod = "b", "other", nil, nil, "uid-b"
	g := newHouse(t, Options{}, ServeOptions{}, a, b).envoy(envoytest.Options{})
	for key, want := range map[string][]string{"k-acme": {"m", "other"}, "k-small": {"m"}} {
		answer := g.get("/v1/models", "Authorization", "Bearer "+key)
		if got := listed(t, read(t, answer)); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", key, got, want)
		}
	}
	if answer := g.get("/v1/models"); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a key: %d %s", answer.StatusCode, read(t, answer))
	}
}

// TestNoClientGetsTheAnswerOfAnotherPool: if the gateway reports that an engine of another pool has answered, the client gets an error that it
// can try again after. Answers of other endpoints of the pool, and of addresses that no pool has, pass.
func TestNoClientGetsTheAnswerOfAnotherPool(t *testing.T) {
	for name, tc := range map[string]struct {
		served string
		passes bool
	}{
		"the picked endpoint":     {"10.0.0.1:8000", true},
		"another of the pool":     {"10.0.0.2:8000", true},
		"an address that is none": {"10.0.0.9:8000", true},
		"one of another pool":     {"10.0.1.1:8000", false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, Options{}, ServeOptions{}, named("a", "10.0.0.1:8000", "10.0.0.2:8000"), named("b", "10.0.1.1:8000"))
			s := h.script()
			if got := s.routed(`{"model":"a","prompt":"x"}`); got != "10.0.0.1:8000" {
				t.Fatalf("picked %s", got)
			}
			s.send(reported(responseHead(false, ":status", "200", "content-type", "application/json"), tc.served), responsePiece(`{"model":"b"}`, true))
			answer := s.receive()
			if tc.passes {
				if answer.GetResponseHeaders() == nil || s.receive().GetResponseBody() == nil {
					t.Errorf("the answer does not pass: %v", answer)
				}
			} else if i := answer.GetImmediateResponse(); i.GetStatus().GetCode() != http.StatusServiceUnavailable || !strings.Contains(string(i.GetBody()), "another pool") {
				t.Errorf("the client gets %v", answer)
			}
			if err := s.stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			s.ended()
			eventually(t, "no request is left", func() bool {
				for _, pool := range h.picker.Stats() {
					for _, ep := range pool.Endpoints {
						if ep.Load.InFlight != 0 {
							return false
						}
					}
				}
				return h.server.Streams() == 0
			})
		})
	}
}
