package server

import (
	"errors"
	"flag"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// operatorOptions are the flags about the operator.
type operatorOptions struct {
	account         string // NAMESPACE/NAME
	namespace, name string // of account
	replica         string // what the operator calls this picker
}

func (o *operatorOptions) flags(f *flag.FlagSet) {
	f.StringVar(&o.account, "operator", "", "service account of the operator, as `NAMESPACE/NAME`: a client with its token receives at the report address what the picker knows of its pods")
	f.StringVar(&o.replica, "name", "", "`name` of the picker's pod; default is the environment variable POD_NAME, then the host name")
}

func (o *operatorOptions) check() error {
	if o.account == "" {
		return nil
	}
	var ok bool
	if o.namespace, o.name, ok = strings.Cut(o.account, "/"); !ok || o.namespace == "" || o.name == "" || strings.Contains(o.name, "/") {
		return fmt.Errorf("--operator %q: want NAMESPACE/NAME", o.account)
	}
	return nil
}

// newOperate makes the service for the operator, whose tokens have the same issuer as reporters'; nil without an operator.
func (a *app) newOperate(o *options, reporters rpc.Authenticator) (*rpc.OperateService, error) {
	s := &rpc.OperateService{State: a.operateState, WarmUp: a.warmUp, Log: a.log.WithName("operator")}
	tokens, ok := reporters.(rpc.Tokens)
	switch {
	case o.operator.account == "":
		return nil, nil
	case ok:
		tokens.Audience = rpc.OperateAudience
		s.Auth = rpc.Account{Tokens: tokens, Namespace: o.operator.namespace, Name: o.operator.name}
	case o.reports.insecure:
		s.Auth = rpc.Anybody{}
	default:
		return nil, errors.New("--operator needs --report-keys, to check its token, or --report-insecure")
	}
	return s, nil
}

// operateState is the state of a pool that is sent to the operator.
func (a *app) operateState(pool string) (operatorfeed.State, bool) {
	known, ok := a.picker.Operate(pool)
	if !ok {
		return a.refusal(pool)
	}
	s := operatorfeed.State{
		Picker: a.name, Incarnation: a.peers.outbox.Incarnation(), Ready: a.isReady(),
		PoolGeneration: known.PoolGeneration, PolicyName: known.PolicyName, PolicyGeneration: known.PolicyGeneration,
		Pods: map[string]operatorfeed.PodState{}, Totals: known.Totals,
	}
	key := config.ParseKey(pool)
	a.mu.Lock()
	spec := a.applied[key]
	found := a.found[key]
	s.KeyID, s.Tokens, s.Predictions, s.Gateways = found.keyID, found.tokens, found.predictions, found.gateways
	s.Resources, s.Model = found.resources, found.model
	s.Accepted, s.AcceptedGeneration, s.Resolved = found.accepted, found.generation, found.resolved
	a.mu.Unlock()
	for _, p := range a.marks.of(key) {
		pod := known.Pods[p.UID]
		pod.Draining = p.Leaving && !known.Pickable[p.UID]
		pod.Synced = spec.NoEvents
		s.Pods[p.UID] = pod
	}
	if !spec.NoEvents {
		status.Knowledge(s.Pods, a.knowledge(pool))
	}
	return s, true
}

// refusal is the state of a pool that is not served: why it was not applied; false if that is not known.
func (a *app) refusal(pool string) (operatorfeed.State, bool) {
	a.mu.Lock()
	found := a.found[config.ParseKey(pool)]
	a.mu.Unlock()
	return operatorfeed.State{
		Picker: a.name, Incarnation: a.peers.outbox.Incarnation(), Unserved: true,
		Accepted: found.accepted, AcceptedGeneration: found.generation,
	}, found.accepted.Verdict == operatorfeed.Bad
}

// findings are the parts of the operator's conditions of a pool that only pickers know.
type findings struct {
	keyID                                                     string
	generation                                                int64 // of the pool
	resolved                                                  bool  // all Secrets of the policy in force were read
	accepted, tokens, predictions, gateways, resources, model operatorfeed.Finding
}

// findingsOf the status of all pools.
func findingsOf(list *config.List) map[types.NamespacedName]findings {
	all, unresolved := map[types.NamespacedName]findings{}, unresolvedPolicies(list)
	for _, item := range list.Items {
		pool, ok := item.(*v1alpha1.InferencePool)
		if !ok {
			continue
		}
		conditions := pool.Status.Conditions
		all[keyOf(pool.Namespace, pool.Name)] = findings{
			resolved:    !unresolved[keyOf(pool.Namespace, pool.Status.RoutingPolicy.Name)],
			keyID:       pool.Status.KeySpace.KeyID,
			generation:  pool.Generation,
			accepted:    status.Finding(status.Accepted.In(conditions)),
			tokens:      status.Finding(status.TokensExact.In(conditions)),
			predictions: status.Finding(status.PredictionsTrusted.In(conditions)),
			gateways:    status.Finding(status.GatewayConforms.In(conditions)),
			resources:   status.Finding(status.ResourcesSuffice.In(conditions)),
			model:       status.Finding(status.ModelServed.In(conditions)),
		}
	}
	return all
}

// unresolvedPolicies are those that name Secrets which this replica has not read.
func unresolvedPolicies(list *config.List) map[types.NamespacedName]bool {
	all := map[types.NamespacedName]bool{}
	for _, item := range list.Items {
		p, ok := item.(*v1alpha1.RoutingPolicy)
		if !ok {
			continue
		}
		for i := range p.Status.Ancestors {
			c := status.ResolvedRefs.In(p.Status.Ancestors[i].Conditions)
			if c != nil && c.Reason == status.ReasonSecretNotFound {
				all[keyOf(p.Namespace, p.Name)] = true
			}
		}
	}
	return all
}
