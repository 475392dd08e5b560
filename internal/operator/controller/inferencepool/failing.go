package inferencepool

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
)

// failingOf returns why a pod that has run is not ready: its node, or its engine, which fails its probes; the zero value for others.
func (r *podFacts) failingOf(pod *corev1.Pod) lifecycle.Trouble {
	if ready, _ := since(pod, corev1.PodReady); ready {
		return lifecycle.Trouble{}
	}
	if why := r.nodeFailing[pod.Spec.NodeName]; why != "" {
		return lifecycle.Trouble{Reason: lifecycle.NodeNotReady, Message: why}
	}
	engine := engineOf(pod, r.pool.Spec.Engine.ContainerName)
	if engine == nil || engine.State.Running == nil || engine.Ready {
		return lifecycle.Trouble{}
	}
	loaded, at := since(pod, corev1.ContainersReady)
	if loaded || !at.After(engine.State.Running.StartedAt.Time) { // it has not been ready since it started
		return lifecycle.Trouble{}
	}
	return lifecycle.Trouble{Reason: lifecycle.Unready, Message: fmt.Sprintf("%s fails its readiness probe since %s. See kubectl describe pod and its log",
		engine.Name, r.ofNode(pod, at).UTC().Format(time.TimeOnly))}
}

// failingNodes returns what is wrong with the nodes of pods that are not ready, by the node's name.
func (r *nodes) failingNodes(ctx context.Context, pods []*corev1.Pod) (map[string]string, error) {
	found := map[string]string{}
	for _, pod := range pods {
		name := pod.Spec.NodeName
		if ready, _ := since(pod, corev1.PodReady); ready || name == "" || !r.NodeSignals {
			continue
		}
		if _, known := found[name]; known {
			continue
		}
		node, err := r.find(ctx, name)
		if err != nil {
			return nil, err
		}
		found[name] = nodeFails(node, name)
	}
	return found, nil
}

// nodeFails describes a node that is not ready or nil; empty for a sound one.
func nodeFails(node *corev1.Node, name string) string {
	if node == nil {
		return "node " + name + " does not exist any more"
	}
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return fmt.Sprintf("node %s is not ready since %s: see kubectl describe node, its kubelet and its network",
				name, c.LastTransitionTime.UTC().Format(time.TimeOnly))
		}
	}
	return ""
}
