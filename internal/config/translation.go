package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/spelling"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

const kindEndpointSlice = "EndpointSlice"

// kindOf is the kind of object that a slice was made from.
func kindOf(s *discoveryv1.EndpointSlice) string {
	if s.Kind == kindPod {
		return kindPod
	}
	return kindEndpointSlice
}

func (n *translation) translatePolicy(p *v1alpha1.RoutingPolicy) {
	name := nameOf(p)
	s := PolicyState{Object: p}
	last, good := n.last.policies[name]
	spec, errs := policySpec(p, &last.Hooks)
	for _, err := range errs {
		s.Problems = append(s.Problems, n.problem(v1alpha1.KindRoutingPolicy, p, err, good))
	}
	secret := func(name string) *corev1.Secret {
		return n.secrets[types.NamespacedName{Namespace: p.Namespace, Name: name}]
	}
	known, missing, invalid := PolicyTenants(p, secret)
	more, faults := responseCacheSecrets(&p.Spec.ResponseCache, &spec.Responses, secret)
	missing = append(missing, more...)
	if len(errs) == 0 {
		if spec.Admission.Tenants != nil {
			spec.Admission.Tenants.Known = known
			for _, err := range invalid {
				n.problem(v1alpha1.KindRoutingPolicy, p, err, false)
			}
		}
		for _, err := range faults {
			n.problem(v1alpha1.KindRoutingPolicy, p, err, false)
		}
		n.next.policies[name] = spec
	} else if good {
		n.next.policies[name] = last
	}
	s.MissingSecrets = missing
	for i, target := range PolicyTargets(p) {
		ts := TargetState{Found: n.pools[target] != nil}
		path := field.NewPath("spec", "targetRefs").Index(i)
		if winner := n.winners[target]; winner != p {
			ts.Winner = winner.Name
			n.problem(v1alpha1.KindRoutingPolicy, p, field.Forbidden(path,
				fmt.Sprintf("RoutingPolicy %s targets the pool %s too, and is the one in force", nameOf(winner), target.Name)), false)
		}
		if !ts.Found {
			n.missingPool(v1alpha1.KindRoutingPolicy, p, path.Child("name"), target)
		}
		s.Targets = append(s.Targets, ts)
	}
	n.state.Policies = append(n.state.Policies, s)
}

// checkTokens gives policies what checks their tokens: for all at once, because that can wait for the issuers. A policy that is in force
// from before keeps what it has.
func (n *translation) checkTokens() {
	if n.settings.Tokens == nil {
		return
	}
	var specs []*picker.TenantsSpec
	var issuers []tenant.Issuer
	for _, p := range n.next.policies {
		if t := p.Admission.Tenants; t != nil && t.Issuer != nil {
			specs, issuers = append(specs, t), append(issuers, *t.Issuer)
		}
	}
	for i, checker := range n.settings.Tokens(issuers) {
		if specs[i].Tokens == nil {
			specs[i].Tokens = checker
		}
	}
}

// translateSlice returns the pool of a slice and the endpoints that the slice adds to it. A pod belongs to one pool and one
// slice: owners has the slice of each pod so far.
func (n *translation) translateSlice(s *discoveryv1.EndpointSlice, owners map[string]string) (types.NamespacedName, []endpoint.Endpoint) {
	name, label := nameOf(s), field.NewPath("metadata", "labels").Key(v1alpha1.LabelPool)
	target := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[v1alpha1.LabelPool]}
	if target.Name == "" {
		n.problem(kindOf(s), s, field.Required(label, "the name of the pool that the endpoints belong to"), false)
		return target, nil
	}
	pool := n.pools[target]
	if pool == nil {
		n.missingPool(kindOf(s), s, label, target)
		return target, nil
	}
	all, errs := Endpoints(pool, s)
	if len(errs) > 0 {
		last, known := n.last.endpoints[name]
		for _, err := range errs {
			n.problem(kindOf(s), s, err, known)
		}
		all = refresh(last, s)
		if known {
			n.next.endpoints[name] = all
		}
	} else {
		n.next.endpoints[name] = all
	}
	for i := range s.Endpoints {
		pod := podIdentity(s, &s.Endpoints[i])
		if other, taken := owners[pod]; taken {
			n.problem(kindOf(s), s, field.Duplicate(field.NewPath("endpoints").Index(i).Child("targetRef"),
				fmt.Sprintf("pod %s, an endpoint of %s already", s.Endpoints[i].TargetRef.Name, other)), false)
		}
	}
	own := slices.DeleteFunc(slices.Clone(all), func(ep endpoint.Endpoint) bool { return owners[ep.ID.Pod] != "" })
	own = n.onceEach(target, s, own)
	for _, ep := range own {
		owners[ep.ID.Pod] = n.sliceName(s)
	}
	return target, own
}

// sliceName is the name of a slice, and where it was read if that tells people more.
func (n *translation) sliceName(s *discoveryv1.EndpointSlice) string {
	key := ObjectKey{Kind: kindOf(s), Namespace: s.Namespace, Name: s.Name}
	if file := n.origins[key].File; file != "" {
		return fmt.Sprintf("%s (%s)", key, file)
	}
	return key.String()
}

// engineAt is what a request for an endpoint of a pool is sent to.
type engineAt struct {
	pool       types.NamespacedName
	address    string // or socket
	rankHeader int
}

// onceEach leaves out the pods whose engine another pod of the pool has, too: the engine would get the requests of two. Pods
// that end do not count, because their addresses are used again, and neither do those of a cluster, whose addresses are not
// written by people.
func (n *translation) onceEach(pool types.NamespacedName, s *discoveryv1.EndpointSlice, list []endpoint.Endpoint) []endpoint.Endpoint {
	if kindOf(s) == kindPod {
		return list
	}
	at := func(ep *endpoint.Endpoint) engineAt {
		return engineAt{pool, cmp.Or(ep.Socket, canonical(ep.Address)), ep.RankHeader}
	}
	var once []endpoint.Endpoint
	for len(list) > 0 {
		ranks := list // of the first pod
		if next := slices.IndexFunc(list, func(ep endpoint.Endpoint) bool { return ep.ID.Pod != list[0].ID.Pod }); next > 0 {
			ranks = list[:next]
		}
		list = list[len(ranks):]
		taken := slices.IndexFunc(ranks, func(ep endpoint.Endpoint) bool { return !ep.Terminating && n.engines[at(&ep)] != "" })
		if taken >= 0 {
			ep := &ranks[taken]
			message := fmt.Sprintf("%s, the engine of %s already", at(ep).address, n.engines[at(ep)])
			n.problem(kindOf(s), s, field.Duplicate(pathOf(s, ep), message), false)
			continue
		}
		once = append(once, ranks...)
		for i := range ranks {
			if ep := &ranks[i]; !ep.Terminating {
				n.engines[at(ep)] = fmt.Sprintf("pod %s of %s", ep.Pod, n.sliceName(s))
			}
		}
	}
	return once
}

// canonical is an address with its port in the one form that all spellings of it have.
func canonical(address string) string {
	if at, err := netip.ParseAddrPort(address); err == nil {
		return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()
	}
	return address
}

// pathOf is the field of a slice that has an endpoint's address.
func pathOf(s *discoveryv1.EndpointSlice, ep *endpoint.Endpoint) *field.Path {
	if ep.Socket != "" {
		return field.NewPath("metadata", "annotations").Key(v1alpha1.AnnotationHTTPSocket)
	}
	i := slices.IndexFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return podIdentity(s, &e) == ep.ID.Pod })
	return field.NewPath("endpoints").Index(i).Child("addresses").Index(0)
}

// missingPool records that an object refers to a pool that is not there, and which one was probably meant.
func (n *translation) missingPool(kind string, o metav1.Object, path *field.Path, target types.NamespacedName) {
	key := ObjectKey{Kind: v1alpha1.KindInferencePool, Namespace: target.Namespace, Name: target.Name}
	missing := field.NotFound(path, key.String())
	defer func() {
		n.problem(kind, o, missing, false)
		n.state.Problems[len(n.state.Problems)-1].needs = key
	}()
	if n.suggestions == 0 {
		return
	}
	n.suggestions--
	var names []string
	byName := func(a, b types.NamespacedName) int { return cmp.Compare(a.String(), b.String()) }
	for _, name := range slices.SortedFunc(maps.Keys(n.pools), byName) {
		switch {
		case name.Namespace == target.Namespace:
			names = append(names, name.Name)
		case name.Name == target.Name:
			missing.Detail = "there is one in the namespace " + name.Namespace
		}
	}
	if meant := spelling.Nearest(target.Name, names); meant != "" {
		missing.Detail = fmt.Sprintf("did you mean %q?", meant)
	}
}

// refresh makes endpoints that were translated before, and cannot be now, follow what their pods are now: those that the
// slice no longer has go, and so does the readiness of the others.
func refresh(last []endpoint.Endpoint, s *discoveryv1.EndpointSlice) []endpoint.Endpoint {
	var all []endpoint.Endpoint
	for _, ep := range last {
		for i := range s.Endpoints {
			if e := &s.Endpoints[i]; podIdentity(s, e) == ep.ID.Pod {
				ep.Ready, ep.Serving, ep.Terminating = conditions(e.Conditions)
				all = append(all, ep)
			}
		}
	}
	return all
}

// draftPool translates a pool, except for its policy and endpoints.
func (n *translation) draftPool(p *v1alpha1.InferencePool) *draft {
	d := &draft{name: nameOf(p), object: p}
	problem := func(err *field.Error, kept bool) {
		d.problems = append(d.problems, n.problem(v1alpha1.KindInferencePool, p, err, kept))
	}
	var errs field.ErrorList
	d.last, d.known = n.last.pools[d.name]
	d.spec, errs = Pool(p, n.secrets, n.maps, &n.settings)
	d.served = d.known || len(errs) == 0
	for _, err := range errs {
		problem(err, d.known)
	}
	if len(errs) > 0 {
		d.spec = d.last
	}
	return d
}

// finishPool adds the policy and endpoints to a pool.
func (n *translation) finishPool(d *draft, endpoints []endpoint.Endpoint) {
	s := PoolState{Object: d.object, Served: d.served, Problems: d.problems}
	if d.served {
		spec := d.spec
		n.next.pools[d.name] = spec
		spec.Policy = n.fallback
		if winner := n.winners[d.name]; winner != nil {
			if policy, ok := n.next.policies[nameOf(winner)]; ok {
				spec.Policy, s.Policy = policy, winner
				if redis := &spec.Policy.Responses.Redis; redis.Address != "" {
					redis.Origin = originOf(d.object, winner)
				}
				n.next.inForce[d.name] = winner.Name
			}
		}
		for i := range endpoints {
			endpoints[i].Wire = spec.Wire
			if spec.Policy.Handoffs.Rule == picker.HandoffOff {
				endpoints[i].Role = endpoint.Both
			}
		}
		spec.Endpoints = endpoints
		s.KeyID = spec.Seed.ID()
		n.state.Specs = append(n.state.Specs, spec)
	}
	n.state.Pools = append(n.state.Pools, s)
}
