package inferencepool

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/test/race"
)

var seeds = flag.Uint64("seeds", inPart(200), "how many random histories of a pool to try")

// inPart is how many of n lives with one goroutine are played: a tenth under the race detector.
func inPart(n uint64) uint64 {
	if race.Enabled {
		return n / 10
	}
	return n
}

// largest size of a pool.
const largest = 3

// chaos lets everything go wrong in a world.
type chaos struct {
	*world
	rng  *rand.Rand
	dead int // writes until the controller dies; negative for never
}

func newChaos(t *testing.T, seed uint64) *chaos {
	c := &chaos{rng: rand.New(rand.NewPCG(seed, 1)), dead: -1}
	c.world = emptyWorld(t)
	server := &store{objects: map[string]client.Object{}}
	server.put(newPool(func(p *v1alpha1.InferencePool) {
		p.Spec.Replicas = ptr.To[int32](2)
		p.Spec.Drain.DeadlineSeconds = ptr.To[int32](120)
		p.Spec.Rollout = &v1alpha1.Rollout{Type: v1alpha1.RollingUpdate, ProgressDeadlineSeconds: 300, RevisionHistoryLimit: 2}
		if seed%3 == 0 {
			p.Spec.WarmUp = &v1alpha1.WarmUp{MaxSeconds: 60, MaxTokens: 1}
		}
	}))
	c.serveFrom(server)
	c.say("seed %d", seed)
	c.stale = func() bool { return chance(c.rng, 40) }
	c.broken = func(string, client.Object) (before, after error) {
		if c.dead == 0 {
			return errDead, nil
		}
		c.dead--
		switch n := c.rng.IntN(100); {
		case n < 4:
			return errBroken, nil
		case n < 7:
			return nil, errBroken // it was done, but reported as failed
		case n < 10:
			return apierrors.NewTooManyRequests("busy", 1), nil
		}
		return nil, nil
	}
	return c
}

// step lets some time pass.
func (c *chaos) step() {
	c.clock.SetTime(c.clock.Now().Add(time.Duration(200+c.rng.IntN(4000)) * time.Millisecond))
	pods := c.all()
	for _, pod := range pods {
		if !isTrue(pod, corev1.PodReady) && chance(c.rng, 30) && !bad(pod) && pod.Status.Phase != corev1.PodFailed {
			c.run(pod)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.pickers)) {
		if chance(c.rng, 70) {
			c.speak(name)
		}
		c.pick(name)
	}
	for _, uid := range slices.Sorted(maps.Keys(c.engines)) {
		if chance(c.rng, 70) {
			e := c.engines[uid]
			e.readings = append(e.readings[max(0, len(e.readings)-2):], reading(c.clock.Now(), c.busy(uid)))
		}
	}
	if chance(c.rng, 5) {
		c.dead = c.rng.IntN(3)
	}
	c.look()
}

func bad(pod *corev1.Pod) bool { return pod.Spec.Containers[0].Image == "bad" }

// pick sends a request to a pod that the picker does not know to drain.
func (c *chaos) pick(name string) {
	for _, pod := range c.all() {
		uid := string(pod.UID)
		if draining, known := c.pickers[name].draining[uid]; known && !draining && isTrue(pod, corev1.PodReady) && chance(c.rng, 30) {
			e := c.engine(pod)
			e.requests = append(e.requests, c.clock.Now().Add(time.Duration(c.rng.IntN(20000))*time.Millisecond))
		}
	}
}

// look lets the controller look when it would: after a change, which is any time here, or when it asked for it.
func (c *chaos) look() {
	if _, err := c.reconcile(); err != nil && !errors.Is(err, errBroken) && !errors.Is(err, errDead) && !apierrors.IsTooManyRequests(err) {
		c.fail("%v", err)
	}
	if c.dead == 0 {
		c.restart()
	}
	c.countPods()
}

// keptEnded pods that ended are kept for inspection beside those that are wanted.
const keptEnded = 3

// countPods finds pods that are there twice: of one revision never more than the largest size and the surge are wanted.
// Pods that ended hold no place any more, and only the newest are kept.
func (c *chaos) countPods() {
	count, ended := map[string]int{}, map[string]int{}
	for _, pod := range c.all() {
		revision := pod.Labels[v1alpha1.LabelRevision]
		switch {
		case markOf(pod).Reason != "":
			continue
		case pod.Status.Phase == corev1.PodFailed:
			ended[revision]++
		default:
			count[revision]++
		}
		if n := count[revision]; n > largest+1 || n+ended[revision] > largest+1+keptEnded {
			c.fail("%d pods of revision %s, and %d that ended: %v", n, revision, ended[revision], c.names())
		}
	}
}

// restart begins a controller without memory. Its first reads can be as old as those of the one before: not all API servers
// have the newest state.
func (c *chaos) restart() {
	c.say("the controller starts again")
	c.dead = -1
	pods, pools, kept := c.pods, c.pools, c.kept
	c.start()
	if c.stale != nil && c.stale() {
		c.pods, c.pools, c.kept = pods, pools, kept
	}
}

// disturb is what people and nodes do.
func (c *chaos) disturb() {
	ctx := context.Background()
	pods := c.all()
	var pod *corev1.Pod
	if len(pods) > 0 {
		pod = pods[c.rng.IntN(len(pods))]
	}
	switch n := c.rng.IntN(7); {
	case n == 0:
		size := int32(c.rng.IntN(largest + 1))
		c.say("size %d", size)
		c.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = &size })
	case n <= 2:
		image := []string{"a", "b", "bad"}[c.rng.IntN(3)]
		c.say("image %s", image)
		c.edit(func(s *v1alpha1.InferencePoolSpec) { s.Template.Spec.Containers[0].Image = image })
	case pod == nil:
	case n == 3:
		c.say("somebody deletes %s", pod.Name)
		_ = c.api.Delete(ctx, pod)
	case n == 4:
		c.say("%s fails for good", pod.Name)
		c.setStatus(pod, func(s *corev1.PodStatus) {
			s.Phase, s.ContainerStatuses = corev1.PodFailed, nil
			setCondition(s, corev1.PodReady, false, c.clock.Now())
			setCondition(s, corev1.ContainersReady, false, c.clock.Now())
		})
		delete(c.engines, string(pod.UID))
	case n == 5:
		c.say("somebody marks %s", pod.Name)
		metav1.SetMetaDataLabel(&pod.ObjectMeta, v1alpha1.LabelDrain, []string{"manual", "rollout", "whatever"}[c.rng.IntN(3)])
		_ = c.api.Update(ctx, pod)
	case n == 6:
		c.say("somebody lifts the mark of %s", pod.Name)
		delete(pod.Labels, v1alpha1.LabelDrain)
		_ = c.api.Update(ctx, pod)
	}
}

// settle ends all trouble and waits.
func (c *chaos) settle() {
	c.broken, c.stale, c.dead = nil, nil, -1
	c.edit(func(s *v1alpha1.InferencePoolSpec) {
		if s.Template.Spec.Containers[0].Image == "bad" {
			s.Template.Spec.Containers[0].Image = "c"
		}
	})
	for _, pod := range c.all() {
		if m := markOf(pod); m.Reason != "" && m.Deadline.IsZero() {
			delete(pod.Labels, v1alpha1.LabelDrain)
			c.must(c.api.Update(context.Background(), pod))
		}
	}
	c.say("quiet")
	c.wait()
}

// wait lets time pass until the pool is as desired. A controller that dies starts again.
func (c *chaos) wait() {
	for range 80 {
		c.clock.SetTime(c.clock.Now().Add(5 * time.Second))
		for _, pod := range c.all() {
			if !isTrue(pod, corev1.PodReady) && !bad(pod) && pod.Status.Phase != corev1.PodFailed {
				c.run(pod)
			}
			c.engine(pod)
		}
		c.tick()
		again, err := c.reconcile()
		if errors.Is(err, errDead) {
			c.restart()
			continue
		}
		c.must(err)
		if again == 0 && c.settled() == "" {
			return
		}
		if again > 10*time.Minute { // only pods that ended are waited for, until they need not be looked at any more
			c.clock.SetTime(c.clock.Now().Add(again))
		}
	}
	c.fail("not in the desired state: %s", c.settled())
}

// settled says what is not as desired.
func (c *chaos) settled() string {
	s := c.pool().Status
	pods := c.all()
	want := int(*c.pool().Spec.Replicas)
	if len(pods) != want {
		return fmt.Sprintf("%d pods, want %d", len(pods), want)
	}
	for _, pod := range pods {
		switch {
		case !isTrue(pod, corev1.PodReady):
			return pod.Name + " is not ready"
		case markOf(pod).Reason != "":
			return pod.Name + " drains"
		case "chat-"+pod.Labels[v1alpha1.LabelRevision] != s.UpdateRevision:
			return pod.Name + " is of an old revision"
		}
	}
	if int(ptr.Deref(s.ReadyReplicas, -1)) != want || s.CurrentRevision != s.UpdateRevision {
		return fmt.Sprintf("status: %d ready, revisions %s and %s", ptr.Deref(s.ReadyReplicas, -1), s.CurrentRevision, s.UpdateRevision)
	}
	return ""
}

func TestWhateverHappensThePoolEndsAsDesired(t *testing.T) {
	for seed := range *seeds {
		c := newChaos(t, seed)
		for range 25 {
			c.step()
			if chance(c.rng, 20) {
				c.disturb()
			}
		}
		c.settle()
	}
}

// live plays a life of a pool under load: it is made, grows, rolls out, shrinks. The controller dies before a write,
// counted from 0, or never. Told is how many writes there were.
func live(t *testing.T, dies int) (writes int) {
	c := newChaos(t, 0) // with a warm-up
	c.stale, c.dead = nil, dies
	c.broken = func(string, client.Object) (before, after error) {
		if c.dead == 0 {
			return errDead, nil
		}
		c.dead--
		writes++
		return nil, nil
	}
	for _, edit := range []func(*v1alpha1.InferencePoolSpec){
		func(*v1alpha1.InferencePoolSpec) {},
		func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](4) },
		func(s *v1alpha1.InferencePoolSpec) { s.Template.Spec.Containers[0].Image = "b" },
		func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](1) },
	} {
		c.edit(edit)
		for _, name := range slices.Sorted(maps.Keys(c.pickers)) {
			c.pick(name)
		}
		c.wait()
	}
	return writes
}

func TestTheControllerMayDieBetweenAnyTwoWrites(t *testing.T) {
	writes := live(t, -1)
	if writes < 30 {
		t.Fatalf("only %d writes: the life shows little", writes)
	}
	deaths := 0
	for dies := 0; dies < writes; dies += writes / int(inPart(uint64(writes))) {
		live(t, dies)
		deaths++
	}
	t.Logf("%d writes, a death before %d of them", writes, deaths)
}
