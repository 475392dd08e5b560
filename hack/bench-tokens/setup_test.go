package benchtokens

import (
	"bytes"
	"compress/gzip"
	"go/build"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

const models = "../../internal/tokens/tokenizer/testdata"

// sources are about 24 MB of Go's standard library.
var sources = sync.OnceValue(func() string {
	var paths []string
	err := filepath.WalkDir(filepath.Join(build.Default.GOROOT, "src"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "testdata" || d.Name() == "vendor" || d.Name() == "cmd") {
			return fs.SkipDir
		}
		if err == nil && strings.HasSuffix(path, ".go") && !strings.Contains(path, "tables") && !strings.Contains(path, "zz") {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		panic(err)
	}
	slices.Sort(paths)
	var b strings.Builder
	for i := 0; b.Len() < 24<<20 && i < len(paths); i++ {
		raw, err := os.ReadFile(paths[i*7919%len(paths)]) // in no order
		if err != nil {
			panic(err)
		}
		if len(raw) < 150_000 {
			b.Write(raw)
		}
	}
	return strings.ToValidUTF8(b.String(), "")
})

// comments are the English in sources: the text of comments of a line or more, each block of them a paragraph.
var comments = sync.OnceValue(func() string {
	var b strings.Builder
	for line := range strings.Lines(sources()) {
		line = strings.TrimSpace(line)
		text, ok := strings.CutPrefix(line, "// ")
		switch {
		case ok:
			b.WriteString(text)
			b.WriteByte('\n')
		case line != "//":
		case !strings.HasSuffix(b.String(), "\n\n"):
			b.WriteByte('\n')
		}
	}
	return b.String()
})

// corpora are what is encoded.
var corpora = []struct {
	name string
	text func() string
}{{"code", sources}, {"english", comments}}

// excerpt is the i-th piece of n bytes of a text.
func excerpt(text string, i, n int) string {
	at := i * n % (len(text) - n)
	return strings.ToValidUTF8(text[at:at+n], "")
}

func unzip(b *testing.B, path string) []byte {
	b.Helper()
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		b.Fatal(err)
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		b.Fatal(err)
	}
	return raw
}

var loaded sync.Map

func model(b *testing.B, dir string) *tokenizer.Tokenizer {
	b.Helper()
	if t, ok := loaded.Load(dir); ok {
		return t.(*tokenizer.Tokenizer)
	}
	t, err := tokenizer.LoadReader(bytes.NewReader(unzip(b, filepath.Join(dir, "tokenizer.json.gz"))), nil)
	if err != nil {
		b.Fatal(err)
	}
	loaded.Store(dir, t)
	return t
}

// dirs are the models at hand: those of the repository, and those of the directory in BENCH_MODELS.
func dirs(b *testing.B) []string {
	b.Helper()
	out := []string{models + "/qwen2_5", models + "/gpt2"}
	if more := os.Getenv("BENCH_MODELS"); more != "" {
		paths, err := filepath.Glob(filepath.Join(more, "*", "tokenizer.json.gz"))
		if err != nil {
			b.Fatal(err)
		}
		for _, p := range paths {
			if d := filepath.Dir(p); filepath.Base(d) != "qwen2_5" && filepath.Base(d) != "gpt2" {
				out = append(out, d)
			}
		}
	}
	return out
}

// measure runs f, which works on n bytes, and reports CPU time besides the usual metrics: the machine can have other work
// to do.
func measure(b *testing.B, n int, f func(i int)) {
	b.Helper()
	b.ReportAllocs()
	b.SetBytes(int64(n))
	before := cpu()
	i := 0
	for b.Loop() {
		f(i)
		i++
	}
	each := float64(cpu()-before) / float64(i)
	b.ReportMetric(each/1e3, "cpu-µs/op")
	b.ReportMetric(float64(n)/each*1e3, "cpu-MB/s")
}

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// memory is by how many bytes the heap is larger behind f, and the most by which it was while f ran, as seen every
// millisecond with a collector that runs when the heap has grown by a tenth.
func memory(f func()) (kept, peak uint64) {
	runtime.GC()
	runtime.GC()
	var before, behind runtime.MemStats
	runtime.ReadMemStats(&before)
	old := debug.SetGCPercent(10)
	done, stopped := make(chan struct{}), make(chan uint64)
	go func() {
		var most uint64
		for {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc)
			select {
			case <-done:
				stopped <- most
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	f()
	close(done)
	most := <-stopped
	debug.SetGCPercent(old)
	runtime.GC()
	runtime.ReadMemStats(&behind)
	return behind.HeapAlloc - before.HeapAlloc, most - before.HeapAlloc
}
