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

	"github.com/kvasir-dev/kvasir/internal/operator/controller/objects"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
)

// rehearsal is the API server's last answer to a request to create pods of the newest revision.
type rehearsal struct {
	of      string    // all that the pods are made from
	since   time.Time // when of last changed
	known   bool      // whether the answer counts: there was one, or rehearsalPatience is over
	refusal error     // nil when it would create them
	again   time.Time // when to ask again; zero for not before they change
}

// rehearsalPatience is how long a rollout waits for the first answer to a rehearsal. After that time it goes on without one,
// because the cause can be one that does not concern pods.
const rehearsalPatience = time.Minute

// rehearse asks the API server whether it would create pods of the newest revision, without creating any: one for each
// island and role, once for each change, and again every few seconds while it refuses. A rollout waits for the answer, because a pod
// that was drained for a replacement that is refused would be missing. A pool that creates no pods at the moment also learns
// from the answer what is wrong with them. It returns the refusal, or why there is no answer yet. The last answer stands until
// the next one.
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

// ask returns why the API server would refuse a pod of the newest revision; nil if it would create one of each role on each island. It
// fails when that is not known.
func (r *executor) ask(ctx context.Context) (refusal, err error) {
	islands := []string{""}
	if len(r.islands.all) > 0 {
		islands = islands[:0]
		for k := range r.islands.all {
			islands = append(islands, r.islands.all[k].Name)
		}
	}
	of := r.revisions.shape.RolesOf()
	for i := range len(islands) * len(of) {
		a := lifecycle.Action{
			Name: lifecycle.PodName(r.key.Name, r.revisions.update, 0), Revision: r.revisions.update,
			Island: islands[i/len(of)], Role: of[i%len(of)],
		}
		pod, err := r.newPod(&a)
		if err != nil {
			return nil, err
		}
		switch err := r.Client.Create(ctx, pod, client.DryRunAll); {
		case refusesRehearsal(err):
			return fmt.Errorf("a pod of revision %s of pool %s: %w", r.revisions.update, r.key, err), nil
		case err != nil && !objects.Refused(err) && !apierrors.IsAlreadyExists(err):
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
	return objects.Refused(err) && !quota(err) && !takesNoPart
}
