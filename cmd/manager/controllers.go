package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kvasir-dev/kvasir/internal/controller/routingpolicy"
	"github.com/kvasir-dev/kvasir/internal/operate"
)

// addControllers adds what the operator does.
func addControllers(mgr ctrl.Manager) error {
	policies := &routingpolicy.Reconciler{
		Client: mgr.GetClient(), Direct: mgr.GetAPIReader(), Pickers: unheard{},
		Recorder: mgr.GetEventRecorder("kvasir-operator"), Clock: clock.RealClock{},
	}
	if err := policies.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("adding the controller of policies: %w", err)
	}
	return nil
}

// unheard are the pickers of a cluster in which none is listened to.
type unheard struct{}

// View tells that no replica is heard.
func (unheard) View(types.NamespacedName) operate.View { return operate.View{} }
