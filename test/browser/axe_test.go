//go:build unix

package browser

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// violations is what axe-core finds in the page as it is shown: a line for each rule that is broken.
const violations = `axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v =>
  v.id + ' (' + v.help + '): ' + v.nodes.slice(0, 4).map(n => n.target.join(' ') + ' ' + (n.any[0]?.message ?? '')).join('; ')).join('\n'))`

// loadAxe loads axe-core into the page. It is installed by npm into the user's cache, once for each version of package.json. Where
// there is no npm, or the registry cannot be reached, the test says so and goes on without, unless KVASIR_AXE_REQUIRED is set.
func (b *browser) loadAxe(t *testing.T) bool {
	t.Helper()
	source, err := axe(t)
	if err != nil {
		if os.Getenv("KVASIR_AXE_REQUIRED") != "" {
			t.Fatal(err)
		}
		t.Logf("the page is not looked at by axe-core: %v", err)
		return false
	}
	b.do(chromedp.Evaluate(source, nil))
	return true
}

// axe returns axe-core's program.
func axe(t *testing.T) (string, error) {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "kvasir", "axe")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	wanted, err := os.ReadFile("package.json")
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "node_modules", "axe-core", "axe.min.js")
	installed, _ := os.ReadFile(filepath.Join(dir, "package.json"))
	if _, err := os.Stat(program); err != nil || string(installed) != string(wanted) {
		if err := os.WriteFile(filepath.Join(dir, "package.json"), wanted, 0o600); err != nil {
			return "", err
		}
		npm := exec.CommandContext(t.Context(), "npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--prefix", dir)
		if out, err := npm.CombinedOutput(); err != nil {
			_ = os.Remove(filepath.Join(dir, "package.json")) // the next run tries again
			t.Logf("%s", out)
			return "", err
		}
	}
	text, err := os.ReadFile(program)
	return string(text), err
}

// conforms fails the test for each rule of axe-core that the view breaks.
func (b *browser) conforms(t *testing.T, view string) {
	t.Helper()
	var found string
	b.do(chromedp.Evaluate(violations, &found, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	if found != "" {
		t.Errorf("%s: axe-core says: %s", view, found)
	}
}
