package benchtokens

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// BenchmarkLoad loads a tokenizer, and reports what it keeps and the most it needed. The file of Qwen2.5 is written once
// more with wider margins, which makes it one of 9 MB.
func BenchmarkLoad(b *testing.B) {
	wide := indented(b, unzip(b, models+"/qwen2_5/tokenizer.json.gz"))
	for _, dir := range dirs(b) {
		b.Run("kvasir/"+filepath.Base(dir), func(b *testing.B) { load(b, unzip(b, filepath.Join(dir, "tokenizer.json.gz"))) })
	}
	b.Run("kvasir/qwen2_5-wide", func(b *testing.B) { load(b, wide) })
	b.Run("encoding-json/qwen2_5-wide", func(b *testing.B) {
		measure(b, len(wide), func(int) {
			var all any
			if err := json.Unmarshal(wide, &all); err != nil {
				b.Fatal(err)
			}
		})
	})
}

func indented(b *testing.B, raw []byte) []byte {
	b.Helper()
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "    "); err != nil {
		b.Fatal(err)
	}
	return out.Bytes()
}

func load(b *testing.B, raw []byte) {
	b.Helper()
	folder, size := b.TempDir(), len(raw)
	if err := os.WriteFile(filepath.Join(folder, "tokenizer.json"), raw, 0o600); err != nil {
		b.Fatal(err)
	}
	var t *tokenizer.Tokenizer
	load := func(int) {
		var err error
		if t, err = tokenizer.Load(folder); err != nil {
			b.Fatal(err)
		}
	}
	kept, peak := memory(func() { load(0) })
	measure(b, size, load)
	runtime.KeepAlive(t)
	b.ReportMetric(float64(size)/1e6, "file-MB")
	b.ReportMetric(float64(kept)/1e6, "kept-MB")
	b.ReportMetric(float64(peak)/float64(size), "peak/file")
}
