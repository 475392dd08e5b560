package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// apiServer is as much of an API server as the source asks for: lists, watches and gets of one namespace.
type apiServer struct {
	*httptest.Server

	mu       sync.Mutex
	version  int
	objects  map[string]map[string]object // by resource and name
	watchers map[chan event]string        // the resource that each watches
	away     bool
	broken   chan struct{} // closed when the server goes away
	denied   map[string]bool
	gets     map[string]int
	absent   map[string]bool // resources without a definition
}

type object map[string]any

// gatewayPools are the pools of the inference extension.
const gatewayPools = "gatewaypools"

type event struct {
	Type   string `json:"type"`
	Object object `json:"object"`
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{
		version: 1, objects: map[string]map[string]object{}, watchers: map[chan event]string{}, broken: make(chan struct{}),
		denied: map[string]bool{}, gets: map[string]int{}, absent: map[string]bool{},
	}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		s.setAway(true)
		s.Close()
	})
	return s
}

func (s *apiServer) config() *rest.Config { return &rest.Config{Host: s.URL, QPS: -1} }

// put stores an object and tells the watchers. Its generation follows its spec.
func (s *apiServer) put(resource, name string, o object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := map[string]string{"inferencepools": "InferencePool", gatewayPools: "InferencePool", "routingpolicies": "RoutingPolicy", "modelroutes": "ModelRoute", "pods": "Pod", "secrets": "Secret", "configmaps": "ConfigMap"}[resource]
	before, known := s.objects[resource][name]
	s.version++
	meta := object{"name": name, "namespace": "default", "uid": "uid-" + name, "creationTimestamp": "2026-01-01T00:00:00Z"}
	generation := 1
	if known {
		old := before["metadata"].(object)
		generation, _ = old["generation"].(int)
		if fmt.Sprint(before["spec"]) != fmt.Sprint(o["spec"]) {
			generation++
		}
	}
	for key, value := range o {
		if given, ok := value.(object); ok && key == "metadata" {
			for k, v := range given {
				meta[k] = v
			}
		}
	}
	meta["generation"], meta["resourceVersion"] = generation, fmt.Sprint(s.version)
	full := object{"apiVersion": "v1", "kind": kind, "metadata": meta}
	if (strings.Contains(kind, "Po") || kind == "ModelRoute") && kind != "Pod" {
		full["apiVersion"] = "kvasir.dev/v1alpha1"
	}
	if resource == gatewayPools {
		full["apiVersion"] = "inference.networking.k8s.io/v1"
	}
	for key, value := range o {
		if key != "metadata" {
			full[key] = value
		}
	}
	if s.objects[resource] == nil {
		s.objects[resource] = map[string]object{}
	}
	s.objects[resource][name] = full
	kindOf := "ADDED"
	if known {
		kindOf = "MODIFIED"
	}
	s.sendEvent(resource, event{kindOf, full})
}

func (s *apiServer) remove(resource, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[resource][name]
	delete(s.objects[resource], name)
	s.version++
	s.sendEvent(resource, event{"DELETED", o})
}

func (s *apiServer) sendEvent(resource string, e event) {
	for w, of := range s.watchers {
		if of == resource {
			w <- e
		}
	}
}

// setAway makes the server refuse everything and break its watches, or come back.
func (s *apiServer) setAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if away == s.away {
		return
	}
	if s.away = away; away {
		close(s.broken)
	} else {
		s.broken = make(chan struct{})
	}
}

func (s *apiServer) requests(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gets[what]
}

// define adds the definition of a resource, or takes it away.
func (s *apiServer) define(resource string, there bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.absent[resource] = !there
}

// deny makes gets of an object, or all requests for a resource, be refused.
func (s *apiServer) deny(what string, denied bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied[what] = denied
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, path, _ := strings.Cut(r.URL.Path, "/namespaces/default/")
	if strings.Contains(r.URL.Path, "/inference.networking.k8s.io/") {
		path = strings.Replace(path, "inferencepools", gatewayPools, 1)
	}
	resource, name, one := strings.Cut(path, "/")
	s.mu.Lock()
	away, absent, forbidden := s.away, s.absent[resource], s.denied[resource]
	s.gets[path]++
	s.mu.Unlock()
	switch {
	case away:
		panic(http.ErrAbortHandler)
	case absent:
		failure(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case forbidden:
		failure(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	case one:
		s.get(w, resource, name)
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r, resource)
	default:
		s.list(w, resource)
	}
}

func failure(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code),
	})
}

func (s *apiServer) get(w http.ResponseWriter, resource, name string) {
	s.mu.Lock()
	o, ok := s.objects[resource][name]
	denied := s.denied[resource+"/"+name]
	s.mu.Unlock()
	switch {
	case denied:
		failure(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	case !ok:
		failure(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(o)
	}
}

func (s *apiServer) list(w http.ResponseWriter, resource string) {
	s.mu.Lock()
	items := []object{}
	for _, o := range s.objects[resource] {
		items = append(items, o)
	}
	list := object{"apiVersion": "v1", "kind": "List", "metadata": object{"resourceVersion": fmt.Sprint(s.version)}, "items": items}
	if resource == "pods" {
		list["kind"] = "PodList"
	}
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list)
}

// watch reports changes from now on. A watch that asks for the existing objects first is refused, as by servers that do not
// know it; one from a version that is not the present begins again.
func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, resource string) {
	if r.URL.Query().Get("sendInitialEvents") != "" {
		failure(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		return
	}
	events := make(chan event, 1000)
	s.mu.Lock()
	broken, stale := s.broken, r.URL.Query().Get("resourceVersion") != fmt.Sprint(s.version)
	if !stale {
		s.watchers[events] = resource
	}
	s.mu.Unlock()
	if stale {
		failure(w, http.StatusGone, metav1.StatusReasonExpired)
		return
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, events)
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flusher := w.(http.Flusher)
	flusher.Flush()
	for {
		select {
		case e := <-events:
			_ = json.NewEncoder(w).Encode(e)
			flusher.Flush()
		case <-r.Context().Done():
			return
		case <-broken:
			panic(http.ErrAbortHandler)
		}
	}
}
