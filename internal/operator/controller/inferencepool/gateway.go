package inferencepool

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// gatewayFacts are what GatewayAccepted is judged from.
type gatewayFacts struct {
	mode v1alpha1.GatewayMode
	// missing is the kind that the cluster does not have and the pool needs; "" for none.
	missing string
	// taken are objects of the pool's name that another owner has.
	taken []string
	// want is the gateway's pool as it should be, and pool what is there; nil for nothing.
	want, pool *gatewayPool
	// route that was made for the pool; nil for none.
	route *gatewayRoute
	// refused are objects of the gateway's own kinds that the API server has refused, and why.
	refused []string
	// unapplied are the pool's gateway objects that the API server has refused, and why.
	unapplied []string
	// shared are rules of routes that send requests to this pool and to others.
	shared []sharedRule
}

// gatewayPool is what counts of the inference extension's InferencePool.
type gatewayPool struct {
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		TargetPorts       []targetPort `json:"targetPorts"`
		EndpointPickerRef *pickerRef   `json:"endpointPickerRef"`
	} `json:"spec"`
	Status struct {
		Parents []gatewayParent `json:"parents"`
	} `json:"status"`
}

type targetPort struct {
	Number int32 `json:"number"`
}

// lacks returns the target ports that p has and other lacks. Endpoints at further ports of other are never picked.
func (p *gatewayPool) lacks(other *gatewayPool) (ports []int32) {
	for _, port := range p.Spec.TargetPorts {
		if !slices.Contains(other.Spec.TargetPorts, port) {
			ports = append(ports, port.Number)
		}
	}
	return ports
}

// pickerRef is the picker that gateways call. Kind "" is a Service, and no port is 9002, as the extension's API defines.
type pickerRef struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Port  struct {
		Number int32 `json:"number"`
	} `json:"port"`
}

func (p targetPort) String() string { return strconv.Itoa(int(p.Number)) }

func (p *pickerRef) String() string {
	if p == nil {
		return "nobody"
	}
	kind, port := p.Kind, p.Port.Number
	if kind == "" {
		kind = "Service"
	}
	if p.Group != "" {
		kind += "." + p.Group
	}
	if port == 0 {
		port = resources.ExtProcPort
	}
	return fmt.Sprintf("%s %s:%d", kind, p.Name, port)
}

// gatewayParent is what a gateway reports about a pool or a route.
type gatewayParent struct {
	ParentRef struct {
		Group     *gwapiv1.Group `json:"group"` // nil for that of Gateway API
		Kind      *gwapiv1.Kind  `json:"kind"`  // nil for Gateway
		Namespace string         `json:"namespace"`
		Name      string         `json:"name"`
	} `json:"parentRef"`
	ControllerName string             `json:"controllerName"`
	Conditions     []metav1.Condition `json:"conditions"`
}

// refusal is why a gateway does not take what it was shown; "" when it does, or has not said.
func (p *gatewayParent) refusal() string {
	for _, kind := range []string{string(gwapiv1.RouteConditionAccepted), string(gwapiv1.RouteConditionResolvedRefs)} {
		if c := meta.FindStatusCondition(p.Conditions, kind); c != nil && c.Status == metav1.ConditionFalse {
			return fmt.Sprintf("%s is False, %s: %s", kind, c.Reason, c.Message)
		}
	}
	return ""
}

func (p *gatewayParent) accepts() bool {
	return p.refusal() == "" && meta.IsStatusConditionTrue(p.Conditions, string(gwapiv1.RouteConditionAccepted))
}

func (p *gatewayParent) String() string {
	if p.ParentRef.Namespace == "" {
		return p.ParentRef.Name
	}
	return p.ParentRef.Namespace + "/" + p.ParentRef.Name
}

// gatewayAccepted judges whether gateways send requests to the pool's picker. One gateway that refuses counts more than
// others that accept.
func gatewayAccepted(f *gatewayFacts) metav1.Condition {
	switch {
	case f.mode == v1alpha1.GatewayDisabled:
		return status.GatewayAccepted.Unknown(status.ReasonDisabled, "gateway.mode is Disabled")
	case f.missing != "":
		return status.GatewayAccepted.Unknown(status.ReasonCRDsMissing, "the cluster has no %s", f.missing)
	case len(f.taken) > 0:
		return status.GatewayAccepted.False(status.ReasonNameTaken, "objects of another owner have the pool's name: %s",
			strings.Join(f.taken, ", "))
	case len(f.unapplied) > 0:
		return status.GatewayAccepted.False(status.ReasonObjectRefused, "%s", strings.Join(f.unapplied, "; "))
	case f.pool == nil && f.mode == v1alpha1.GatewayExisting:
		return status.GatewayAccepted.False(status.ReasonNotReferenced, "gateway.mode is Existing, and there is no %s of this name", resources.GIEKind.GroupKind())
	case f.pool == nil:
		return status.GatewayAccepted.False(status.ReasonNotReferenced, "the %s is not there yet", resources.GIEKind.GroupKind())
	case f.want.Spec.EndpointPickerRef.String() != f.pool.Spec.EndpointPickerRef.String():
		return status.GatewayAccepted.False("WrongPicker", "endpointPickerRef is %s; the pool's picker is %s",
			f.pool.Spec.EndpointPickerRef, f.want.Spec.EndpointPickerRef)
	case !maps.Equal(f.want.Spec.Selector.MatchLabels, f.pool.Spec.Selector.MatchLabels):
		return status.GatewayAccepted.False("WrongPicker", "its selector is %v; the pool's picker knows the pods of %v",
			f.pool.Spec.Selector.MatchLabels, f.want.Spec.Selector.MatchLabels)
	case len(f.want.lacks(f.pool)) > 0:
		return status.GatewayAccepted.False("WrongPorts", "its targetPorts are %v; the pool's engines listen on %v, which gateways then do not know: add these ports",
			f.pool.Spec.TargetPorts, f.want.lacks(f.pool))
	}
	if f.route != nil {
		for i := range f.route.Status.Parents {
			if why := f.route.Status.Parents[i].refusal(); why != "" {
				return status.GatewayAccepted.False("RejectedByGateway", "of the HTTPRoute, gateway %s says that %s", &f.route.Status.Parents[i], why)
			}
		}
	}
	remarks := ""
	if len(f.refused) > 0 {
		remarks = "; " + strings.Join(f.refused, "; ")
	}
	for i := range f.shared {
		if why := f.shared[i].refusal(); why != "" {
			return status.GatewayAccepted.False("PoolsShareRule", "%s", why)
		}
		remarks += "; " + f.shared[i].String()
	}
	var accepting []string
	waiting := ""
	for i := range f.pool.Status.Parents {
		p := &f.pool.Status.Parents[i]
		if why := p.refusal(); why != "" {
			return status.GatewayAccepted.False("RejectedByGateway", "gateway %s says that %s", p, why)
		}
		if p.accepts() {
			accepting = append(accepting, p.String())
		} else {
			waiting = p.String()
		}
	}
	switch {
	case len(accepting) > 0:
		slices.Sort(accepting)
		return status.GatewayAccepted.True(status.ReasonAccepted, "by %s%s", strings.Join(slices.Compact(accepting), ", "), remarks)
	case waiting != "":
		return status.GatewayAccepted.False(status.ReasonNotReferenced, "gateway %s has not said yet whether it accepts the pool", waiting)
	}
	return status.GatewayAccepted.False(status.ReasonNotReferenced, "no gateway has a route to the pool")
}

// gatewayReader is the part that reads what gateways say about a pool.
type gatewayReader struct{ *scope }

// read reads the objects from which the condition GatewayAccepted is computed. Without them it returns nil, and the condition
// stays as it is.
func (r *gatewayReader) read(ctx context.Context) (*gatewayFacts, error) {
	if r.Children == nil {
		return nil, nil
	}
	f := &gatewayFacts{taken: r.problems.gateway, refused: r.problems.traffic, unapplied: r.problems.route}
	if err := f.read(ctx, r.Client, r.Children(), r.key, &r.pool.Spec.Gateway, resources.GatewayPool(r.pool, r.move)); err != nil {
		return nil, err
	}
	return f, nil
}

// read reads what gateways see under a name, and say about it.
func (f *gatewayFacts) read(ctx context.Context, api client.Reader, config resources.Config, key types.NamespacedName,
	gateway *v1alpha1.Gateway, want *unstructured.Unstructured) error {
	f.mode = gateway.Mode
	switch {
	case f.mode == v1alpha1.GatewayDisabled:
		return nil
	case !config.GIE:
		f.missing = resources.GIEKind.GroupKind().String()
	case !config.Routes && len(gateway.ParentRefs) > 0:
		f.missing = resources.RouteKind.GroupKind().String()
	}
	if config.GIE {
		f.want, f.pool = &gatewayPool{}, &gatewayPool{}
		if err := decode(want, f.want); err != nil {
			return err
		}
		there, err := loose(ctx, api, key, resources.GIEKind, f.pool)
		if err != nil {
			return err
		}
		if !there {
			f.pool = nil
		}
	}
	if config.Routes && len(gateway.ParentRefs) > 0 {
		f.route = &gatewayRoute{}
		there, err := loose(ctx, api, key, resources.RouteKind, f.route)
		if err != nil {
			return err
		}
		if !there {
			f.route = nil
		}
	}
	if config.GIE && config.Routes {
		var err error
		if f.shared, err = sharedRules(ctx, api, key); err != nil {
			return err
		}
	}
	return nil
}

// GatewayProblems are those of what gateways see of a fleet: objects whose names other owners have, objects that the API server refuses,
// and remarks about what gateways lack.
type GatewayProblems struct{ Taken, Refused, Remarks []string }

// JudgeGateway judges whether gateways send requests to what they see of a fleet under a name, as a pool's GatewayAccepted does.
func JudgeGateway(ctx context.Context, api client.Reader, config resources.Config, key types.NamespacedName, gateway *v1alpha1.Gateway,
	want *unstructured.Unstructured, problems GatewayProblems) (metav1.Condition, error) {
	f := &gatewayFacts{taken: problems.Taken, unapplied: problems.Refused, refused: problems.Remarks}
	if err := f.read(ctx, api, config, key, gateway, want); err != nil {
		return metav1.Condition{}, err
	}
	return gatewayAccepted(f), nil
}

// loose reads an object of a kind without Go types here, and reports whether it exists.
func loose(ctx context.Context, api client.Reader, key types.NamespacedName, kind schema.GroupVersionKind, into any) (bool, error) {
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(kind)
	err := api.Get(ctx, key, live)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading %s %s: %w", kind.Kind, key, err)
	}
	return true, decode(live, into)
}

func decode(o *unstructured.Unstructured, into any) error {
	raw, err := json.Marshal(o.Object)
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		return fmt.Errorf("decoding %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

// fieldProtocol is a field of the gateways' pool that older definitions of the inference extension lack.
const fieldProtocol = "appProtocol"

// fitDefinition removes from the gateways' pool what the cluster's definition of it was found to lack: an API server refuses
// to apply an object with an unknown field. The next try with the field finds a definition that was upgraded.
func (r *children) fitDefinition(o *unstructured.Unstructured) {
	_, has, err := unstructured.NestedString(o.Object, "spec", fieldProtocol)
	if o.GroupVersionKind() != resources.GIEKind || !has || err != nil || !r.now.Before(r.memory.noProtocolUntil) {
		return
	}
	unstructured.RemoveNestedField(o.Object, "spec", fieldProtocol)
	r.problems.traffic = append(r.problems.traffic, "the installed definition of "+
		resources.GIEKind.GroupKind().String()+" has no "+fieldProtocol+", so gateways choose the protocol to the engines "+
		"themselves: upgrade the inference extension for engine.protocol H2C")
	r.wakeAt(r.memory.noProtocolUntil)
}

// protocolUndeclared reports whether an error says that the gateways' pool has a protocol and its definition does not.
func protocolUndeclared(o *unstructured.Unstructured, err error) bool {
	return err != nil && o.GroupVersionKind() == resources.GIEKind && strings.Contains(err.Error(), "field not declared in schema") &&
		strings.Contains(err.Error(), fieldProtocol)
}
