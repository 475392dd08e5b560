package reporter

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// TestTheModelsFilesFollowTheDirectory: a picker learns why there are none, takes them when they are there, and others when the directory
// is another one.
func TestTheModelsFilesFollowTheDirectory(t *testing.T) {
	library := &rpc.Library{
		Auth: rpc.Anybody{}, Log: logr.Discard(), OnFiles: func(string) {},
		PoolOf: func(pod string) (string, bool) { return "pool", pod == "p" },
	}
	server := rpc.NewServer(rpc.ServerOptions{Auth: rpc.Anybody{}, Library: library})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(l) })
	defer running.Wait()
	defer server.Close()

	root := t.TempDir()
	put := func(dir, text string) {
		t.Helper()
		at := filepath.Join(root, dir)
		if err := errors.Join(os.MkdirAll(at, 0o700), os.WriteFile(filepath.Join(at, "tokenizer.json"), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := New(Config{
		Pod: "p", Listen: "127.0.0.1:0", Pickers: rpc.List(l.Addr().String()), OfferEvery: 10 * time.Millisecond,
		Model: modelfiles.Source{Dir: filepath.Join(root, "m"), Root: root},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	running.Go(func() { r.Run(ctx) })
	defer cancel()
	has := func(text string) func() bool {
		return func() bool { return string(library.Held("pool").Set["tokenizer.json"]) == text }
	}
	eventually(t, "the reason is known", func() bool { return strings.Contains(library.Held("pool").Failure, "no such file") })
	put("v1", "one")
	if err := os.Symlink("v1", filepath.Join(root, "m")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the files are taken", has("one"))
	put("v2", "two")
	if err := errors.Join(os.Symlink("v2", filepath.Join(root, "next")), os.Rename(filepath.Join(root, "next"), filepath.Join(root, "m"))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new ones are taken", has("two"))
	put("v2", "")
	if err := os.Truncate(filepath.Join(root, "v2", "tokenizer.json"), 5<<30); err != nil {
		t.Fatal(err)
	}
	eventually(t, "too many bytes are named", func() bool { return strings.Contains(library.Held("pool").Failure, "more than") })
	if !has("two")() {
		t.Error("what was taken before is gone")
	}
	put("v2", "three")
	eventually(t, "the next ones are taken", has("three"))
	if failure := library.Held("pool").Failure; failure != "" {
		t.Errorf("a failure remains: %s", failure)
	}
}
