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
	since   time.Time // when that was new
	known   bool      // that the API server has answered
	refusal error     // nil when it would create them
	again   time.Time // when to ask again; zero for not before they change
}

// rehearsalPatience is how long a rollout waits for an answer to a rehearsal. An API server that gives none for longer can have a
// reason that does not concern pods.
const rehearsalPatience = time.Minute

// rehearse asks the API server whether it would create pods of the newest revision, without creating any: one for each
// island, once for each change, and again every few seconds while it refuses. A rollout waits for that, because a pod
// that was drained for a replacement that is refused would be missing. It also finds out what is wrong with pods of a pool
// that creates none at the moment. It fails while there is no answer; once there was one, that stands until the next.
func (r *executor) rehearse(ctx context.Context) error {
	of := fmt.Sprintf("%d %s %s %s", r.pool.Generation, r.Version, r.reporters.forNewPods, r.revisions.update)
	m := &r.memory.rehearsal
	if m.of != of {
		*m = rehearsal{of: of, since: r.now}
	}
	if m.known && (m.again.IsZero() || r.now.Before(m.again)) {
		r.wakeAt(m.again)
		return m.refusal
	}
	refusal, err := r.ask(ctx)
	if err != nil && !m.known && r.now.Before(m.since.Add(rehearsalPatience)) {
		return err
	}
	if err == nil {
		m.refusal = refusal
	}
	m.known, m.again = true, time.Time{}
	if err != nil || refusal != nil {
		m.again = r.now.Add(refusedEvery)
		r.wakeAt(m.again)
	}
	return m.refusal
}

// ask returns why the API server would refuse a pod of the newest revision; nil if it would create one on each island. It
// fails when that is not known.
func (r *executor) ask(ctx context.Context) (refusal, err error) {
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
			return nil, err
		}
		switch err := r.Client.Create(ctx, pod, client.DryRunAll); {
		case refusesRehearsal(err):
			return fmt.Errorf("a pod of revision %s of pool %s: %w", r.revisions.update, r.key, err), nil
		case err != nil && !refused(err) && !apierrors.IsAlreadyExists(err):
			return nil, fmt.Errorf("asking whether pods of revision %s of pool %s would be created: %w", r.revisions.update, r.key, err)
		}
	}
	return nil, nil
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
