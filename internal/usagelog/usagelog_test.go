package usagelog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestNoLogCostsNothing: its requests are nil, and record nothing.
func TestNoLogCostsNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() {
		r := (*Log)(nil).Begin(Proxy, "id", "", "/v1/completions", time.Time{})
		r.SentAs("other")
		r.Refused("path", 0)
		r.FirstToken(0)
		r.Close(404)
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

// TestARefusalIsOneLine: however often it is closed; a request that was neither refused nor sent leaves none.
func TestARefusalIsOneLine(t *testing.T) {
	dir := t.TempDir()
	file, err := OpenFile(FileOptions{Dir: dir, FileBytes: 1 << 20, Files: 2})
	if err != nil {
		t.Fatal(err)
	}
	log := New(file)
	log.Begin(Proxy, "health", "", "/health", time.Unix(1, 0)).Close(200)
	r := log.Begin(Proxy, "id", "acme", "/v1/secret", time.Unix(1, 0))
	r.Refused("path", 1500*time.Microsecond)
	r.Close(404)
	r.Close(404)
	gone := log.Begin(Gateway, "id", "", "/v1/completions", time.Unix(1, 0))
	gone.Refused("client_gone", time.Second)
	gone.Close(0)
	file.Close()
	text, err := os.ReadFile(filepath.Join(dir, "usage.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"time":"1970-01-01T00:00:01Z","request":"id","entrance":"proxy","tenant":"acme","stream":false,"outcome":"refused","reason":"path","status":404,` +
		`"prompt_tokens":0,"completion_tokens":0,"charged_tokens":0,"duration_ms":1.5}
{"time":"1970-01-01T00:00:01Z","request":"id","entrance":"gateway","route":"/v1/completions","stream":false,"outcome":"client_gone","prompt_tokens":0,` +
		`"completion_tokens":0,"charged_tokens":0,"duration_ms":1000}
`
	if string(text) != want {
		t.Errorf("got\n%swant\n%s", text, want)
	}
	if info, err := os.Stat(filepath.Join(dir, "usage.jsonl")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v: others can read it", info, err)
	}
	if strings.Contains(string(text), "secret") {
		t.Error("a path of the client is in it")
	}
}

// discard takes records and keeps none.
type discard struct{}

func (discard) Write(*Record) {}

// BenchmarkRecord is what a request waits for its record.
func BenchmarkRecord(b *testing.B) {
	log := New(discard{})
	b.ReportAllocs()
	for b.Loop() {
		r := log.Begin(Proxy, "id", "acme", "/v1/chat/completions", time.Time{})
		r.Refused("path", time.Millisecond)
		r.Close(404)
	}
}
