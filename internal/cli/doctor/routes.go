package doctor

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// routeCures are what to do about conditions of routes, by reason.
var routeCures = map[string]string{
	status.ReasonNameTaken:         "take the name out of one of the two routes",
	"TooManyRoutes":                "put names that go to the same pools into one route",
	status.ReasonReferenceNotFound: "create the pool, or correct the name in the route",
	"PoolWithoutFleet":             "set picker.mode Fleet in the pool",
	"SeveralFleets":                "give the pools of the route the same picker.fleetRef",
	"ModelNameUnknown":             "correct modelName in the route, or add it to the aliases of the pool",
}

// routes checks the routes of the namespaces that are looked at. Where their kind is not defined, there are none.
func (d *Doctor) routes(ctx context.Context) {
	const check = "routes"
	var list v1alpha1.ModelRouteList
	err := d.Source.Client.List(ctx, &list, client.InNamespace(d.Namespace))
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return
	case err != nil:
		d.add(Warn, check, "", "routes cannot be listed: "+err.Error(), "you need the right to list modelroutes.kvasir.dev")
		return
	}
	for i := range list.Items {
		r := &list.Items[i]
		subject, bad := r.Namespace+"/"+r.Name, false
		if len(r.Status.Conditions) == 0 {
			d.add(Warn, check, subject, "the operator has written no status", "see that the operator runs, knows the kind ModelRoute, and watches the namespace "+r.Namespace)
			continue
		}
		for _, c := range r.Status.Conditions {
			if c.Status == metav1.ConditionFalse {
				bad = true
				d.add(Warn, check, subject, fmt.Sprintf("%s is %s, %s: %s", c.Type, c.Status, c.Reason, c.Message), routeCures[c.Reason])
			}
		}
		if !bad {
			d.ok(check, subject, "it is applied")
		}
	}
}
