package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
)

func modelRoute(t *testing.T, name, spec string) object {
	t.Helper()
	return defaulted(t, "ModelRoute", name, spec)
}

// routed are the names of the routes that are applied.
func routed(s config.State) string {
	var names []string
	for i := range s.RouteSpecs {
		names = append(names, s.RouteSpecs[i].Name)
	}
	return strings.Join(names, " ")
}

func hasRoutes(want string) func(config.State) bool {
	return func(s config.State) bool { return routed(s) == want }
}

func TestAFleetFollowsTheRoutesOfItsNamespace(t *testing.T) {
	s := newAPIServer(t)
	s.put("secrets", "a-key", root("1"))
	s.put("secrets", "b-key", root("2"))
	s.put("inferencepools", "a", fleetPool(t, "a", ofFleet))
	s.put("inferencepools", "managed", fleetPool(t, "managed", `{}`))
	s.put("modelroutes", "chat", modelRoute(t, "chat", `{"models":["chat"],"rules":[{"backends":[{"pool":"a"},{"pool":"managed"}]}]}`))
	s.put("modelroutes", "early", modelRoute(t, "early", `{"models":["early"],"rules":[{"backends":[{"pool":"b"}]}]}`))
	s.put("modelroutes", "others", modelRoute(t, "others", `{"models":["others"],"rules":[{"backends":[{"pool":"managed"}]}]}`))
	states := followFleet(t, s, "default")
	first := <-states
	if routed(first) != "chat early" {
		t.Fatalf("the first state has the routes %q: it must be a whole one", routed(first))
	}
	var problems []string
	for i := range first.Problems {
		problems = append(problems, first.Problems[i].Error())
	}
	for _, want := range []string{
		"chat: spec.rules[0].backends[1].pool: Invalid value: \"managed\": InferencePool default/managed is of no PickerFleet: its picker.mode is Managed",
		"early: spec.rules[0].backends[0].pool: Not found",
	} {
		if !strings.Contains(strings.Join(problems, "\n"), want) {
			t.Errorf("problems %q, want one with %q", problems, want)
		}
	}
	s.put("inferencepools", "b", fleetPool(t, "b", ofFleet))
	await(t, states, "the pool of a route that was there before", func(s config.State) bool { return len(s.Specs) == 2 && len(s.Problems) == 1 })
	s.put("modelroutes", "chat", modelRoute(t, "chat", `{"models":["chat"],"rules":[{"backends":[{"pool":"b","weight":5}]}]}`))
	await(t, states, "a changed route", func(s config.State) bool {
		return routed(s) == "chat early" && s.RouteSpecs[0].Rules[0].Backends[0].Weight == 5
	})
	s.put("modelroutes", "chat", object{"spec": object{"models": "of another version"}})
	s.put("inferencepools", "managed", fleetPool(t, "managed", ofFleet))
	await(t, states, "a route that cannot be read beside the others", hasRoutes("chat early others"))
	s.remove("modelroutes", "chat")
	await(t, states, "the end of a route", hasRoutes("early others"))
}

// TestOnePoolFollowsNoRoutes: its pickers do not even ask for them, so that they need no right.
func TestOnePoolFollowsNoRoutes(t *testing.T) {
	s := newAPIServer(t)
	s.put("secrets", "m-key", root("7"))
	s.put("inferencepools", "m", defaulted(t, "InferencePool", "m", smallPool))
	s.put("modelroutes", "chat", modelRoute(t, "chat", `{"models":["chat"],"rules":[{"backends":[{"pool":"m"}]}]}`))
	states := follow(t, s)
	if state := await(t, states, "the pool", serves("m")); routed(state) != "" {
		t.Errorf("routes %q", routed(state))
	}
	if n := s.requests("modelroutes"); n != 0 {
		t.Errorf("%d requests for routes", n)
	}
}

// TestAFleetServesWithoutTheDefinitionOfRoutes, of an older chart, or without the right to read them; and with them when they come.
func TestAFleetServesWithoutTheDefinitionOfRoutes(t *testing.T) {
	for name, refuse := range map[string]func(s *apiServer, refused bool){
		"no definition": func(s *apiServer, refused bool) { s.define("modelroutes", !refused) },
		"no right":      func(s *apiServer, refused bool) { s.deny("modelroutes", refused) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newAPIServer(t)
			refuse(s, true)
			s.put("secrets", "a-key", root("1"))
			s.put("inferencepools", "a", fleetPool(t, "a", ofFleet))
			s.put("modelroutes", "chat", modelRoute(t, "chat", `{"models":["chat"],"rules":[{"backends":[{"pool":"a"}]}]}`))
			states := followFleet(t, s, "default")
			await(t, states, "the pool", serves("a"))
			s.put("pods", "a-0", fleetPod("a", "10.0.0.1"))
			await(t, states, "a pod", picks("a-0@10.0.0.1:8000"))
			refuse(s, false)
			await(t, states, "the route", hasRoutes("chat"))
		})
	}
}

// TestTheFirstStateDoesNotWaitForRoutesThatAreRefused: neither without the definition nor without the right; for others it waits a while.
func TestTheFirstStateDoesNotWaitForRoutesThatAreRefused(t *testing.T) {
	resource := v1alpha1.Resource("modelroutes")
	for name, tc := range map[string]struct {
		err  error
		want time.Duration
	}{
		"no definition": {apierrors.NewNotFound(resource, ""), 0},
		"no right":      {apierrors.NewForbidden(resource, "", nil), 0},
		"an outage":     {errors.New("connection refused"), routeWait},
		"nothing yet":   {nil, routeWait},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// It is never started, so it is never synced.
				r := newRoutes(cache.NewSharedIndexInformer(&cache.ListWatch{}, &unstructured.Unstructured{}, 0, cache.Indexers{}), logr.Discard())
				if tc.err != nil {
					r.broken(t.Context(), nil, tc.err)
				}
				began := time.Now()
				r.wait(context.Background())
				if waited := time.Since(began); waited != tc.want {
					t.Errorf("waited %s, want %s", waited, tc.want)
				}
			})
		})
	}
}
