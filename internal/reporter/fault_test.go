package reporter

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/rpc"
)

// TestAPanicInterruptsOneLoopOnly: a panic in a loop of the reporter is counted and logged with what it was about, and the loop
// goes on.
func TestAPanicInterruptsOneLoopOnly(t *testing.T) {
	var mu sync.Mutex
	var lines []string
	logged := func(words ...string) bool {
		mu.Lock()
		defer mu.Unlock()
	next:
		for _, line := range lines {
			for _, word := range words {
				if !strings.Contains(line, word) {
					continue next
				}
			}
			return true
		}
		return false
	}
	var found atomic.Int64
	r, err := New(Config{
		Pod: "p", Listen: "127.0.0.1:0", FindEvery: time.Millisecond, SaveEvery: time.Millisecond, MinBackoff: time.Millisecond,
		Pickers: func(context.Context) ([]string, error) {
			if found.Add(1) == 1 {
				panic("a fault of the finder")
			}
			return nil, nil
		},
		Log: funcr.New(func(_, args string) {
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, args)
		}, funcr.Options{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer func() { cancel(); running.Wait() }()
	running.Go(func() { r.Run(ctx) })
	wait := func(what string, f func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within 20 s: %s", what)
			}
		}
	}
	wait("pickers are looked for again", func() bool { return found.Load() > 2 })
	if !logged("Finding pickers panicked") || r.Status().Panics != 1 {
		t.Errorf("%d panics are counted: %q", r.Status().Panics, lines)
	}

	broken := &rank{number: 3} // without a mirror
	running.Go(func() { r.keepSaved(ctx, broken) })
	wait("the save is named", func() bool { return logged("Saving the mirror panicked", `"rank"=3`) })

	client, err := rpc.Dial("127.0.0.1:1", rpc.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	pushed := &picker{addr: "picker:1", client: client, senders: make([]*cachesync.Sender, 4)}
	running.Go(func() { r.push(ctx, pushed, broken) })
	wait("the report is named", func() bool { return logged("Reporting to a picker panicked", `"picker"="picker:1"`, `"rank"="3"`) })
	if text := r.Status().metrics(); strings.Contains(text, "kvasir_reporter_panics_total 0") || !strings.Contains(text, "kvasir_reporter_panics_total") {
		t.Errorf("metrics:\n%s", text)
	}
}
