package config

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// Endpoints are the endpoints of a pool that a valid slice lists: every rank of every pod.
//
// Ports that the slice names are those of the first rank here, the r-th rank after it has that number + r unless the
// slice names one with -r. Ports that it does not name are the pool's: http (+ r with PortPerRank), and for events and
// replay base + global rank, as engines do. Those two are assumed where the pool does not name them either.
func Endpoints(pool *v1alpha1.InferencePool, s *discoveryv1.EndpointSlice) ([]endpoint.Endpoint, field.ErrorList) {
	first, err := startRank(s)
	if err != nil {
		return nil, field.ErrorList{field.Invalid(field.NewPath("metadata", "annotations").Key(v1alpha1.AnnotationStartRank), "", err.Error())}
	}
	ranks := int(pool.Spec.Engine.DataParallel.Ranks)
	ports, errs := rankPorts(pool, s, first)
	island := v1alpha1.LabelIsland
	if p := pool.Spec.Placement; p != nil && p.IslandLabel != "" {
		island = p.IslandLabel
	}
	role, ok := roleOf(s.Labels)
	if !ok {
		errs = append(errs, field.NotSupported(field.NewPath("metadata", "labels").Key(v1alpha1.LabelRole), s.Labels[v1alpha1.LabelRole],
			slices.Sorted(maps.Keys(ownRoles))))
	}
	socket := s.Annotations[v1alpha1.AnnotationHTTPSocket]
	if socket != "" && ranks > 1 && pool.Spec.Engine.DataParallel.Addressing == v1alpha1.AddressByPort {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "annotations").Key(v1alpha1.AnnotationHTTPSocket), socket,
			"one socket cannot serve the ranks of a pool with addressing PortPerRank"))
	}
	if len(errs) > 0 {
		return nil, errs
	}
	var all []endpoint.Endpoint
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		ready, serving, terminating := conditions(e.Conditions)
		for r, p := range ports {
			ep := endpoint.Endpoint{
				ID:         endpoint.ID{Pod: podIdentity(s, e), Rank: r},
				Pod:        e.TargetRef.Name,
				Namespace:  podNamespace(s, e),
				Address:    hostPort(e.Addresses[0], p.http),
				Socket:     socket,
				RankHeader: -1,
				Island:     s.Labels[island],
				Role:       role,
				Revision:   revisionOf(s.Labels),
				Ready:      ready, Serving: serving, Terminating: terminating,
			}
			if p.events > 0 {
				ep.EventsAddress = hostPort(e.Addresses[0], p.events)
			}
			ep.EventsAssumed, ep.ReplayAssumed = p.eventsAssumed, p.replayAssumed
			if p.replay > 0 {
				ep.ReplayAddress = hostPort(e.Addresses[0], p.replay)
			}
			ep.EventRank, ep.DialsIn = first+r, listens(pool)
			if pool.Spec.Engine.DataParallel.Addressing == v1alpha1.AddressByHeader && (ranks > 1 || first > 0) {
				ep.RankHeader = first + r
			}
			all = append(all, ep)
		}
	}
	return all, nil
}

// podIdentity is the UID of an endpoint's pod, or its namespace and name where there is no UID.
func podIdentity(s *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint) string {
	if e.TargetRef.UID != "" {
		return string(e.TargetRef.UID)
	}
	return podNamespace(s, e) + "/" + e.TargetRef.Name
}

func podNamespace(s *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint) string {
	if e.TargetRef.Namespace != "" {
		return e.TargetRef.Namespace
	}
	return s.Namespace
}

// conditions of an endpoint, with what Kubernetes makes of those that are absent.
func conditions(c discoveryv1.EndpointConditions) (ready, serving, terminating bool) {
	ready = c.Ready == nil || *c.Ready
	serving = ready
	if c.Serving != nil {
		serving = *c.Serving
	}
	return ready, serving, c.Terminating != nil && *c.Terminating
}

func hostPort(address string, port int) string { return net.JoinHostPort(address, strconv.Itoa(port)) }

// ports of one rank; events is 0 where the picker does not subscribe, replay where it takes no events from engines.
type ports struct {
	http, events, replay         int
	eventsAssumed, replayAssumed bool // not configured
}

// rankPorts are the ports of each rank of the slice's pods.
func rankPorts(pool *v1alpha1.InferencePool, s *discoveryv1.EndpointSlice, first int) ([]ports, field.ErrorList) {
	named := map[string]int{}
	var errs field.ErrorList
	ranks, perRank := int(pool.Spec.Engine.DataParallel.Ranks), pool.Spec.Engine.DataParallel.Addressing == v1alpha1.AddressByPort
	for i, p := range s.Ports {
		if p.Name == nil || p.Port == nil || !portName.MatchString(*p.Name) {
			continue
		}
		named[*p.Name] = int(*p.Port)
		match := portName.FindStringSubmatch(*p.Name)
		rank, _ := strconv.Atoi(match[3]) // empty for the first rank
		path := field.NewPath("ports").Index(i).Child("name")
		if rank >= ranks {
			errs = append(errs, field.Invalid(path, *p.Name, fmt.Sprintf("the pool has %d ranks per pod", ranks)))
		} else if match[1] == portHTTP && rank > 0 && !perRank {
			errs = append(errs, field.Invalid(path, *p.Name, "the pool's ranks share one HTTP port (addressing Header)"))
		}
	}
	base := pool.Spec.Engine.Ports
	of := func(name string, rank, fallback int) int {
		if rank > 0 {
			if port, ok := named[name+"-"+strconv.Itoa(rank)]; ok {
				return port
			}
		}
		if port, ok := named[name]; ok {
			return port + rank
		}
		return fallback
	}
	names := func(name string, rank int) bool { return of(name, rank, 0) > 0 }
	list := make([]ports, ranks)
	for r := range list {
		p := ports{http: of(portHTTP, 0, int(base.HTTP))}
		if perRank {
			p.http = of(portHTTP, r, int(base.HTTP)+r)
		}
		if subscribes(pool) {
			p.events = of(portEvents, r, int(base.EventsPort())+first+r)
			p.eventsAssumed = base.Events == 0 && !names(portEvents, r)
		}
		if subscribes(pool) || listens(pool) {
			p.replay = of(portReplay, r, int(base.ReplayPort())+first+r)
			p.replayAssumed = subscribes(pool) && base.Replay == 0 && !names(portReplay, r)
		}
		if largest := max(p.http, p.events, p.replay); largest > 65_535 {
			errs = append(errs, field.Invalid(field.NewPath("ports"), largest, fmt.Sprintf("rank %d would have a port above 65535", r)))
			break
		}
		list[r] = p
	}
	return list, errs
}

// reported reports whether reporters can send what the pool's endpoints hold.
func reported(pool *v1alpha1.InferencePool) bool {
	source := pool.Spec.Engine.Events.Source
	return source == v1alpha1.EventsAuto || source == v1alpha1.EventsReporter
}

// subscribes reports whether the picker connects to the pool's event publishers.
func subscribes(pool *v1alpha1.InferencePool) bool {
	source := pool.Spec.Engine.Events.Source
	return source == v1alpha1.EventsAuto || source == v1alpha1.EventsSubscribe
}

// listens reports whether the pool's event publishers connect to the picker.
func listens(pool *v1alpha1.InferencePool) bool {
	return pool.Spec.Engine.Events.Source == v1alpha1.EventsListen
}
