package inferencepool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/objects"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// revisions of a pool: its template and wiring, kept as ControllerRevisions, so that a rollout that has stopped can
// make an old pod again.
type revisions struct {
	shape *podtemplate.Shape // the newest
	// update is the newest revision; current the one that served before, empty when it cannot be made again.
	update, current string
	kept            map[string]*appsv1.ControllerRevision // by revision
	injected        []string                              // into the next pods
}

// revising is the part that keeps revisions.
type revising struct {
	*scope
	*observed
	*outcome
}

// alsoOnIslands adds what cannot be injected into pods of single islands and roles.
func (r *revising) alsoOnIslands(shape *podtemplate.Shape, options podtemplate.Options,
	skipped []podtemplate.Skipped) []podtemplate.Skipped {
	also := func() {
		if _, there, err := podtemplate.Pod(shape, &options); err == nil {
			skipped = append(skipped, slices.DeleteFunc(there, func(s podtemplate.Skipped) bool { return slices.Contains(skipped, s) })...)
		}
	}
	for i := range shape.Roles {
		options.Role = shape.Roles[i].Name
		also()
	}
	if r.pool.Spec.Placement == nil {
		return skipped
	}
	for i := range r.pool.Spec.Placement.Islands {
		options.Island = &r.pool.Spec.Placement.Islands[i]
		also()
	}
	return skipped
}

// findRevisions reads the kept revisions, and keeps the newest one.
func (r *revising) findRevisions(ctx context.Context) error {
	shape := podtemplate.ShapeOf(r.pool)
	raw, update, err := r.behindSidecar(&shape)
	if err != nil {
		return fmt.Errorf("pool %s: %w", r.key, err)
	}
	r.revisions = revisions{shape: &shape, update: update, kept: map[string]*appsv1.ControllerRevision{}}
	options := r.injection()
	if len(shape.Roles) > 0 {
		options.Role = shape.Roles[0].Name
	}
	pod, skipped, err := podtemplate.Pod(&shape, &options)
	if errors.Is(err, podtemplate.ErrTemplate) {
		r.problems.template = err.Error()
		return nil
	}
	if err != nil {
		return fmt.Errorf("pool %s: %w", r.key, err)
	}
	r.problems.skipped = append(r.problems.skipped, r.alsoOnIslands(&shape, options, skipped)...)
	r.revisions.injected = podtemplate.Injected(pod)

	var list appsv1.ControllerRevisionList
	err = r.Client.List(ctx, &list, client.InNamespace(r.key.Namespace), client.MatchingLabels{labelInstance: r.key.Name})
	if err != nil {
		return fmt.Errorf("listing revisions of pool %s: %w", r.key, err)
	}
	newest := int64(0)
	for i := range list.Items {
		kept := &list.Items[i]
		name, ours := strings.CutPrefix(kept.Name, r.key.Name+"-")
		if ours && !metav1.IsControlledBy(kept, r.pool) && kept.Labels[v1alpha1.LabelRevision] == name {
			if ours, err = r.mayAdopt(ctx, kept); err != nil {
				return err
			}
			if ours {
				kept = kept.DeepCopy()
				if err := r.adoptObject(ctx, kept); err != nil {
					return err
				}
			}
		}
		if ours && metav1.IsControlledBy(kept, r.pool) {
			r.revisions.kept[name] = kept
			newest = max(newest, kept.Revision)
		}
	}
	if r.revisions.kept[update] == nil {
		kept := &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: r.key.Namespace, Name: r.key.Name + "-" + update,
				Labels: map[string]string{
					labelInstance: r.key.Name, labelManagedBy: resources.Manager, v1alpha1.LabelRevision: update,
				},
				OwnerReferences: []metav1.OwnerReference{resources.Owner(r.pool)},
			},
			Data: runtime.RawExtension{Raw: raw}, Revision: newest + 1,
		}
		if err := r.Client.Create(ctx, kept); err != nil && !apierrors.IsAlreadyExists(err) {
			return r.keepCurrent(fmt.Errorf("keeping revision %s of pool %s: %w", update, r.key, err))
		}
		r.revisions.kept[update] = kept
	}
	r.findCurrent()
	return nil
}

func (r *revising) findCurrent() {
	current := strings.TrimPrefix(r.pool.Status.CurrentRevision, r.key.Name+"-")
	if r.revisions.kept[current] != nil {
		r.revisions.current = current
	}
}

// keepCurrent goes on with the revision that serves where the API server refuses the newest one: pods are drained and replaced all the
// same. Without such a revision it returns the error.
func (r *revising) keepCurrent(err error) error {
	if r.findCurrent(); r.revisions.current == "" || !objects.Refused(err) {
		return err
	}
	shape, wrong := podtemplate.Decode(r.revisions.kept[r.revisions.current].Data.Raw)
	if wrong != nil {
		return errors.Join(err, wrong)
	}
	r.revisions.shape, r.revisions.update = shape, r.revisions.current
	return r.passRefusal(err)
}

// Labels of everything of a pool that is no pod of an engine. The operator must cache nothing else.
const (
	labelInstance  = resources.LabelInstance
	labelManagedBy = "app.kubernetes.io/managed-by"
)

// shape is what pods of a revision are made of.
func (r *outcome) shape(revision string) (*podtemplate.Shape, error) {
	if revision == r.revisions.update {
		return r.revisions.shape, nil
	}
	kept := r.revisions.kept[revision]
	if kept == nil {
		return nil, fmt.Errorf("revision %s is not kept", revision)
	}
	return podtemplate.Decode(kept.Data.Raw)
}

// pruneRevisions deletes the oldest that no pod has, beyond the limit.
func (r *revising) pruneRevisions(ctx context.Context) error {
	used := map[string]bool{r.revisions.update: true, r.revisions.current: true, r.decision.Current: true}
	for _, pod := range r.pods {
		used[pod.Labels[v1alpha1.LabelRevision]] = true
	}
	var unused []*appsv1.ControllerRevision
	for revision, kept := range r.revisions.kept {
		if !used[revision] {
			unused = append(unused, kept)
		}
	}
	slices.SortFunc(unused, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(b.Revision, a.Revision), cmp.Compare(a.Name, b.Name))
	})
	limit := int(r.pool.Spec.Rollout.RevisionHistoryLimit)
	for _, kept := range unused[min(limit, len(unused)):] {
		err := r.Client.Delete(ctx, kept, client.Preconditions{UID: uid(kept.UID)})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting revision %s: %w", kept.Name, err)
		}
	}
	return nil
}

func uid(u types.UID) *types.UID { return &u }
