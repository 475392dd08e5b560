package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// Rollout is how many of a pool's pods have its newest revision.
type Rollout struct {
	Namespace string `json:"namespace"`
	Pool      string `json:"pool"`
	// Reason and Message of the condition UpToDate; Waiting before the operator has seen the newest spec.
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	// Paused is what is paused: Rollout or All; empty for nothing.
	Paused          string `json:"paused,omitempty"`
	CurrentRevision string `json:"currentRevision,omitempty"`
	UpdateRevision  string `json:"updateRevision,omitempty"`
	// Desired size in pods; those of the newest revision, those that serve, and those that drain.
	Desired  int32 `json:"desired"`
	Updated  int32 `json:"updated"`
	Ready    int32 `json:"ready"`
	Draining int32 `json:"draining"`
	Done     bool  `json:"done"`
	// Failed: it makes no further progress without an action of the user.
	Failed bool `json:"failed,omitempty"`
}

// Waiting is the reason of a rollout that the operator has not begun.
const Waiting = "Waiting"

// RolloutOf reads a pool's status.
func RolloutOf(pool *v1alpha1.InferencePool) Rollout {
	s := &pool.Status
	r := Rollout{
		Namespace: pool.Namespace, Pool: pool.Name, Paused: string(pool.Spec.Paused),
		CurrentRevision: s.CurrentRevision, UpdateRevision: s.UpdateRevision,
		Desired: number(s.DesiredReplicas), Updated: number(s.UpdatedReplicas), Ready: number(s.ReadyReplicas),
		Draining: number(s.DrainingReplicas),
	}
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionUpToDate)
	if c == nil || s.ObservedGeneration < pool.Generation {
		r.Reason, r.Message = Waiting, "the operator has not seen the newest spec yet"
		return r
	}
	r.Reason, r.Message = c.Reason, c.Message
	r.Done = c.Status == metav1.ConditionTrue
	r.Failed = c.Reason == status.ReasonRolloutStopped
	return r
}

func number(n *int32) int32 {
	if n == nil {
		return 0
	}
	return *n
}

// Line is a rollout in a sentence.
func (r *Rollout) Line() string {
	text := fmt.Sprintf("%s: %d of %d pods updated, %d ready", r.Reason, r.Updated, r.Desired, r.Ready)
	if r.Draining > 0 {
		text += fmt.Sprintf(", %d draining", r.Draining)
	}
	if r.Message != "" && !r.Done {
		text += ": " + r.Message
	}
	return text
}

// Pause stops replacing pods for their revision; all stops changes of the size too. Changed is false where that was so.
func Pause(ctx context.Context, c client.Client, name types.NamespacedName, all bool) (changed bool, err error) {
	pool, err := Pool(ctx, c, name)
	if err != nil {
		return false, err
	}
	want := v1alpha1.PauseRollout
	switch {
	case all:
		want = v1alpha1.PauseAll
	case pool.Spec.Template == nil:
		return false, refuse("the pods of pool %s have another owner, which also rolls them out: --all pauses only their number", name.Name)
	}
	if pool.Spec.Paused == want {
		return false, nil
	}
	return true, patchSpec(ctx, c, pool, map[string]any{"paused": want})
}

// Resume continues everything that Pause has stopped.
func Resume(ctx context.Context, c client.Client, name types.NamespacedName) (changed bool, err error) {
	pool, err := Pool(ctx, c, name)
	if err != nil || pool.Spec.Paused == "" {
		return false, err
	}
	return true, patchSpec(ctx, c, pool, map[string]any{"paused": nil})
}

// Restart makes a new revision of the same template, to which all pods are rolled out.
func Restart(ctx context.Context, c client.Client, name types.NamespacedName, now time.Time) error {
	pool, err := Pool(ctx, c, name)
	switch {
	case err != nil:
		return err
	case pool.Spec.Template == nil:
		return refuse("the pods of pool %s have another owner: restart it (kubectl rollout restart)", name.Name)
	case pool.Spec.Paused != "":
		return refuse("the pool %s is paused: kubectl kvasir rollout resume %s", name.Name, name.Name)
	}
	return patchSpec(ctx, c, pool, map[string]any{"template": map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{v1alpha1.AnnotationRestartedAt: now.UTC().Format(time.RFC3339)},
	}}})
}

func patchSpec(ctx context.Context, c client.Client, pool *v1alpha1.InferencePool, spec map[string]any) error {
	raw, err := json.Marshal(map[string]any{"spec": spec})
	if err == nil {
		err = c.Patch(ctx, pool, client.RawPatch(types.MergePatchType, raw))
	}
	if err != nil {
		return fmt.Errorf("changing the pool %s: %w", pool.Name, err)
	}
	return nil
}
