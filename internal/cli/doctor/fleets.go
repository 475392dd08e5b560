package doctor

import (
	"context"
	"fmt"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// fleets checks the fleets of the namespaces that are looked at. A fleet without pickers fails: its pools are not served.
func (d *Doctor) fleets(ctx context.Context) {
	const check = "fleets"
	var list v1alpha1.PickerFleetList
	if err := d.Source.Client.List(ctx, &list, client.InNamespace(d.Namespace)); err != nil {
		d.add(Warn, check, "", "fleets cannot be listed: "+err.Error(), "you need the right to list pickerfleets.kvasir.dev")
		return
	}
	for i := range list.Items {
		fleet := &list.Items[i]
		subject := fleet.Namespace + "/" + fleet.Name
		if ptr.Deref(fleet.Status.ObservedGeneration, 0) < fleet.Generation {
			d.add(Fail, check, subject, "the operator has not seen the newest spec",
				"see that the operator runs, and watches the namespace "+fleet.Namespace)
			continue
		}
		bad := 0
		for _, c := range fleet.Status.Conditions {
			if c.Status == metav1.ConditionTrue || status.Absent(&c) {
				continue
			}
			bad++
			level := Warn
			if c.Type == v1alpha1.ConditionAvailable && ptr.Deref(fleet.Status.ReadyReplicas, 0) == 0 ||
				c.Reason == status.ReasonCertificateInvalid {
				level = Fail
			}
			d.add(level, check, subject, fmt.Sprintf("%s is %s, %s: %s", c.Type, c.Status, c.Reason, c.Message),
				d.cures[[2]string{c.Type, c.Reason}])
		}
		if bad == 0 {
			d.ok(check, subject, "it serves %d pools with %d pickers", ptr.Deref(fleet.Status.Pools, 0), ptr.Deref(fleet.Status.ReadyReplicas, 0))
		}
		d.fleetNetwork(ctx, fleet)
	}
}

// fleetNetwork checks that the NetworkPolicy of a fleet's pickers is there.
func (d *Doctor) fleetNetwork(ctx context.Context, fleet *v1alpha1.PickerFleet) {
	if fleet.Spec.NetworkPolicy == v1alpha1.NetworkPolicyNone {
		return
	}
	own := resources.NamesOfFleet(fleet.Name).Guard
	var list networkingv1.NetworkPolicyList
	if d.Source.Client.List(ctx, &list, client.InNamespace(fleet.Namespace)) == nil &&
		!slices.ContainsFunc(list.Items, func(p networkingv1.NetworkPolicy) bool { return p.Name == own }) {
		d.add(Warn, "network", fleet.Namespace+"/"+fleet.Name, "the NetworkPolicy "+own+" is not there",
			"see the operator's log, and the condition Available of the fleet")
	}
}
