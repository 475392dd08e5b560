package httpproxy

import (
	"fmt"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/freeport"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/redisstore"
	"github.com/kvasir-dev/kvasir/internal/respcache"
)

// startRedis starts a real Redis, and returns its address and what ends it.
func startRedis(t *testing.T) (address string, stop func()) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("there is no redis-server: run make test-redis")
	}
	port, err := freeport.Consecutive("127.0.0.1", 1)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("redis-server", "--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir()) //nolint:gosec // a test
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(stop)
	address = fmt.Sprintf("127.0.0.1:%d", port)
	eventually(t, "Redis listens", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return address, stop
}

// sharing is a proxy of its own in front of a pool whose answers are in Redis, too.
func sharing(t *testing.T, s picker.Spec, address string) *house {
	t.Helper()
	s.Policy.Responses = picker.ResponseCacheSpec{
		MaxBytes: 1 << 20, Life: time.Hour, Redis: respcache.Redis{Address: address, Prefix: "kvasir", Timeout: patience},
	}
	return houseOf(t, picker.Options{
		OpenStore: func(r *respcache.Redis, root [kvblock.SecretBytes]byte, counters *respcache.Counters) (respcache.Store, error) {
			return redisstore.Open(r, root, counters, time.Now, logr.Discard())
		},
	}, Options{}, s)
}

// written waits until so many answers are in the store.
func (h *house) written(n int64) {
	h.t.Helper()
	eventually(h.t, "answers are written", func() bool { return h.responses().Storages[respcache.StoreWritten] == n })
}

// TestReplicasAnswerWhatOneHasStored: one picker stores an answer, and another one has it, with its age; then both have it without Redis.
func TestReplicasAnswerWhatOneHasStored(t *testing.T) {
	t.Parallel()
	redis, stop := startRedis(t)
	address, asked := counting(t)
	one, two := sharing(t, spec(address), redis), sharing(t, spec(address), redis)
	for i, fields := range []string{cold, cold + `,"stream":true`} {
		first, cache := one.ask(fields)
		if cache != "miss" {
			t.Fatalf("the first answer says %q", cache)
		}
		one.written(int64(i + 1))
		if body, cache := two.ask(fields); cache != "hit" || body != first {
			t.Errorf("another replica: %q %s", cache, body)
		}
	}
	if s := two.responses(); s.Storages[respcache.StoreHit] != 2 || s.Results[respcache.Hit] != 2 || s.Entries != 2 || asked.Load() != 2 {
		t.Errorf("%+v after %d questions to the engine", s, asked.Load())
	}
	stop()
	if _, cache := two.ask(cold); cache != "hit" {
		t.Errorf("without Redis: %q", cache)
	}
	n := asked.Load()
	if body, cache := two.ask(cold + `,"seed":1`); cache != "miss" || asked.Load() != n+1 {
		t.Errorf("a request that is in no cache, without Redis: %q %s", cache, body)
	}
	eventually(t, "the state says what is wrong", func() bool {
		s := two.responses()
		return s.StoreTrouble != nil && s.Storages[respcache.StoreFailed]+s.Storages[respcache.StoreNotCalled] > 0
	})
}

// TestSharedAnswersStayWithTheirTenant: in Redis as in memory.
func TestSharedAnswersStayWithTheirTenant(t *testing.T) {
	t.Parallel()
	redis, _ := startRedis(t)
	address, asked := counting(t)
	one, two := sharing(t, keyed(t, address), redis), sharing(t, keyed(t, address), redis)
	first, _ := one.ask(cold, "Authorization", "Bearer k-acme")
	one.written(1)
	if body, cache := two.ask(cold, "Authorization", "Bearer k-small"); cache != "miss" || body == first || asked.Load() != 2 {
		t.Errorf("another tenant: %q %s", cache, body)
	}
	if body, cache := two.ask(cold, "Authorization", "Bearer k-acme"); cache != "hit" || body != first {
		t.Errorf("the same tenant: %q %s", cache, body)
	}
	if _, cache := two.ask(cold+`,"cache_salt":"a"`, "Authorization", "Bearer k-acme"); cache != "miss" {
		t.Errorf("a salt: %q", cache)
	}
	if _, cache := two.ask(cold+`,"seed":1`, "Authorization", "Bearer k-acme", "Cache-Control", "no-cache"); cache != "miss" {
		t.Errorf("no-cache: %q", cache)
	}
}
