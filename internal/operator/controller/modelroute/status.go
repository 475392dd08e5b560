package modelroute

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// maxProblems is how many problems with pools a condition names.
const maxProblems = 8

// routeStatus makes the status of a route. Transition times of unchanged conditions stay.
func routeStatus(r *v1alpha1.ModelRoute, refused field.ErrorList, pools map[string]*v1alpha1.InferencePool,
	now metav1.Time) v1alpha1.ModelRouteStatus {
	next := v1alpha1.ModelRouteStatus{Conditions: []metav1.Condition{accepted(refused), resolvedRefs(r, pools)}}
	status.Stamp(next.Conditions, r.Status.Conditions, r.Generation, now)
	for _, c := range r.Status.Conditions { // of others
		if !slices.ContainsFunc(next.Conditions, func(own metav1.Condition) bool { return own.Type == c.Type }) {
			next.Conditions = append(next.Conditions, c)
		}
	}
	return next
}

// accepted reports whether pickers apply the route.
func accepted(refused field.ErrorList) metav1.Condition {
	if len(refused) == 0 {
		return status.Accepted.True(status.ReasonAccepted, "")
	}
	reason := "TooManyRoutes"
	if refused[0].Type == field.ErrorTypeDuplicate {
		reason = status.ReasonNameTaken
	}
	var texts []string
	for _, err := range refused {
		texts = append(texts, err.Error())
	}
	return status.Accepted.False(reason, "%s", strings.Join(texts, "; "))
}

// finding is a problem with a pool of a route.
type finding struct{ reason, text string }

// resolvedRefs reports whether the pools of a route exist, are of one fleet, and have the names that it gives to their engines.
func resolvedRefs(r *v1alpha1.ModelRoute, pools map[string]*v1alpha1.InferencePool) metav1.Condition {
	var found []finding
	add := func(path *field.Path, reason, format string, args ...any) {
		found = append(found, finding{reason, path.String() + ": " + fmt.Sprintf(format, args...)})
	}
	first := "" // the fleet of the first pool that is of one
	for _, p := range config.RoutePools(r) {
		if len(found) == maxProblems {
			break
		}
		pool := pools[p.Name]
		if pool == nil {
			add(p.Path.Child("pool"), status.ReasonReferenceNotFound, "InferencePool %s/%s does not exist", r.Namespace, p.Name)
			continue
		}
		fleet := config.FleetOf(pool)
		if first == "" {
			first = fleet
		}
		switch {
		case fleet == "":
			add(p.Path.Child("pool"), "PoolWithoutFleet", "%s, and only pickers of a fleet follow routes", config.OtherPickers(pool))
		case fleet != first:
			add(p.Path.Child("pool"), "SeveralFleets", "%s, another pool of the route of %s", config.OtherPickers(pool), first)
		case p.Model != "" && !config.HasName(pool, v1alpha1.ModelName(p.Model)):
			add(p.Path.Child("modelName"), "ModelNameUnknown", "%s is none of the names of InferencePool %s/%s", p.Model, r.Namespace, p.Name)
		}
	}
	if len(found) == 0 {
		return status.ResolvedRefs.True(status.ReasonResolvedRefs, "the pools are of the PickerFleet %s", first)
	}
	var texts []string
	for _, f := range found {
		texts = append(texts, f.text)
	}
	return status.ResolvedRefs.False(found[0].reason, "%s", strings.Join(texts, "; "))
}
