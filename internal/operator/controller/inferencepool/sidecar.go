package inferencepool

import (
	"fmt"
	"strings"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
)

// wantsSidecar reports whether the pool's policy says that Kvasir's sidecar runs in front of engines that decode.
func (o *observed) wantsSidecar() bool {
	return o.policy != nil && o.policy.Spec.Disaggregation.Sidecar == v1alpha1.SidecarKvasir
}

// behindSidecar encodes the newest shape. It puts the engines behind the sidecar if the policy says so. Pods that have it keep it without a
// policy until something else about them changes, so that a policy that goes, or is replaced by another one, restarts no engine.
func (r *revising) behindSidecar(shape *podtemplate.Shape) (raw []byte, revision string, err error) {
	with := *shape
	why := with.BehindSidecar(r.pool)
	if why != "" && r.wantsSidecar() && r.policy.Spec.Disaggregation.Type != v1alpha1.DisaggregationNever {
		r.problems.skipped = append(r.problems.skipped, podtemplate.Skipped{What: podtemplate.Sidecar, Why: why})
	}
	if with.Wiring.Behind > 0 {
		raw, revision, err = with.Encode()
		if err != nil || r.wantsSidecar() || r.hasRevision(revision) {
			*shape = with
			return raw, revision, err
		}
	}
	return shape.Encode()
}

// hasRevision reports whether a revision is the one that the pool was brought to last, or that of a pod that stays.
func (r *revising) hasRevision(revision string) bool {
	if strings.TrimPrefix(r.pool.Status.UpdateRevision, r.key.Name+"-") == revision {
		return true
	}
	for _, pod := range r.pods {
		if stays(pod) && pod.Labels[v1alpha1.LabelRevision] == revision {
			return true
		}
	}
	return false
}

// withoutSidecar says how many pods that decode lack the sidecar which the policy names; empty for none. It follows what UpToDate says of a
// rollout that has not replaced them.
func (r *verdict) withoutSidecar() string {
	if !r.wantsSidecar() || r.revisions.shape == nil || r.revisions.shape.Wiring.Behind == 0 {
		return ""
	}
	n := 0
	for _, pod := range r.pods {
		if stays(pod) && roleOf(r.pool, pod) != endpoint.Prefill && !config.ReporterServes(pod) {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %d pods that decode lack the sidecar of RoutingPolicy %s: requests behind a gateway are not handed over to them",
		n, r.policy.Name)
}
