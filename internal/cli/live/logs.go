package live

import (
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// Bounds of the end of a log.
const (
	logLines = 5000
	logBytes = 8 << 20
)

// Logs reads the ends of the logs of containers.
func Logs(config *rest.Config) (func(ctx context.Context, namespace, pod, container string, previous bool) ([]byte, error), error) {
	core, err := coreClient(config)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, namespace, pod, container string, previous bool) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		stream, err := core.Get().Namespace(namespace).Resource("pods").Name(pod).SubResource("log").VersionedParams(&corev1.PodLogOptions{
			Container: container, Previous: previous, Timestamps: true, TailLines: ptr.To(int64(logLines)),
		}, scheme.ParameterCodec).Stream(ctx)
		if err != nil {
			return nil, fmt.Errorf("reading the log of %s in pod %s: %w", container, pod, err)
		}
		defer stream.Close()
		text, err := io.ReadAll(io.LimitReader(stream, logBytes))
		if err != nil {
			return nil, fmt.Errorf("reading the log of %s in pod %s: %w", container, pod, err)
		}
		return text, nil
	}, nil
}
