package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// cluster is the part of a cluster's API server that reporters need: it signs their tokens, and publishes the key.
type cluster struct {
	t      *testing.T
	dir    string
	key    *ecdsa.PrivateKey
	server *httptest.Server
}

const issuer = "https://cluster.test"

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), key: newKey(t)}
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: c.key.Public(), KeyID: "1", Use: "sig", Algorithm: "ES256"}}})
	if err != nil {
		t.Fatal(err)
	}
	c.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(set) }))
	t.Cleanup(c.server.Close)
	c.write("server.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.server.Certificate().Raw}))
	return c
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *cluster) write(name string, text []byte) {
	c.t.Helper()
	if err := os.WriteFile(c.path(name+".new"), text, 0o600); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(c.path(name+".new"), c.path(name)); err != nil {
		c.t.Fatal(err)
	}
}

// token writes a service account token that is bound to a pod.
func (c *cluster) token(name, uid string) {
	c.t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: c.key, KeyID: "1"}}, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	text, err := jwt.Signed(signer).Claims(map[string]any{
		"iss": issuer, "aud": []string{"kvasir.dev/report"}, "sub": "system:serviceaccount:default:default",
		"exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
		"kubernetes.io": map[string]any{"namespace": "default", "pod": map[string]any{"name": name, "uid": uid}},
	}).Serialize()
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(name+".token", []byte(text))
}

// certificate writes the pickers' certificate, of an authority of its own, which signs nothing else.
func (c *cluster) certificate() {
	c.t.Helper()
	key := newKey(c.t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "picker"}, DNSNames: []string{"localhost"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		c.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		c.t.Fatal(err)
	}
	c.write("picker.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
	c.write("picker.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// A pod's token lets its reporter report for that pod and no other. The API server was asked for its keys, and is not
// needed afterwards. Certificates change under way.
func TestReportersProveWhoTheyAre(t *testing.T) {
	c := newCluster(t)
	c.certificate()
	c.write("own", []byte("the picker's own token"))
	s := newSite(t, 2, siteArgs{
		picker: []string{
			"--report-cert", c.path("picker.crt"), "--report-key", c.path("picker.key"), "--report-issuer", issuer,
			"--report-keys", c.server.URL, "--report-keys-ca", c.path("server.crt"), "--report-keys-token", c.path("own"),
			"--log-level", "trace",
		},
		reporter: func(p *pod) []string {
			c.token(p.uid(), p.uid())
			return []string{"--token-file", c.path(p.uid() + ".token"), "--picker-ca", c.path("picker.crt"), "--log-level", "debug"}
		},
	})
	for _, p := range s.pods {
		s.untilServing(p)
	}
	next := 0
	work := func() {
		for range 8 {
			if wrong := s.ask(siteprompt(next)); wrong != "" {
				t.Errorf("a request failed: %s", wrong)
			}
			next++
		}
	}
	work()
	s.untilEqual("with tokens")

	c.server.Close() // the API server is away from here on
	restart := func(p *program) { p.kill(); p.start() }
	restart(s.pods[0].reporter)
	work()
	s.untilEqual("without the API server")

	c.certificate() // the old one is no longer trusted
	restart(s.pods[1].reporter)
	work()
	s.untilEqual("with another certificate")

	// The reporter of one pod says that it is in the other.
	liar := s.pods[0].reporter
	liar.kill()
	liar.args = append(liar.args, "--pod", s.pods[1].uid())
	liar.start()
	s.until("the liar is refused", func() bool { return strings.Contains(liar.logs.String(), "not the reporter's own") })
	if s.metric("kvasir_report_refused_streams_total", `reason="not_their_own"`) == 0 {
		t.Error("the refusal is not counted")
	}
	if state := s.metric("kvasir_report_state", `endpoint="pod-1/0"`, `state="Synced"`); state != 1 {
		t.Error("the other pod's own reporter was pushed aside")
	}
	if _, present := s.sample("kvasir_index_divergent_blocks", s.pods[0]); present {
		t.Error("a pod without a reporter is vouched for")
	}
	liar.kill()
	liar.args = append(liar.args, "--pod", s.pods[0].uid())
	liar.start()
	work()
	s.untilEqual("with the truth")

	told := map[string]string{"the picker's log": s.proc.logs.String()}
	for _, p := range s.pods {
		told["the reporter's log of "+p.uid()] = p.reporter.logs.String()
	}
	for _, path := range []string{"/metrics", "/status", "/status?output=json", "/decisions?limit=512"} {
		_, told[path] = s.get(s.metrics + path)
	}
	for where, text := range told {
		if text == "" {
			t.Errorf("%s is empty", where)
		}
	}
	id := siteprompt(0)[0]
	secrets := []string{"the picker's own token", fmt.Sprintf("%d,%d", id, id+1), fmt.Sprintf("%d, %d", id, id+1), fmt.Sprintf("%d %d", id, id+1)}
	for _, file := range []string{s.pods[0].uid() + ".token", s.pods[1].uid() + ".token", "picker.key"} {
		text, err := os.ReadFile(c.path(file))
		if err != nil {
			t.Fatal(err)
		}
		secret := strings.TrimPrefix(string(text), "-----BEGIN PRIVATE KEY-----\n")
		secrets = append(secrets, secret[:40], secret[len(secret)/2:len(secret)/2+40])
	}
	expectNoSecrets(t, told, secrets...)
}
