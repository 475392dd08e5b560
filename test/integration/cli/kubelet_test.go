package cli_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/test/kube"
)

// kubelet is a node that forwards ports to pods, and does nothing else. Its pods are addresses of this machine.
type kubelet struct {
	mu   sync.Mutex
	pods map[string]string // addresses by name
}

const nodeName = "node-1"

// startKubelet makes the node.
func startKubelet(ctx context.Context, c client.Client) *kubelet {
	k := &kubelet{pods: map[string]string{}}
	server := httptest.NewTLSServer(k)
	DeferCleanup(server.Close)
	at, err := url.Parse(server.URL)
	Expect(err).NotTo(HaveOccurred())
	port, err := strconv.Atoi(at.Port())
	Expect(err).NotTo(HaveOccurred())
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	Expect(c.Create(ctx, node)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(c.Delete(ctx, node)).To(Succeed()) })
	node.Status = corev1.NodeStatus{
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: kube.Loopback()}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}},
	}
	Expect(c.Status().Update(ctx, node)).To(Succeed())
	return k
}

func (k *kubelet) add(name, address string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods[name] = address
}

// ServeHTTP forwards: /portForward/NAMESPACE/POD.
func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	k.mu.Lock()
	address := k.pods[parts[len(parts)-1]]
	k.mu.Unlock()
	if len(parts) < 3 || parts[0] != "portForward" || address == "" {
		http.NotFound(w, r)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
		return
	}
	streams := make(chan httpstream.Stream, 16)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	var faults httpstream.Stream
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-conn.CloseChan():
			return
		case s := <-streams:
			if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeError {
				faults = s
				continue
			}
			of := faults
			running.Go(func() { carry(s, of, net.JoinHostPort(address, s.Headers().Get(corev1.PortHeader))) })
		}
	}
}

// carry one connection; what is wrong with it goes to the stream of faults.
func carry(data, faults httpstream.Stream, to string) {
	defer faults.Close()
	conn, err := net.Dial("tcp", to)
	if err != nil {
		fmt.Fprintf(faults, "forwarding: %v", err)
		return
	}
	defer conn.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(data, conn)
		_ = data.Close()
	}()
	_, _ = io.Copy(conn, data)
	_ = conn.Close()
	<-done
}
