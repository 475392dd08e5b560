package pickers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
	"github.com/kvasir-dev/kvasir/internal/rpc"
)

// patience bounds waits for what must come; it is never waited for in full when all is well.
const patience = 20 * time.Second

var chat = types.NamespacedName{Namespace: "llm", Name: "chat"}

const token = "the operator's token"

// operator is taken for the operator by its token.
type operator struct{}

// Authenticate implements rpc.Authenticator.
func (operator) Authenticate(ctx context.Context) (rpc.Identity, error) {
	shown, _ := metadata.FromIncomingContext(ctx)
	if !slices.Equal(shown.Get("authorization"), []string{"Bearer " + token}) {
		return rpc.Identity{}, errors.New("not the operator's token")
	}
	return rpc.Identity{Any: true}, nil
}

// replica is a picker that serves on a loopback address of its own, since the port of all is the same.
type replica struct {
	name, ip string
	open     atomic.Int64 // connections
	came     atomic.Int64 // connections, ever
	stop     func()
}

func (r *replica) pod(ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: chat.Namespace, Name: r.name, Labels: map[string]string{
			"app.kubernetes.io/name": "kvasir", "app.kubernetes.io/component": "picker", "app.kubernetes.io/instance": chat.Name,
		}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: r.ip,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
		},
	}
}

// tried is how many connections have been opened.
func (r *replica) tried() int64 { return r.came.Load() }

// counted counts the connections of a replica.
type counted struct {
	net.Listener
	*replica
}

// Accept implements net.Listener.
func (c counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.open.Add(1)
	c.came.Add(1)
	return &countedConn{Conn: conn, ended: sync.OnceFunc(func() { c.open.Add(-1) })}, nil
}

type countedConn struct {
	net.Conn
	ended func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.ended()
	return c.Conn.Close()
}

func newReplica(t *testing.T, name string, certificate tls.Certificate) *replica {
	t.Helper()
	r := &replica{name: name}
	var l net.Listener
	var err error
	for range 20 {
		r.ip = fmt.Sprintf("127.%d.%d.%d", 16+rand.N(200), rand.N(256), 1+rand.N(250))
		l, err = new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(r.ip, strconv.Itoa(resources.SyncPort)))
		if err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewServer(rpc.ServerOptions{
		Operate: &rpc.OperateService{Auth: operator{}, State: func(pool string) (operatorfeed.State, bool) {
			return operatorfeed.State{Picker: name, Incarnation: 1, Ready: true, Pods: map[string]operatorfeed.PodState{"u": {InFlight: 3}}}, pool == chat.String()
		}},
		Credentials: credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}}),
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(counted{l, r})
	}()
	r.stop = sync.OnceFunc(func() {
		server.Close()
		<-done
	})
	t.Cleanup(r.stop)
	return r
}

// issue makes a CA, and a certificate of it for the pool's pickers.
func issue(t *testing.T, pool *v1alpha1.InferencePool) (tls.Certificate, []byte) {
	t.Helper()
	_, leaf, trusted, _, err := resources.Certificates(pool, nil, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(leaf.Data[corev1.TLSCertKey], leaf.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		t.Fatal(err)
	}
	return pair, trusted
}

// world is a pool whose pickers are listened to.
type world struct {
	t        *testing.T
	api      client.Client
	listener *Listener
	changed  chan event.GenericEvent
	cert     tls.Certificate
	end      func() // and wait
}

func newWorld(t *testing.T, foreign bool) *world {
	t.Helper()
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), v1alpha1.AddToScheme(known)); err != nil {
		t.Fatal(err)
	}
	pool := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: chat.Namespace, Name: chat.Name, UID: "pool"}}
	cert, trusted := issue(t, pool)
	if foreign {
		_, trusted = issue(t, pool)
	}
	// A token that somebody wrote by hand ends in a line feed.
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, cert: cert, changed: make(chan event.GenericEvent, 64)}
	w.api = fake.NewClientBuilder().WithScheme(known).WithObjects(pool, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: chat.Namespace, Name: resources.CAName(chat.Name)},
		Data:       map[string]string{resources.CAEntry: string(trusted)},
	}).Build()
	w.listener = New(Options{Reader: withoutServices{w.api}, Direct: w.api, Token: file, Changed: []chan<- event.GenericEvent{w.changed}, Log: logr.Discard()})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.listener.Start(ctx) }()
	w.end = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("it ended with %v", err)
			}
		case <-time.After(patience):
			t.Error("it does not end")
		}
	})
	t.Cleanup(w.end)
	return w
}

func (w *world) add(objects ...client.Object) {
	w.t.Helper()
	for _, o := range objects {
		if err := w.api.Create(w.t.Context(), o); err != nil {
			w.t.Fatal(err)
		}
	}
}

// waitForNews waits for news of the pool.
func (w *world) waitForNews() {
	w.t.Helper()
	select {
	case e := <-w.changed:
		if got := client.ObjectKeyFromObject(e.Object); got != chat {
			w.t.Fatalf("news of %s", got)
		}
	case <-time.After(patience):
		w.t.Fatal("no news")
	}
}

// until waits for what another goroutine is about to do.
func (w *world) until(what string, is func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatal(what)
		}
	}
}

func names(v *operatorfeed.View) (reporting, silent []string) {
	for i := range v.Replicas {
		reporting = append(reporting, v.Replicas[i].Picker)
	}
	slices.Sort(reporting)
	silent = slices.Clone(v.Silent)
	slices.Sort(silent)
	return reporting, silent
}

func TestAReplicaThatIsReadyAndNotHeardIsInTheView(t *testing.T) {
	w := newWorld(t, false)
	silent := &replica{name: "silent"} // has no address yet
	w.add(silent.pod(corev1.ConditionTrue), (&replica{name: "starting"}).pod(corev1.ConditionFalse))
	done := (&replica{name: "done"}).pod(corev1.ConditionTrue)
	done.Status.Phase = corev1.PodSucceeded
	other := (&replica{name: "other"}).pod(corev1.ConditionTrue)
	other.Labels["app.kubernetes.io/instance"] = "another"
	w.add(done, other)
	view := w.listener.View(chat)
	if reporting, silent := names(&view); len(reporting) != 0 || !slices.Equal(silent, []string{"silent"}) {
		t.Errorf("heard %v, unheard %v; want silent alone, unheard", reporting, silent)
	}
	if _, ok := view.Acknowledged("u"); ok {
		t.Error("a mark is acknowledged that no picker has reported")
	}
}

// TestAMovingPoolHasThePickersOfBothSides: its own, those of its fleet, and those of the fleet before. A mark is acknowledged when all of them
// have done so.
func TestAMovingPoolHasThePickersOfBothSides(t *testing.T) {
	w := newWorld(t, false)
	pool := &v1alpha1.InferencePool{}
	if err := w.api.Get(t.Context(), chat, pool); err != nil {
		t.Fatal(err)
	}
	pool.Spec.Picker.Mode, pool.Spec.Picker.FleetRef.Name, pool.Status.Picker.FleetName = v1alpha1.PickerOfFleet, "next", "before"
	if err := w.api.Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	w.add((&replica{name: "own"}).pod(corev1.ConditionTrue))
	for _, fleet := range []string{"next", "before", "another"} {
		pod := (&replica{name: fleet}).pod(corev1.ConditionTrue)
		pod.Labels = resources.FleetPods(fleet)
		w.add(pod)
	}
	view := w.listener.View(chat)
	if _, silent := names(&view); !slices.Equal(silent, []string{"before", "next", "own"}) {
		t.Errorf("asked are %v", silent)
	}
}

func TestWhatIsHeardWakesTheControllers(t *testing.T) {
	w := newWorld(t, false)
	a, b := newReplica(t, "a", w.cert), newReplica(t, "b", w.cert)
	w.add(a.pod(corev1.ConditionTrue), b.pod(corev1.ConditionFalse))
	w.listener.View(chat)
	w.waitForNews()
	w.until("a and b do not report", func() bool {
		view := w.listener.View(chat)
		reporting, silent := names(&view)
		return slices.Equal(reporting, []string{"a", "b"}) && len(silent) == 0
	})
	view := w.listener.View(chat)
	if n := view.InFlight("u"); n != 6 {
		t.Errorf("%d requests in flight at pod u, want 3 of each replica", n)
	}
}

// withoutServices is a cache as the operator's: it has none of the Services that somebody else has made.
type withoutServices struct{ client.Reader }

func (c withoutServices) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, ok := o.(*corev1.Service); ok {
		return apierrors.NewNotFound(corev1.Resource("services"), key.Name)
	}
	return c.Reader.Get(ctx, key, o, opts...)
}

func TestAServiceThatSelectsNothingIsNobody(t *testing.T) {
	w := newWorld(t, false)
	w.add(newReplica(t, "a", w.cert).pod(corev1.ConditionTrue), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: chat.Namespace, Name: "theirs"}})
	pool := &v1alpha1.InferencePool{}
	if err := w.api.Get(t.Context(), chat, pool); err != nil {
		t.Fatal(err)
	}
	pool.Spec.Picker.Mode, pool.Spec.Picker.External = v1alpha1.PickerExternal, v1alpha1.ExternalPicker{ServiceName: "theirs"}
	if err := w.api.Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if all, err := w.listener.replicas(t.Context(), chat); err == nil {
		t.Errorf("pods %v are taken for pickers", all)
	}
}

func TestPickersOfSomebodyElseAreBehindTheirService(t *testing.T) {
	w := newWorld(t, false)
	a := newReplica(t, "a", w.cert)
	pod := a.pod(corev1.ConditionTrue)
	pod.Labels = map[string]string{"app": "theirs"}
	w.add(pod, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: chat.Namespace, Name: "theirs"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "theirs"}},
	})
	pool := &v1alpha1.InferencePool{}
	if err := w.api.Get(t.Context(), chat, pool); err != nil {
		t.Fatal(err)
	}
	pool.Spec.Picker.Mode, pool.Spec.Picker.External = v1alpha1.PickerExternal, v1alpha1.ExternalPicker{ServiceName: "theirs"}
	if err := w.api.Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	w.listener.View(chat)
	w.waitForNews()
}

func TestAPoolThatIsGoneIsForgotten(t *testing.T) {
	w := newWorld(t, false)
	a := newReplica(t, "a", w.cert)
	w.add(a.pod(corev1.ConditionTrue))
	w.listener.View(chat)
	w.waitForNews()
	w.listener.sweep(t.Context())
	if view := w.listener.View(chat); len(view.Replicas) != 1 || a.open.Load() != 1 {
		t.Fatal("a pool that is there was forgotten")
	}
	if err := w.api.Delete(t.Context(), &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: chat.Namespace, Name: chat.Name}}); err != nil {
		t.Fatal(err)
	}
	w.listener.sweep(t.Context())
	w.until("the stream goes on", func() bool { return a.open.Load() == 0 })
	if view := w.listener.View(chat); len(view.Replicas) != 0 || view.Live() == 0 {
		t.Errorf("view %+v; want one that knows no replica, and acknowledges nothing", view)
	}
	if len(w.listener.known) != 0 {
		t.Errorf("still known: %v", w.listener.known)
	}
}

func TestPickersWithACertificateOfAnotherCAAreNotHeard(t *testing.T) {
	w := newWorld(t, true)
	a := newReplica(t, "a", w.cert)
	w.add(a.pod(corev1.ConditionTrue))
	options, err := w.listener.dial(chat.String())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", net.JoinHostPort(a.ip, strconv.Itoa(resources.SyncPort)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, _, err = options.Credentials.ClientHandshake(ctx, resources.Host(resources.PickerName(chat.Name), chat.Namespace), conn)
	if unknown := new(tls.CertificateVerificationError); !errors.As(err, &unknown) {
		t.Fatalf("the handshake ended with %v, want that the certificate is not trusted", err)
	}
	view := w.listener.View(chat)
	w.until("no replica was dialed", func() bool {
		view = w.listener.View(chat)
		return a.tried() >= 2 // the handshake of this test, and one of the listener
	})
	if reporting, silent := names(&view); len(reporting) != 0 || !slices.Equal(silent, []string{"a"}) {
		t.Errorf("heard %v, unheard %v; want a alone, unheard", reporting, silent)
	}
}

func TestNothingGoesOnAfterTheEnd(t *testing.T) {
	w := newWorld(t, false)
	a := newReplica(t, "a", w.cert)
	w.add(a.pod(corev1.ConditionTrue))
	w.listener.View(chat)
	w.waitForNews()
	w.end()
	w.until("a stream goes on", func() bool { return a.open.Load() == 0 })
	before := a.tried()
	// A reconciliation can still be under way.
	view := w.listener.View(chat)
	if _, ok := view.Acknowledged("u"); ok {
		t.Error("a mark is acknowledged at the end")
	}
	// Were a stream to begin, it would be the first connection of the two.
	if conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", net.JoinHostPort(a.ip, strconv.Itoa(resources.SyncPort))); err == nil {
		defer conn.Close()
	}
	w.until("the test's own connection is not seen", func() bool { return a.tried() > before })
	time.Sleep(100 * time.Millisecond) // longer than a dial on loopback takes; a stream that came later would escape only
	if n := a.tried() - before; n != 1 {
		t.Errorf("%d connections after the end, want the test's own", n)
	}
}
