package inferencepool

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
)

// rehearsal is what the API server said to the pods of a revision.
type rehearsal struct {
	of      string    // what the pods are made from
	refusal error     // nil when it would create them
	again   time.Time // when to ask again; zero for not before they change
}

// rehearse asks the API server whether it would create pods of the newest revision, without creating any: one for each
// island, once for each change, and again every few seconds while it refuses. A rollout waits for that, because a pod
// that was drained for a replacement that is refused would be missing. It also finds out what is wrong with pods of a pool
// that creates none at the moment.
func (r *executor) rehearse(ctx context.Context) error {
	of := fmt.Sprintf("%d %s %s %s", r.pool.Generation, r.Version, r.reporters.forNewPods, r.revisions.update)
	m := &r.memory.rehearsal
	if m.of == of && (m.again.IsZero() || r.now.Before(m.again)) {
		r.wakeAt(m.again)
		return m.refusal
	}
	*m = rehearsal{of: of}
	islands := []string{""}
	if len(r.islands.all) > 0 {
		islands = islands[:0]
		for k := range r.islands.all {
			islands = append(islands, r.islands.all[k].Name)
		}
	}
	for _, island := range islands {
		a := lifecycle.Action{Name: lifecycle.PodName(r.key.Name, r.revisions.update, 0), Revision: r.revisions.update, Island: island}
		pod, err := r.newPod(&a)
		if err != nil {
			return err
		}
		switch err := r.Client.Create(ctx, pod, client.DryRunAll); {
		case refusesRehearsal(err):
			m.refusal = fmt.Errorf("a pod of revision %s of pool %s: %w", r.revisions.update, r.key, err)
		case err != nil && !refused(err) && !apierrors.IsAlreadyExists(err): // it is not known
		default:
			continue
		}
		m.again = r.now.Add(refusedEvery)
		r.wakeAt(m.again)
		break
	}
	return m.refusal
}

// refusesRehearsal reports whether an error says that a pod would be refused. A quota that is used up says nothing of the
// pod, because the quota can have room when the pod is created, and a webhook that does not take part in rehearsals says
// nothing at all.
func refusesRehearsal(err error) bool {
	var status apierrors.APIStatus
	takesNoPart := errors.As(err, &status) && status.Status().Code == http.StatusBadRequest &&
		strings.Contains(err.Error(), "does not support dry run")
	return refused(err) && !quota(err) && !takesNoPart
}
