package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/freeport"
	"github.com/kvasir-dev/kvasir/internal/operator/keda"
)

// identity writes a certificate that is its own authority, and its key, for 127.0.0.1, into a directory.
func identity(t *testing.T) (dir string, pair tls.Certificate, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: t.Name()}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true,
		BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir, pool = t.TempDir(), x509.NewCertPool()
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	secret := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
	for name, text := range map[string][]byte{"tls.crt": cert, "tls.key": secret} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if pair, err = tls.X509KeyPair(cert, secret); err != nil || !pool.AppendCertsFromPEM(cert) {
		t.Fatal(err)
	}
	return dir, pair, pool
}

// serveKEDA starts a replica's scaler, and returns its address.
func serveKEDA(t *testing.T, o *options, reader client.Reader) string {
	t.Helper()
	free, err := freeport.Addresses("127.0.0.1", 1)
	if err != nil {
		t.Fatal(err)
	}
	o.kedaAddress = free[0]
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	server := o.kedaServer(reader)
	go func() { ended <- server.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return o.kedaAddress
}

// askKEDA asks for the size of a pool.
func askKEDA(t *testing.T, address, pool string, c credentials.TransportCredentials) (int64, error) {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(c))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ref := &keda.ScaledObjectRef{Namespace: "llm", Name: pool}
	got, err := keda.NewExternalScalerClient(conn).GetMetrics(ctx, &keda.GetMetricsRequest{ScaledObjectRef: ref}, grpc.WaitForReady(true))
	if err != nil {
		return 0, err
	}
	return got.GetMetricValues()[0].GetMetricValue(), nil
}

func scaledPools(t *testing.T) client.Reader {
	t.Helper()
	pool := func(name string, limit int32, size *int32) *v1alpha1.InferencePool {
		p := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: name}}
		p.Spec.Autoscaling.MaxReplicas, p.Status.Autoscaling.RecommendedReplicas = limit, size
		return p
	}
	return fake.NewClientBuilder().WithScheme(newScheme()).
		WithObjects(pool("chat", 9, ptr.To[int32](4)), pool("new", 9, nil), pool("fixed", 0, ptr.To[int32](4))).Build()
}

func TestEveryReplicaAnswersKEDA(t *testing.T) {
	if manager.LeaderElectionRunnable(&kedaServer{}).NeedLeaderElection() {
		t.Error("only the leader answers")
	}
	pools := scaledPools(t)
	for range 2 { // replicas; neither has decided anything
		address := serveKEDA(t, &options{}, pools)
		if got, err := askKEDA(t, address, "chat", insecure.NewCredentials()); err != nil || got != 4 {
			t.Errorf("size %d, %v", got, err)
		}
		for _, name := range []string{"new", "fixed", "unknown"} {
			if _, err := askKEDA(t, address, name, insecure.NewCredentials()); status.Code(err) != codes.Unavailable {
				t.Errorf("pool %s: %v", name, err)
			}
		}
	}
}

func TestKEDAIsServedWithTLS(t *testing.T) {
	dir, _, ca := identity(t)
	clients, known, _ := identity(t)
	_, stranger, _ := identity(t)
	tlsWith := func(pairs ...tls.Certificate) credentials.TransportCredentials {
		return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: ca, Certificates: pairs})
	}
	open := &options{kedaCerts: dir}
	closed := &options{kedaCerts: dir, kedaClientCA: filepath.Join(clients, "tls.crt")}
	pools := scaledPools(t)
	for name, tc := range map[string]struct {
		server *options
		client credentials.TransportCredentials
		served bool
	}{
		"any client of a server without a CA":   {open, tlsWith(), true},
		"a client that knows another CA":        {open, credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool()}), false},
		"a client with a certificate":           {closed, tlsWith(known), true},
		"a client without a certificate":        {closed, tlsWith(), false},
		"a client with a certificate of others": {closed, tlsWith(stranger), false},
	} {
		t.Run(name, func(t *testing.T) {
			address := serveKEDA(t, tc.server, pools)
			conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(tc.client))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			for !listens(address) { // a refused handshake and a server that does not listen yet look alike to a client
				time.Sleep(5 * time.Millisecond)
			}
			ref := &keda.ScaledObjectRef{Namespace: "llm", Name: "chat"}
			_, err = keda.NewExternalScalerClient(conn).GetMetrics(t.Context(), &keda.GetMetricsRequest{ScaledObjectRef: ref})
			if (err == nil) != tc.served {
				t.Errorf("served: %v, want %v", err, tc.served)
			}
		})
	}
	if err := (&kedaServer{address: "127.0.0.1:0", certificates: t.TempDir()}).Start(t.Context()); err == nil {
		t.Error("it serves without the certificate that it was given")
	}
}

// listens reports whether a server accepts connections.
func listens(address string) bool {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// TestConnectionsDoNotKeepKEDAOut: however many addresses hold them.
func TestConnectionsDoNotKeepKEDAOut(t *testing.T) {
	address := serveKEDA(t, &options{}, scaledPools(t))
	if size, err := askKEDA(t, address, "chat", insecure.NewCredentials()); err != nil || size != 4 {
		t.Fatalf("%d, %v", size, err)
	}
	closed := make(chan struct{}, 8*kedaConnections)
	for i := range cap(closed) {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%16))}, Timeout: 30 * time.Second}
		c, err := from.Dial("tcp", address)
		if err != nil {
			t.Skip("no other addresses of the loopback network: ", err)
		}
		t.Cleanup(func() { _ = c.Close() })
		go func() { // nothing is sent: the server closes it for its own reasons
			_, _ = io.Copy(io.Discard, c)
			closed <- struct{}{}
		}()
	}
	if size, err := askKEDA(t, address, "chat", insecure.NewCredentials()); err != nil || size != 4 {
		t.Errorf("%d, %v", size, err)
	}
	for range cap(closed) - kedaConnections {
		select {
		case <-closed:
		case <-time.After(30 * time.Second):
			t.Fatalf("%d of %d connections are closed", len(closed), cap(closed))
		}
	}
}
