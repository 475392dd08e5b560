package floors

import (
	"bufio"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// wallTimes are the files that turn times into numbers by the wall clock, and why a step of the clock does no harm there.
var wallTimes = map[string]string{
	"cmd/kvasir-bench/flags.go":                "a seed",
	"internal/certs/files.go":                  "only whether a file's time differs",
	"internal/events/stream.go":                "the lag by the engine's clock, for people",
	"internal/gateway/request/models.go":       "when models were created, for clients",
	"internal/metrics/collector.go":            "Prometheus takes Unix times",
	"internal/picker/record.go":                "decision log, for people and the lab",
	"internal/relay/ticket.go":                 "another machine reads it; a wrong time lets requests be served alone",
	"internal/routinghistory/sessions.go":      "stamps, which replicas compare",
	"internal/rpc/operatewire.go":              "for operators of an earlier version",
	"internal/tokens/modelfiles/modelfiles.go": "only whether a file's time differs",
}

var asNumber = regexp.MustCompile(`\.(Unix|UnixNano|UnixMicro|UnixMilli|Round)\((0?)\)|\btime\.Unix(Milli|Micro)?\(`)

// TestTimesAreComparedByTheMonotonicClock: what programs compare does not become a number of the wall clock, which can be set.
// internal/monotonic has numbers for that.
func TestTimesAreComparedByTheMonotonicClock(t *testing.T) {
	used := map[string]bool{}
	root := filepath.Join("..", "..")
	for _, dir := range []string{"internal", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			name, _ := filepath.Rel(root, path)
			name = filepath.ToSlash(name)
			if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") ||
				strings.HasPrefix(name, "internal/sim/") || strings.HasPrefix(name, "internal/bench/") {
				return err
			}
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			lines := bufio.NewScanner(f)
			for n := 1; lines.Scan(); n++ {
				switch code, _, _ := strings.Cut(lines.Text(), "//"); {
				case !asNumber.MatchString(code):
				case wallTimes[name] != "":
					used[name] = true
				default:
					t.Errorf("%s:%d makes a number of the wall clock; use internal/monotonic: %s", name, n, strings.TrimSpace(code))
				}
			}
			return lines.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name := range wallTimes {
		if !used[name] {
			t.Errorf("%s makes no number of the wall clock any more: remove it from the list", name)
		}
	}
}
