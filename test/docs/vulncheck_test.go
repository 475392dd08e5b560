package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A database of one fault, as vuln.go.dev spells them.
var database = map[string]string{
	"index/db.json":      `{"modified": "2026-01-01T00:00:00Z"}`,
	"index/modules.json": `[{"path": "github.com/go-logr/logr", "vulns": [{"id": "GO-2026-0001", "modified": "2026-01-01T00:00:00Z"}]}]`,
	"index/vulns.json":   `[{"id": "GO-2026-0001", "modified": "2026-01-01T00:00:00Z"}]`,
	"ID/GO-2026-0001.json": `{
		"schema_version": "1.3.1", "id": "GO-2026-0001", "modified": "2026-01-01T00:00:00Z", "published": "2026-01-01T00:00:00Z",
		"summary": "for the test", "details": "for the test", "database_specific": {"url": "https://example.com/GO-2026-0001"},
		"affected": [{
			"package": {"name": "github.com/go-logr/logr", "ecosystem": "Go"}, "ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}]}],
			"ecosystem_specific": {"imports": [{"path": "github.com/go-logr/logr", "symbols": ["SYMBOL"]}]}
		}]
	}`,
}

// TestTheVulnerabilityCheckFindsWhatIsCalled: a fault in a function that the program calls fails the check, one in a
// function that it does not call does not.
func TestTheVulnerabilityCheckFindsWhatIsCalled(t *testing.T) {
	for symbol, called := range map[string]bool{"Logger.Info": true, "FromContextAsSlogLogger": false} {
		dir := t.TempDir()
		for name, text := range database {
			file := filepath.Join(dir, filepath.FromSlash(name))
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, "SYMBOL", symbol)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		check := exec.CommandContext(t.Context(), root+"/hack/vulncheck.sh", "./cmd/vllmsim")
		check.Env = append(os.Environ(), "GOVULNDB=file://"+dir)
		out, err := check.CombinedOutput()
		if strings.Contains(string(out), "nothing was checked") {
			t.Skipf("%s", out)
		}
		if found := strings.Contains(string(out), "#1: GO-2026-0001"); found != called || (err != nil) != called {
			t.Errorf("%s: %v\n%s", symbol, err, out)
		}
	}
}
