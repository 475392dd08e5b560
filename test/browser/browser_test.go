//go:build unix

// Package browser looks at the picker's page as people do: a real browser, a real picker, simulated engines, traffic.
package browser

import (
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/kvasir-dev/kvasir/hack/demo/fleet"
	"github.com/kvasir-dev/kvasir/internal/dashboard"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
)

var shots = flag.String("browser.shots", "", "directory for pictures of the page")

const (
	pods = 8
	// patience bounds each thing that is waited for.
	patience = 60 * time.Second
)

// chromium is the browser's path. Nothing is installed: where there is none the test says so and is skipped.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("KVASIR_CHROMIUM"), "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if name == "" {
			continue
		}
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no Chromium here (KVASIR_CHROMIUM names one): the page is not tested in a browser")
	return ""
}

// browser is a tab, and what it has asked for and complained of.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu    sync.Mutex
	urls  []string
	fault []string
}

func open(t *testing.T) *browser {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(chromium(t)), chromedp.UserDataDir(profile(t)), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-background-networking", true),
		chromedp.WSURLReadTimeout(patience))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithErrorf(t.Logf)) // mostly of events that are newer than the client
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			b.urls = append(b.urls, e.Request.URL)
		case *runtime.EventExceptionThrown:
			b.fault = append(b.fault, e.ExceptionDetails.Error())
		}
	})
	if err := chromedp.Run(ctx, network.Enable()); err != nil { // the browser lives as long as the context of the first run
		t.Fatal(err)
	}
	return b
}

func (b *browser) do(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// evaluate evaluates an expression in the page.
func (b *browser) evaluate(expression string, into any) {
	b.t.Helper()
	b.do(chromedp.Evaluate(expression, into))
}

// until waits for an expression of the page to be true.
func (b *browser) until(expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Run(ctx, chromedp.Poll(expression, nil, chromedp.WithPollingInterval(50*time.Millisecond))); err != nil {
		var text string
		_ = chromedp.Run(b.ctx, chromedp.Evaluate(`document.body.innerText`, &text))
		b.t.Fatalf("%s has not become so: %v\n%s", expression, err, text)
	}
}

// picture takes one of the entire page, where pictures are wanted.
func (b *browser) picture(name string) {
	b.t.Helper()
	if *shots == "" {
		return
	}
	var png []byte
	b.do(chromedp.FullScreenshot(&png, 100))
	if err := os.MkdirAll(*shots, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*shots, name+".png"), png, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// size makes the window that of a desktop or a phone, in a light or dark theme.
func (b *browser) size(width, height int64, phone bool, theme string) {
	b.t.Helper()
	b.do(emulation.SetDeviceMetricsOverride(width, height, 1, phone),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}))
}

// stayed fails the test if the page has asked anybody but its origin for something, or has thrown an error.
func (b *browser) stayed(origin string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.urls) < 5 {
		b.t.Errorf("only %d requests were seen", len(b.urls))
	}
	for _, url := range b.urls {
		if !strings.HasPrefix(url, origin+"/") {
			b.t.Errorf("the page has asked for %s", url)
		}
	}
	for _, fault := range b.fault {
		b.t.Errorf("the page has thrown %s", fault)
	}
}

// profile is a directory for a browser. The processes that a browser leaves behind for a moment can still write to it when
// the browser has ended: it is removed as soon as none does.
func profile(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "browser")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
			if err := os.RemoveAll(dir); err == nil {
				return
			} else if time.Now().After(end) {
				t.Error(err)
				return
			}
		}
	})
	return dir
}

// startFleet builds the programs and starts simulated pods with a picker and traffic, which end with the test.
// policyFields are a response cache, and a step that is for no request.
const policyFields = `  responseCache: {type: Exact, maxBytes: 1Mi, timeToLiveSeconds: 600}
  hooks: {steps: [{name: never, when: model == "other", refuse: {status: 403, message: "Not this one."}}]}
`

func startFleet(t *testing.T) *fleet.Fleet {
	t.Helper()
	bin, dir := t.TempDir(), t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin+"/", "github.com/kvasir-dev/kvasir/cmd/picker", "github.com/kvasir-dev/kvasir/cmd/vllmsim")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the programs: %v\n%s", err, out)
	}
	f, err := fleet.Start(t.Context(), fleet.Options{Bin: bin, Dir: dir, Pods: pods, Strategy: "MarginalCost", Profile: "8b-h100", Blocks: 4000, SpeedUp: 4, StreamInterval: 8, Policy: policyFields})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _, _ = f.Stop() })
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	for i := range 10 {
		wait.Go(func() { talk(ctx, f.ProxyURL, i) })
	}
	t.Cleanup(func() { cancel(); wait.Wait() })
	return f
}

// talk sends prompts of token ids one after the other. Their beginnings are those of others.
func talk(ctx context.Context, url string, who int) {
	rng := rand.New(rand.NewPCG(uint64(who), 7))
	for ctx.Err() == nil {
		topic := rng.IntN(6)
		ids := make([]int, 400+300*topic+rng.IntN(200))
		for i := range ids {
			if ids[i] = 100 + 1000*topic + i%900; i > 380+300*topic {
				ids[i] = rng.IntN(30_000)
			}
		}
		body, err := json.Marshal(map[string]any{"model": fleet.Model, "prompt": ids, "stream": true, "max_tokens": 40 + rng.IntN(60), "stream_options": map[string]any{"include_usage": true}})
		if err != nil {
			return
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(string(body)))
		if err != nil {
			return
		}
		r.Header.Set("Content-Type", "application/json")
		if answer, err := http.DefaultClient.Do(r); err == nil {
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(100+rng.IntN(500)) * time.Millisecond):
		}
	}
}

// TestThePageShowsWhatThePickerDoes clicks and types its way through the page.
func TestThePageShowsWhatThePickerDoes(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a browser and nine programs")
	}
	b := open(t)
	f := startFleet(t)
	b.size(1360, 900, false, "light")
	b.do(chromedp.Navigate(f.MetricsURL + "/"))
	b.until(`document.getElementById('link').textContent === 'Live' && document.querySelectorAll('#pods > .pod').length === 8`)
	b.until(`/^[1-9][0-9.]* %$/.test(document.querySelector('.tile dd').textContent)`) // hits are delivered
	b.until(`[...document.querySelectorAll('#pods .bar')].some(e => /[1-9][0-9.]* k? ?blocks only here/.test(e.getAttribute('aria-label')))`)
	var shown string
	if b.evaluate(`document.body.innerText`, &shown); regexp.MustCompile(`(?i)\b(null|undefined|NaN)\b`).MatchString(shown) {
		t.Errorf("the page shows what is nothing: %s", shown)
	}
	var version string
	if b.evaluate(`document.getElementById('version').textContent`, &version); version == "" {
		t.Error("the page does not show the version")
	}
	var counted string
	b.do(chromedp.Evaluate(`import('/assets/dom.js').then(m => [0, 1, 2000].map(n => m.count(n, 'failure')).join())`, &counted, chromedp.EvalAsValue,
		func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	if counted != "0 failures,1 failure,2,000 failures" {
		t.Errorf("numbers of failures: %s", counted)
	}
	b.do(chromedp.SendKeys("#pods-filter", "POD-3"))
	b.until(`document.querySelectorAll('#pods > .pod').length === 1`)
	b.do(chromedp.SendKeys("#pods-filter", strings.Repeat(kb.Backspace, 5)))
	b.until(`document.querySelectorAll('#pods > .pod').length === 8`)
	b.until(`!document.getElementById('responses-box').hidden && /not deterministic [1-9]/.test(document.getElementById('responses').textContent)`)
	b.until(`!document.getElementById('hooks-box').hidden && document.querySelector('#hooks td').textContent === 'never'`)
	var hidden bool
	b.do(chromedp.Evaluate(`import('/assets/view.js').then(m => { m.responses({}); m.hooks({}); return ['responses-box', 'hooks-box'].every(id => document.getElementById(id).hidden); })`,
		&hidden, chromedp.EvalAsValue, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	if !hidden {
		t.Error("a pool without a response cache or hooks shows them")
	}
	time.Sleep(pictureDelay()) // lines of a minute look better than those of a second
	b.picture("overview-desktop-light")

	// Tabs, by keyboard.
	b.do(chromedp.Focus("#tab-overview"), chromedp.KeyEvent(kb.ArrowRight))
	b.until(`!document.getElementById('decisions').hidden && document.activeElement.id === 'tab-decisions' && document.querySelectorAll('#list > li').length >= 5`)
	b.do(chromedp.Click("#pause"), chromedp.Focus("#list summary"), chromedp.KeyEvent(kb.Enter))
	b.until(`document.querySelectorAll('#list details[open] tbody tr').length === 8`)
	var head, chosen string
	b.evaluate(`document.querySelector('#list details[open] thead').innerText`, &head)
	b.evaluate(`document.querySelector('#list details[open] tr.chosen td').textContent`, &chosen)
	for _, term := range []string{"wait", "own", "wasted", "crowd", "delay"} {
		if !strings.Contains(head, term) {
			t.Errorf("the terms are %q, without %s", head, term)
		}
	}
	var unexplained, headings string
	b.evaluate(`[...document.querySelectorAll('#list details[open] th')].slice(1).filter(e => !e.title).map(e => e.textContent).join()`, &unexplained)
	if unexplained != "" {
		t.Errorf("columns without a meaning: %s", unexplained)
	}
	if b.evaluate(`document.getElementById('list-head').innerText`, &headings); !strings.Contains(headings, "Endpoint") {
		t.Errorf("the list of decisions has the headings %q", headings)
	}
	if !strings.HasPrefix(chosen, "pod-") {
		t.Errorf("%q was chosen", chosen)
	}
	b.picture("decisions-desktop-light")
	var before, after int
	b.evaluate(`document.querySelectorAll('#list > li').length`, &before)
	b.do(chromedp.Click("#pause"))
	b.until(fmt.Sprintf(`document.querySelectorAll('#list > li').length > %d`, min(before, 199)-1))
	b.evaluate(`document.querySelectorAll('#list > li').length`, &after)
	if after > 200 {
		t.Errorf("%d decisions are listed", after)
	}

	b.do(chromedp.Click("#tab-prefixes"))
	b.until(`document.querySelectorAll('#hot > li').length >= 2`)
	var hash string
	b.evaluate(`document.querySelector('#hot h3').textContent`, &hash)
	if !regexp.MustCompile(`^[0-9a-f]{12}$`).MatchString(hash) {
		t.Errorf("a prefix is called %q", hash)
	}
	b.picture("prefixes-desktop-light")

	b.do(chromedp.Click("#tab-explain"))
	b.until(`document.getElementById('body').value.includes('demo-model')`)
	b.do(chromedp.Click("#ask button"))
	b.until(`document.querySelectorAll('#explained tbody tr').length === 8 && document.querySelector('#explained .verdict') !== null`)
	var verdict string
	b.evaluate(`document.getElementById('explained').innerText`, &verdict)
	if !strings.Contains(verdict, "The response cache is not used: the request can have several answers.") || !strings.Contains(verdict, "hooks default/demo never=skipped") {
		t.Errorf("the request is explained so: %s", verdict)
	}
	b.picture("explain-desktop-light")
	b.do(chromedp.SetValue("#body", "{"), chromedp.Click("#ask button"))
	b.until(`document.querySelector('#explained .notice')?.textContent.startsWith('400')`)

	// A pod drains.
	b.do(chromedp.Click("#tab-overview"))
	drain(t, f, "pod-5")
	b.until(`[...document.querySelectorAll('#pods .pill')].filter(e => e.textContent === 'draining').length === 1`)
	b.until(`document.querySelector('#progress [role=progressbar]')?.getAttribute('aria-label') === 'Draining pod-5'`)
	b.picture("draining-desktop-light")

	b.do(chromedp.Click("#theme"), chromedp.Click("#theme"))
	b.until(`document.documentElement.dataset.theme === 'dark'`)
	b.do(chromedp.Click("#theme"))
	b.looks(t)
	b.until(`document.querySelectorAll('#tiles .spark path').length === 8`)
	b.until(`[...document.querySelectorAll('#tiles .spark path')].every(e => e.getAttribute('d').startsWith('M'))`) // within 20 s of the start

	// The picker goes.
	if _, _, err := f.Stop(); err != nil {
		t.Log(err)
	}
	b.until(`document.getElementById('link').textContent === 'Disconnected' && document.getElementById('main').classList.contains('stale')`)
	b.until(`document.getElementById('notices').innerText.includes('does not answer')`)
	b.until(`document.querySelector('#notices a').href.endsWith('/docs/troubleshooting.md#the-page')`)
	b.picture("disconnected-phone-dark")
	b.stayed(f.MetricsURL)
}

// pictureDelay is how long to wait for a picture worth looking at.
func pictureDelay() time.Duration {
	if *shots == "" {
		return 0
	}
	return 15 * time.Second
}

// looks opens all views in all sizes and themes. No element must be wider than the window.
func (b *browser) looks(t *testing.T) {
	t.Helper()
	judged := b.loadAxe(t)
	for _, size := range []struct {
		name          string
		width, height int64
		phone         bool
	}{{"wide", 1920, 1080, false}, {"desktop", 1360, 900, false}, {"tablet", 800, 1100, false}, {"phone", 390, 844, true}, {"small", 320, 640, true}} {
		for _, theme := range []string{"light", "dark"} {
			b.size(size.width, size.height, size.phone, theme)
			for _, view := range []string{"overview", "decisions", "prefixes", "explain"} {
				b.do(chromedp.Click("#tab-" + view))
				b.until(fmt.Sprintf(`!document.getElementById(%q).hidden`, view))
				if view == "decisions" {
					b.until(`document.querySelectorAll('#list > li').length > 3`)
				}
				b.accessible(t, view)
				if judged && (size.name == "desktop" || size.name == "phone") {
					b.conforms(t, view+", "+size.name+", "+theme)
				}
				var edges []float64 // of the header's, tabs' and content's beginnings
				b.evaluate(`['.brand', '.tabs button', 'main > section:not([hidden])'].map(s => document.querySelector(s).getBoundingClientRect().left)`, &edges)
				if !size.phone && (len(edges) != 3 || edges[0] != edges[1] || edges[1] != edges[2]) { // phones scroll their tabs
					t.Errorf("%s, %s: header, tabs and content begin at %v", view, size.name, edges)
				}
				var wide int
				b.evaluate(`document.documentElement.scrollWidth - window.innerWidth`, &wide)
				if wide > 0 {
					var what string
					b.evaluate(`[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > window.innerWidth + 1 && !e.closest('.scroll, .tabs')).slice(0, 3).map(e => e.outerHTML.slice(0, 120)).join('\n')`, &what)
					t.Errorf("%s, %s: %d pixels too wide: %s", view, size.name, wide, what)
				}
				if size.name == "wide" || size.name == "desktop" || size.name == "phone" {
					b.picture(view + "-" + size.name + "-" + theme)
				}
			}
		}
	}
	b.size(390, 844, true, "dark")
	b.do(chromedp.Click("#tab-overview"))
}

// rules of accessibility, for the page to evaluate.
//
//go:embed rules.js
var rules string

// accessible fails the test for what breaks a rule in the view that is shown.
func (b *browser) accessible(t *testing.T, view string) {
	t.Helper()
	var broken string
	if b.evaluate(rules, &broken); broken != "" {
		t.Errorf("%s: %s", view, broken)
	}
}

// drain marks a pod's endpoint as terminating.
func drain(t *testing.T, f *fleet.Fleet, pod string) {
	t.Helper()
	path := filepath.Join(f.Objects, "pods.yaml")
	objects, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Split(string(objects), "---\n")
	for i := range all {
		if strings.Contains(all[i], "name: "+pod+"\n") {
			all[i] = strings.Replace(all[i], "terminating: false", "terminating: true", 1)
		}
	}
	if err := os.WriteFile(path+".new", []byte(strings.Join(all, "---\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// TestThePageAsksForAToken: the page itself is for everybody, what it shows is not.
func TestThePageAsksForAToken(t *testing.T) {
	b := open(t)
	mux := http.NewServeMux()
	dashboard.Register(mux, dashboard.Data{Ring: dashboard.NewRing(), Prefixes: func(int) []api.Prefix { return nil }})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(api.Status{Live: api.Live{
			Picker: "picker-0", Time: time.Now(), Problems: []string{"<img src=x onerror=alert(1)>"},
			Docs: "http://localhost/docs/", NotReady: "no pool is served",
		}})
	})
	s := httptest.NewServer(dashboard.WithPage(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer the-token" {
			http.Error(w, "a service account's token is needed", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	})))
	defer s.Close()
	b.do(chromedp.Navigate(s.URL + "/"))
	b.until(`document.getElementById('login').open`)
	b.picture("login")
	if b.loadAxe(t) {
		b.conforms(t, "the question for a token")
	}
	b.do(chromedp.SendKeys("#token", "wrong"+kb.Enter))
	b.until(`document.getElementById('login').open && document.getElementById('token').value === ''`)
	b.do(chromedp.SendKeys("#token", "the-token"+kb.Enter))
	b.until(`document.getElementById('link').textContent === 'Live' && !document.getElementById('login').open`)
	b.until(`document.getElementById('notices').innerText.includes('There is no pool yet.')`)
	// Each notice leads to where it is explained: not ready, a problem of a file, no pool.
	b.until(`[...document.querySelectorAll('#notices a')].map((a) => a.href.replace(/.*[/]docs[/]/, '')).join() ===
		'troubleshooting.md#requests-get-503,standalone.md#changes,quickstart.md'`)
	var markup int
	b.evaluate(`document.querySelectorAll('#notices img').length`, &markup)
	if markup != 0 {
		t.Error("what the server says has become markup")
	}
	var kept string
	b.evaluate(`JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + document.cookie`, &kept)
	if strings.Contains(kept, "the-token") {
		t.Errorf("the token is kept in %s", kept)
	}
	b.stayed(s.URL)
}
