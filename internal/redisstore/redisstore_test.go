package redisstore

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/redis/go-redis/v9"

	"github.com/kvasir-dev/kvasir/internal/callout"
	"github.com/kvasir-dev/kvasir/internal/freeport"
	"github.com/kvasir-dev/kvasir/internal/respcache"
)

// patience is more than anything here takes.
const patience = 20 * time.Second

// server is a Redis of its own, with the password secret.
type server struct {
	t       *testing.T
	address string
	cmd     *exec.Cmd
	arg     []string
	client  *redis.Client
}

// startRedis starts a real Redis (`make test-redis` installs it), with more arguments.
func startRedis(t *testing.T, arg ...string) *server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("there is no redis-server: run make test-redis")
	}
	s := &server{t: t, address: fmt.Sprintf("127.0.0.1:%d", freePort(t)), arg: arg}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *server) start() {
	s.t.Helper()
	_, port, _ := net.SplitHostPort(s.address)
	s.cmd = exec.Command("redis-server", append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--requirepass", "secret", //nolint:gosec // a test
		"--dir", s.t.TempDir()}, s.arg...)...)
	var output bytes.Buffer
	s.cmd.Stdout, s.cmd.Stderr = &output, &output
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.client = redis.NewClient(&redis.Options{Addr: s.address, Password: "secret"})
	s.t.Cleanup(func() { _ = s.client.Close() })
	for end := time.Now().Add(patience); s.client.Ping(context.Background()).Err() != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("Redis does not answer:\n%s", &output)
		}
	}
}

func (s *server) stop() {
	if s.cmd.ProcessState == nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

// open opens a store on the server.
func (s *server) open(change func(*respcache.Redis)) (*Store, *respcache.Counters) {
	s.t.Helper()
	r := respcache.Redis{Address: s.address, Password: "secret", Prefix: "kvasir", Timeout: patience, Origin: respcache.Key{1}}
	if change != nil {
		change(&r)
	}
	return openStore(s.t, &r, [32]byte{7})
}

func openStore(t *testing.T, r *respcache.Redis, root [32]byte) (*Store, *respcache.Counters) {
	t.Helper()
	counters := new(respcache.Counters)
	store, err := Open(r, root, counters, time.Now, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store, counters
}

// count is how often something became of a question or an answer.
func count(c *respcache.Counters, what respcache.Storage) int64 {
	return (*respcache.Cache)(nil).Stats(c).Storages[what]
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := freeport.Consecutive("127.0.0.1", 1)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// certificate writes cert.pem and key.pem of 127.0.0.1 into a directory, and returns the certificate, which is its own authority.
func certificate(t *testing.T, dir string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, text := range map[string][]byte{
		"cert.pem": public, "key.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return string(public)
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in time: " + what)
		}
	}
}

func answer(body string) *respcache.Answer {
	return &respcache.Answer{
		ContentType: "text/event-stream", Stream: true, Body: []byte(body), PromptTokens: 5, GeneratedTokens: -1, Stored: time.Now().Truncate(time.Millisecond),
	}
}

// put stores an answer, and waits until it is written.
func put(t *testing.T, s *Store, c *respcache.Counters, key respcache.Key, a *respcache.Answer) {
	t.Helper()
	n := count(c, respcache.StoreWritten)
	s.Put(key, a, time.Hour)
	eventually(t, "an answer is written", func() bool { return count(c, respcache.StoreWritten) == n+1 })
}

// TestReplicasShareAnswers: with the same root and origin, to the byte, each with a time to live; pickers with another root, origin or prefix
// share nothing. Neither the request nor the answer can be read on the server.
func TestReplicasShareAnswers(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	one, counters := s.open(nil)
	two, _ := s.open(nil)
	want := answer("the answer in plain words")
	put(t, one, counters, respcache.Key{9}, want)
	got, err := two.Get(t.Context(), respcache.Key{9})
	if err != nil || got == nil || string(got.Body) != string(want.Body) || !got.Stored.Equal(want.Stored) || got.ContentType != want.ContentType ||
		!got.Stream || got.PromptTokens != 5 || got.GeneratedTokens != -1 {
		t.Fatalf("%+v, %v", got, err)
	}
	names, err := s.client.Keys(t.Context(), "*").Result()
	if err != nil || len(names) != 1 || !strings.HasPrefix(names[0], "kvasir:") {
		t.Fatalf("%v %v", names, err)
	}
	if life, err := s.client.TTL(t.Context(), names[0]).Result(); err != nil || life <= 0 || life > time.Hour {
		t.Errorf("the time to live is %v: %v", life, err)
	}
	if value, err := s.client.Get(t.Context(), names[0]).Result(); err != nil || strings.Contains(value, "plain words") {
		t.Errorf("the value is %q: %v", value, err)
	}
	if strings.Contains(names[0], "0900") {
		t.Errorf("the name has the request's key: %s", names[0])
	}
	for name, change := range map[string]func(*respcache.Redis){
		"another origin": func(r *respcache.Redis) { r.Origin = respcache.Key{2} },
		"another prefix": func(r *respcache.Redis) { r.Prefix = "other" },
	} {
		other, _ := s.open(change)
		if got, err := other.Get(t.Context(), respcache.Key{9}); got != nil || err != nil {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
	other, _ := openStore(t, &respcache.Redis{Address: s.address, Password: "secret", Prefix: "kvasir", Timeout: patience, Origin: respcache.Key{1}}, [32]byte{8})
	if got, err := other.Get(t.Context(), respcache.Key{9}); got != nil || err != nil {
		t.Errorf("another root: %v %v", got, err)
	}
	if got, err := two.Get(t.Context(), respcache.Key{10}); got != nil || err != nil {
		t.Errorf("another request: %v %v", got, err)
	}
}

// TestValuesOfOthersAreNoAnswers: whatever is under the name, also the sealed answer to another request.
func TestValuesOfOthersAreNoAnswers(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	store, counters := s.open(nil)
	put(t, store, counters, respcache.Key{1}, answer("one"))
	put(t, store, counters, respcache.Key{2}, answer("two"))
	name, other := store.sealer.name(respcache.Key{1}), store.sealer.name(respcache.Key{2})
	sealed, err := s.client.Get(t.Context(), other).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	own, err := s.client.Get(t.Context(), name).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for i := range own {
		changed := bytes.Clone(own)
		changed[i] ^= 1
		if a, err := store.sealer.open(name, changed); !errors.Is(err, respcache.ErrUnusable) {
			t.Fatalf("with byte %d changed: %v %v", i, a, err)
		}
	}
	for what, value := range map[string][]byte{
		"nothing": {}, "text": []byte("hello"), "the version alone": {1}, "the beginning": own[:len(own)-1], "more": append(bytes.Clone(own), 0),
		"the answer to another request": sealed, "JSON": []byte(`{"body":"x"}`), "much": make([]byte, maxValue),
	} {
		if err := s.client.Set(t.Context(), name, value, time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		if a, err := store.Get(t.Context(), respcache.Key{1}); !errors.Is(err, respcache.ErrUnusable) || a != nil {
			t.Errorf("%s: %v %v", what, a, err)
		}
	}
	if err := s.client.Del(t.Context(), name).Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.client.LPush(t.Context(), name, "x").Err(); err != nil {
		t.Fatal(err)
	}
	if a, err := store.Get(t.Context(), respcache.Key{1}); err == nil || a != nil {
		t.Errorf("a list: %v %v", a, err)
	}
	if err := s.client.Set(t.Context(), name, make([]byte, maxValue+1), time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	if a, err := store.Get(t.Context(), respcache.Key{1}); !errors.Is(err, errHuge) || a != nil {
		t.Errorf("more than any answer: %v %v", a, err)
	}
	if a, err := store.Get(t.Context(), respcache.Key{2}); err != nil || a == nil {
		t.Errorf("after all this: %v %v", a, err)
	}
}

// TestAServerThatIsFullOrRefusesOrIsAway: requests go on, the state says what is wrong, and answers are shared again when the server is back.
func TestAServerThatIsFullOrRefusesOrIsAway(t *testing.T) {
	t.Parallel()
	s := startRedis(t, "--maxmemory-policy", "noeviction")
	store, counters := s.open(nil)
	put(t, store, counters, respcache.Key{1}, answer("one"))
	if err := s.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	store.Put(respcache.Key{2}, answer("two"), time.Hour)
	eventually(t, "a full server refuses", func() bool { return count(counters, respcache.StoreWriteFailed) == 1 })
	if trouble := (*respcache.Cache)(nil).Stats(counters).StoreTrouble; trouble == nil || !strings.Contains(trouble.Detail, "OOM") {
		t.Errorf("%+v", trouble)
	}
	if a, err := store.Get(t.Context(), respcache.Key{1}); err != nil || a == nil {
		t.Errorf("a full server is asked: %v %v", a, err)
	}
	stranger, _ := s.open(func(r *respcache.Redis) { r.Password = "wrong" })
	if a, err := stranger.Get(t.Context(), respcache.Key{1}); a != nil || err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("with a wrong password: %v %v", a, err)
	}
	s.stop()
	failed, left := 0, 0
	for range 20 {
		switch _, err := store.Get(t.Context(), respcache.Key{1}); {
		case errors.Is(err, respcache.ErrNotCalled):
			left++
		case err != nil:
			failed++
		default:
			t.Fatal("a server that is away has answered")
		}
	}
	if failed < callout.EnoughFailures || left == 0 {
		t.Errorf("%d questions have failed, and %d were not asked", failed, left)
	}
	s.start()
	eventually(t, "the server is asked again", func() bool {
		_, err := store.Get(t.Context(), respcache.Key{1})
		return err == nil
	})
	put(t, store, counters, respcache.Key{1}, answer("again"))
}

// TestASlowServerDelaysRequestsOnlySoLong: the question ends with its time, however slow the server is.
func TestASlowServerDelaysRequestsOnlySoLong(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	store, _ := s.open(func(r *respcache.Redis) { r.Timeout = 30 * time.Millisecond })
	if _, err := store.Get(t.Context(), respcache.Key{1}); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }()
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if _, err := store.Get(ctx, respcache.Key{1}); err == nil || ctx.Err() != nil {
				t.Errorf("a stopped server: %v", err)
			}
		})
	}
	all.Wait()
}

// TestAnswersThatWaitAreBounded: while the server does not take any, those beyond a number or their bytes are dropped.
func TestAnswersThatWaitAreBounded(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0") // it takes no connection from its queue
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	store, counters := openStore(t, &respcache.Redis{Address: listener.Addr().String(), Prefix: "p", Timeout: patience}, [32]byte{})
	large := answer(strings.Repeat("x", respcache.MaxAnswer))
	for i := range 100 {
		store.Put(respcache.Key{byte(i)}, large, time.Hour)
	}
	if n := count(counters, respcache.StoreDropped); n < 90 || store.bytes.Load() > maxQueuedBytes {
		t.Errorf("%d are dropped, and %d bytes wait", n, store.bytes.Load())
	}
}

// TestServersThatLie: what they announce takes no memory, and they get no further question on the connection.
func TestServersThatLie(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]string{
		"a long value":        "$2000000000\r\n",
		"a long list":         "*2000000000\r\n",
		"a map in RESP3":      "%2000000000\r\n",
		"a negative length":   "$-7\r\n",
		"no number":           "$x\r\n",
		"a line without end":  strings.Repeat("+x", 1<<20),
		"lists in lists":      strings.Repeat("*1\r\n", 1<<16),
		"a long error":        "-" + strings.Repeat("E", 1<<20) + "\r\n",
		"a long text":         "=2000000000\r\n",
		"nothing of a server": "HTTP/1.1 400 Bad Request\r\n\r\n",
		"a number":            ":1\r\n",
		"what it was sent":    "-ERR unknown command 'AUTH', with args beginning with: 'my-password'\r\n",
		"that without form":   "?my-password\r\n",
		"that as a word":      "-MY-password\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					go func() {
						defer conn.Close()
						buf := make([]byte, 1<<10)
						for {
							if _, err := conn.Read(buf); err != nil {
								return
							}
							if _, err := conn.Write([]byte(reply)); err != nil {
								return
							}
						}
					}()
				}
			}()
			store, _ := openStore(t, &respcache.Redis{Address: listener.Addr().String(), Prefix: "p", Timeout: patience, Password: "my-password"}, [32]byte{})
			if a, err := store.Get(t.Context(), respcache.Key{1}); a != nil || err == nil || strings.Contains(err.Error(), "password") {
				t.Errorf("%v %v", a, err)
			} else if guarded := len(reply) > 1<<15 || strings.Contains(reply, "2000000000"); guarded && !errors.Is(err, errHuge) {
				t.Errorf("the client has read it: %v", err)
			}
		})
	}
}

// TestOverTLS: the server's certificate is checked by the authorities of the policy, and by its name.
func TestOverTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := certificate(t, dir)
	port := freePort(t)
	s := startRedis(t, "--tls-port", fmt.Sprint(port), "--tls-cert-file", filepath.Join(dir, "cert.pem"), "--tls-key-file", filepath.Join(dir, "key.pem"),
		"--tls-auth-clients", "no")
	encrypted := func(r *respcache.Redis) { r.Address, r.TLS, r.CA = fmt.Sprintf("127.0.0.1:%d", port), true, ca }
	store, counters := s.open(encrypted)
	put(t, store, counters, respcache.Key{1}, answer("one"))
	if a, err := store.Get(t.Context(), respcache.Key{1}); err != nil || a == nil {
		t.Errorf("%v %v", a, err)
	}
	stranger, _ := s.open(func(r *respcache.Redis) { encrypted(r); r.CA = "" })
	if a, err := stranger.Get(t.Context(), respcache.Key{1}); err == nil || a != nil {
		t.Errorf("without its authority: %v %v", a, err)
	}
	plain, _ := s.open(func(r *respcache.Redis) { encrypted(r); r.Address = s.address })
	if a, err := plain.Get(t.Context(), respcache.Key{1}); err == nil || a != nil {
		t.Errorf("a server without TLS: %v %v", a, err)
	}
}

// FuzzReplyReader: in whatever pieces an answer comes, the reader says the same, and holds no more than a line.
func FuzzReplyReader(f *testing.F) {
	f.Add([]byte("+OK\r\n$3\r\nabc\r\n*2\r\n:1\r\n$-1\r\n"), uint8(1))
	f.Add([]byte("$99999\r\n"), uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, piece uint8) {
		var whole, pieces replyReader
		ok := true
		for part := data; len(part) > 0 && ok; {
			n := min(int(piece)+1, len(part))
			ok = pieces.read(part[:n], 100)
			part = part[n:]
		}
		if got := whole.read(bytes.Clone(data), 100); got != ok {
			t.Errorf("as a whole %v, in pieces of %d %v", got, int(piece)+1, ok)
		}
		if cap(whole.line) > 4*maxLine || whole.skip > 102 {
			t.Errorf("a line of %d bytes, a value of %d", cap(whole.line), whole.skip)
		}
	})
}
