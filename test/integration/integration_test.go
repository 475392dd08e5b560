// Package integration runs the operator as a process against a real API server, with the rights and the manifests of
// config.
package integration

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/test/kube"
)

func TestOperator(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Operator")
}

// Where the operator runs, and as whom.
const (
	system   = "kvasir-system"
	operator = "kvasir-operator"
)

// patience bounds what processes do. It is generous: the machine can be very busy.
const patience = 2 * time.Minute

var (
	cluster *kube.Cluster
	admin   client.Client
	// program is the file of the manager.
	program string
)

var _ = BeforeSuite(func(ctx SpecContext) {
	ctrl.SetLogger(GinkgoLogr)
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	var err error
	cluster, err = kube.Start(kube.Options{Scheduler: true})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(cluster.Stop)

	scheme := runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	cluster.Config.QPS = -1 // no limit
	admin, err = client.New(cluster.Config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())

	kubectl(ctx, "apply", "--server-side", "-k", filepath.Join(kube.Root(), "config", "default"))
	program = filepath.Join(GinkgoT().TempDir(), "manager")
	out, err := exec.CommandContext(ctx, "go", "build", "-o", program, "../../cmd/manager").CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
})

// kubectl runs it as an administrator and returns what it prints.
func kubectl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := cluster.Kubectl(ctx, nil, args...)
	Expect(err).NotTo(HaveOccurred())
	return out
}

// namespace makes a namespace of its own for a test.
func namespace(ctx context.Context) string {
	GinkgoHelper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	Expect(admin.Create(ctx, ns)).To(Succeed())
	return ns.Name
}
