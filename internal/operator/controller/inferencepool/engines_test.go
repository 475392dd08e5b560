package inferencepool

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/engines/scrape"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
)

func TestEnginesAreAskedWhileTheirPodsDrain(t *testing.T) {
	var running atomic.Int64
	running.Store(2)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "vllm:num_requests_running{engine=\"0\"} %d\nvllm:num_requests_waiting{engine=\"0\"} 0\n", running.Load())
		fmt.Fprintf(w, "vllm:num_requests_running{engine=\"1\"} 0\nvllm:num_requests_waiting{engine=\"1\"} 0\n")
	}))
	defer server.Close()
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	s := NewScraped(scrape.Options{Busy: 10 * time.Millisecond})
	defer s.Close()
	pool := newPool(func(p *v1alpha1.InferencePool) { p.Spec.Engine.Ports.HTTP = int32(number) })
	pod := &corev1.Pod{Status: corev1.PodStatus{PodIP: host}}
	pod.UID = "u"
	s.Watch(pool, []*corev1.Pod{pod})
	wait := func(what string, done func([]lifecycle.Reading) bool) {
		t.Helper()
		for begun := time.Now(); time.Since(begun) < 20*time.Second; time.Sleep(5 * time.Millisecond) {
			if done(s.Readings("u")) {
				return
			}
		}
		t.Fatalf("%s: %v", what, s.Readings("u"))
	}
	wait("no reading", func(r []lifecycle.Reading) bool { return len(r) >= lifecycle.IdleReadings && r[len(r)-1].Busy == 2 })
	for _, r := range s.Readings("u") {
		if !r.At.Before(time.Now().Add(-900 * time.Millisecond)) {
			t.Errorf("a reading counts from %s, before its answer may have been asked for", r.At)
		}
	}
	running.Store(0)
	wait("not idle", func(r []lifecycle.Reading) bool { return r[len(r)-1].Busy == 0 })
	s.Forget(types.NamespacedName{Namespace: pool.Namespace, Name: pool.Name})
	if got := s.Readings("u"); got != nil {
		t.Errorf("readings %v of an engine that is no longer scraped", got)
	}
}

func TestAllRanksMustHaveBeenRead(t *testing.T) {
	s := NewScraped(scrape.Options{})
	defer s.Close()
	pool := newPool(func(p *v1alpha1.InferencePool) {
		p.Spec.Engine.DataParallel = v1alpha1.DataParallel{Ranks: 2, Addressing: v1alpha1.AddressByPort}
	})
	pod := &corev1.Pod{Status: corev1.PodStatus{PodIP: "192.0.2.1"}}
	pod.UID = "u"
	targets := engineTargets(pool, pod)
	if len(targets) != 2 || targets[1].Address != "192.0.2.1:8001" {
		t.Fatalf("targets %+v", targets)
	}
	now := time.Now()
	s.addresses = map[string]int{"u": 2}
	read := func(rank int, after time.Duration, busy int) {
		s.readings["u"] = mapOf(s.readings["u"])
		s.readings["u"][rank] = append(s.readings["u"][rank], lifecycle.Reading{At: now.Add(after), Busy: busy})
	}
	read(0, 0, 1)
	read(0, time.Second, 0)
	if got := s.Readings("u"); got != nil {
		t.Errorf("readings %v, though a rank has had none", got)
	}
	read(1, 2*time.Second, 4)
	got := s.Readings("u")
	if len(got) != 1 || got[0].Busy != 4 || !got[0].At.Equal(now.Add(time.Second)) {
		t.Errorf("readings %+v", got)
	}
}

func mapOf(m map[int][]lifecycle.Reading) map[int][]lifecycle.Reading {
	if m == nil {
		m = map[int][]lifecycle.Reading{}
	}
	return m
}
