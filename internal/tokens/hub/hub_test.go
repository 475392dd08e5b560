package hub

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

const (
	secret = "hf_aVerySecretToken"
	// testLimit is what the files of a model can have here, in bytes.
	testLimit = 64 << 10
)

var (
	first, second = strings.Repeat("1", 40), strings.Repeat("2", 40)
	model         = modelfiles.Repository{Name: "org/model"}
)

// world is a hub with one repository, and the host on which it keeps large files.
type world struct {
	t        testing.TB
	hub, cdn *httptest.Server

	mu       sync.Mutex
	branch   string                       // guarded by mu; the commit of main
	commits  map[string]map[string]string // guarded by mu; files by commit
	token    string                       // guarded by mu; that it requires, if any
	requests []string                     // guarded by mu; METHOD path of those to the hub
	leaks    []string                     // guarded by mu; what the other host got
	change   http.HandlerFunc             // guarded by mu; answers in place of the hub, unless it is nil
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, branch: first, commits: map[string]map[string]string{
		first:  {"tokenizer.json": "{}", "config.json": `{"a": 1}`, "chat_template.jinja": "one"},
		second: {"tokenizer.json": `{"b": 2}`, "config.json": `{"a": 2}`, "tokenizer_config.json": "{}"},
	}}
	w.hub, w.cdn = httptest.NewServer(http.HandlerFunc(w.serve)), httptest.NewServer(http.HandlerFunc(w.serveLarge))
	t.Cleanup(w.hub.Close)
	t.Cleanup(w.cdn.Close)
	return w
}

// serve does what the Hugging Face Hub does for `GET /REPOSITORY/resolve/REVISION/FILE`: tokenizer.json is a large file.
func (w *world) serve(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests = append(w.requests, r.Method+" "+r.URL.EscapedPath())
	if w.change != nil {
		change := w.change
		w.mu.Unlock()
		change(rw, r)
		w.mu.Lock()
		return
	}
	fail := func(status int, code string) {
		rw.Header().Set("X-Error-Code", code)
		rw.WriteHeader(status)
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/"+model.Name+"/resolve/")
	revision, name, _ := strings.Cut(rest, "/")
	if revision == "main" {
		revision = w.branch
	}
	files := w.commits[revision]
	text, found := files[name]
	switch {
	case w.token != "" && r.Header.Get("Authorization") != "Bearer "+w.token:
		fail(http.StatusUnauthorized, "RepoNotFound")
	case !ok:
		fail(http.StatusNotFound, "RepoNotFound")
	case files == nil:
		fail(http.StatusNotFound, "RevisionNotFound")
	case !found:
		fail(http.StatusNotFound, "EntryNotFound")
	default:
		w.file(rw, r, revision, name, text)
	}
}

// file answers with one that exists.
func (w *world) file(rw http.ResponseWriter, r *http.Request, commit, name, text string) {
	rw.Header().Set("X-Repo-Commit", commit)
	if name != "tokenizer.json" {
		rw.Header().Set("ETag", `"`+gitHash(text)+`"`)
		rw.Header().Set("Content-Length", strconv.Itoa(len(text)))
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(rw, text)
		}
		return
	}
	sum := sha256.Sum256([]byte(text))
	rw.Header().Set("X-Linked-Etag", `"`+hex.EncodeToString(sum[:])+`"`)
	rw.Header().Set("X-Linked-Size", strconv.Itoa(len(text)))
	http.Redirect(rw, r, w.cdn.URL+"/"+commit+"?signature=s3cr3t", http.StatusFound)
}

func gitHash(text string) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00%s", len(text), text)
	return hex.EncodeToString(h.Sum(nil))
}

func (w *world) serveLarge(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := r.Header.Get("Authorization"); got != "" {
		w.leaks = append(w.leaks, got)
	}
	_, _ = io.WriteString(rw, w.commits[strings.TrimPrefix(r.URL.Path, "/")]["tokenizer.json"])
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// asked are the requests since the last call.
func (w *world) asked() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.requests = nil }()
	return w.requests
}

// house is a Hub, what it has logged, and its changes.
type house struct {
	*Hub
	t       testing.TB
	dir     string
	changes chan modelfiles.Repository

	mu  sync.Mutex
	log strings.Builder // guarded by mu
}

// open starts a Hub at an endpoint ("" for none) with a cache. It updates as fast as it can.
func open(t testing.TB, endpoint, dir string, change func(*Config)) *house {
	t.Helper()
	h := &house{t: t, dir: dir, changes: make(chan modelfiles.Repository, 1000)}
	c := Config{Dir: dir, Changed: func(r modelfiles.Repository) {
		select {
		case h.changes <- r:
		default: // the test waits for no more
		}
	}, Log: funcr.New(func(_, args string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.log.WriteString(args + "\n")
	}, funcr.Options{})}
	if endpoint != "" {
		var err error
		if c.Endpoint, err = ParseEndpoint(endpoint); err != nil {
			t.Fatal(err)
		}
	}
	if change != nil {
		change(&c)
	}
	h.Hub = New(c)
	h.limit = testLimit
	if h.client != nil {
		h.client.transport.ResponseHeaderTimeout = time.Minute
	}
	h.pace = pace{poll: time.Millisecond, firstRetry: time.Millisecond, lastRetry: time.Millisecond, timeout: time.Minute}
	t.Cleanup(h.Close)
	return h
}

// await waits for the files of a repository to be as they should.
func (h *house) await(r modelfiles.Repository, what string, ok func(Files) bool) Files {
	h.t.Helper()
	for {
		files := h.Files(r)
		if ok(files) {
			return files
		}
		select {
		case <-h.changes:
		case <-time.After(30 * time.Second):
			h.t.Fatalf("%s: not so; there is %+v", what, files)
		}
	}
}

func (h *house) logged() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.String()
}

// has checks that a directory has some files and no others.
func has(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		got[name] = string(data)
		return err
	})
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("the files are %q (%v), want %q", got, err, want)
	}
}

// TestTheFilesOfABranchAreFollowed: they are those of one commit, and after a change those of another one.
func TestTheFilesOfABranchAreFollowed(t *testing.T) {
	w := newWorld(t)
	h := open(t, w.hub.URL, t.TempDir(), nil)
	h.Keep([]modelfiles.Repository{model})
	files := h.await(model, "the first commit", func(f Files) bool { return f.Dir != "" })
	has(t, files.Dir, w.commits[first])
	if !strings.Contains(files.Note, "files of commit 11111111 of org/model") {
		t.Errorf("the note is %q", files.Note)
	}
	if want := filepath.Join(h.dir, "models--org--model", "snapshots", first); files.Dir != want {
		t.Errorf("the files are in %s, want %s", files.Dir, want)
	}
	ref, err := os.ReadFile(filepath.Join(h.dir, "models--org--model", "refs", "main"))
	if string(ref) != first {
		t.Errorf("the branch is at %q (%v) in the cache", ref, err)
	}
	w.set(func() { w.branch = second })
	files = h.await(model, "the second commit", func(f Files) bool { return strings.HasSuffix(f.Dir, second) })
	has(t, files.Dir, w.commits[second])
}

// TestABranchThatMovesAmidADownload: the files are of one commit all the same.
func TestABranchThatMovesAmidADownload(t *testing.T) {
	w := newWorld(t)
	moved := sync.OnceFunc(func() { w.set(func() { w.branch, w.change = second, nil }) })
	w.set(func() {
		w.change = func(rw http.ResponseWriter, r *http.Request) {
			w.mu.Lock()
			w.file(rw, r, first, "tokenizer.json", w.commits[first]["tokenizer.json"])
			w.mu.Unlock()
			moved()
		}
	})
	h := open(t, w.hub.URL, t.TempDir(), nil)
	h.Keep([]modelfiles.Repository{model})
	files := h.await(model, "any commit", func(f Files) bool { return f.Dir != "" })
	has(t, files.Dir, w.commits[filepath.Base(files.Dir)])
}

// TestFilesOfACommitAreAskedForOnce: and what it does not have, too.
func TestFilesOfACommitAreAskedForOnce(t *testing.T) {
	w := newWorld(t)
	pinned := modelfiles.Repository{Name: model.Name, Revision: first}
	dir := t.TempDir()
	h := open(t, w.hub.URL, dir, nil)
	h.Keep([]modelfiles.Repository{pinned})
	h.await(pinned, "files", func(f Files) bool { return f.Dir != "" })
	h.Close()
	var want []string
	for _, name := range pinned.Wanted() {
		want = append(want, "GET /org/model/resolve/"+first+"/"+name)
	}
	if got := w.asked(); !slices.Equal(got, want) {
		t.Errorf("the hub was asked for %q, want %q", got, want)
	}
	again := open(t, w.hub.URL, dir, nil)
	if commit, err := again.update(t.Context(), &pinned); commit != first || err != nil {
		t.Errorf("%s, %v", commit, err)
	}
	if got := w.asked(); len(got) > 0 {
		t.Errorf("the hub was asked again: %q", got)
	}
}

// TestTheCacheIsUsedWhileTheHubIsAway: and at a start without it, and by pickers that have no hub.
func TestTheCacheIsUsedWhileTheHubIsAway(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	h := open(t, w.hub.URL, dir, nil)
	h.Keep([]modelfiles.Repository{model})
	h.await(model, "files", func(f Files) bool { return f.Dir != "" })
	w.hub.Close()
	h.await(model, "a note", func(f Files) bool {
		return f.Dir != "" && strings.Contains(f.Note, "from the cache because the last question")
	})
	for name, endpoint := range map[string]string{"a hub that is away": w.hub.URL, "no hub": ""} {
		later := open(t, endpoint, dir, nil)
		other := modelfiles.Repository{Name: "org/other"}
		later.Keep([]modelfiles.Repository{model, other})
		has(t, later.await(model, name, func(f Files) bool { return f.Dir != "" }).Dir, w.commits[first])
		later.await(other, name, func(f Files) bool { return f.Dir == "" && strings.Contains(fmt.Sprint(f.Err), "org/other at main: ") })
	}
}

// TestACacheOfOthersIsUsed: one that `hf download` has made has links, and lacks files that are then added.
func TestACacheOfOthersIsUsed(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	at := filepath.Join(dir, "models--org--model")
	put(t, filepath.Join(at, "refs", "main"), first+"\n")
	put(t, filepath.Join(at, "blobs", "b"), "{}")
	if err := os.MkdirAll(filepath.Join(at, "snapshots", first), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../blobs/b", filepath.Join(at, "snapshots", first, "tokenizer.json")); err != nil {
		t.Fatal(err)
	}
	h := open(t, "", dir, nil)
	h.Keep([]modelfiles.Repository{model})
	has(t, h.await(model, "files", func(f Files) bool { return f.Dir != "" }).Dir, map[string]string{"tokenizer.json": "{}"})
	online := open(t, w.hub.URL, dir, nil)
	if _, err := online.update(t.Context(), &model); err != nil {
		t.Fatal(err)
	}
	has(t, online.cache.snapshot(&model, first), w.commits[first])
}

func put(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestTheTokenGoesToTheHubOnly: not to hosts to which it redirects, not over http, and into no log, note or error.
func TestTheTokenGoesToTheHubOnly(t *testing.T) {
	for name, tc := range map[string]struct {
		file, own, required string
		files               bool
	}{
		"in a file":              {secret + "\n", "", secret, true},
		"of the pool":            {"", secret, secret, true},
		"of the pool and a file": {"hf_another", secret, secret, true},
		"none at all":            {"", "", secret, false},
		"a wrong one":            {secret, "", "hf_another", false},
		"two lines":              {secret + "\nX-Injected: 1", "", secret, false},
		"none is needed":         {secret, "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.token = tc.required
			path := filepath.Join(t.TempDir(), "token")
			put(t, path, tc.file)
			h := open(t, w.hub.URL, t.TempDir(), func(c *Config) { c.TokenFile = path })
			r := modelfiles.Repository{Name: model.Name, Token: tc.own}
			h.Keep([]modelfiles.Repository{r})
			files := h.await(r, "an answer", func(f Files) bool { return (f.Dir != "") == tc.files && !errors.Is(f.Err, errAsking) })
			if w.set(func() {}); len(w.leaks) > 0 {
				t.Errorf("the other host has got %q", w.leaks)
			}
			if told := h.logged() + files.Note + fmt.Sprint(files.Err) + fmt.Sprint(&r); strings.Contains(told, "hf_") || strings.Contains(told, "s3cr3t") {
				t.Errorf("a secret is in %s", told)
			}
		})
	}
	for endpoint, sent := range map[string]bool{"https://h": true, "http://127.0.0.1:1": true, "http://[::1]": true, "http://h": false, "http://10.0.0.1": false} {
		u, err := ParseEndpoint(endpoint)
		if err != nil {
			t.Fatal(err)
		}
		h := New(Config{Endpoint: u})
		token, err := h.token(&modelfiles.Repository{Token: secret})
		if (token == secret) != sent || (err == nil) != sent {
			t.Errorf("%s: the token is sent: %t (%v), want %t", endpoint, token != "", err, sent)
		}
	}
}

// TestWhatTheHubRefuses: each answer has its own reason, and what to do.
func TestWhatTheHubRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		code   string
		token  string
		want   string
	}{
		"no token":        {401, "RepoNotFound", "", "401: there is no such repository, or it is private"},
		"a wrong token":   {401, "RepoNotFound", secret, "401: the token is wrong or has expired"},
		"a gated model":   {403, "GatedRepo", secret, "403: the repository is gated: accept its terms"},
		"a gated model 2": {401, "GatedRepo", "", "401: the repository is gated: accept its terms"},
		"no right":        {403, "", secret, "403: the token does not permit"},
		"closed":          {403, "", "", "403: the repository is not open to everyone"},
		"no repository":   {404, "RepoNotFound", "", "404: there is no such repository: check hub.repository"},
		"no revision":     {404, "RevisionNotFound", "", "404: the repository has no such branch"},
		"no tokenizer":    {404, "EntryNotFound", "", "the repository has no file tokenizer.json"},
		"not found":       {404, "<script>", "", "404: there is no such repository, revision or file"},
		"too many":        {429, "", "", "429: too many requests"},
		"a fault":         {503, "", "", "503: Service Unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.change = func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("X-Error-Code", tc.code)
				rw.WriteHeader(tc.status)
			}
			h := open(t, w.hub.URL, t.TempDir(), nil)
			_, err := h.update(t.Context(), &modelfiles.Repository{Name: model.Name, Token: tc.token})
			if !strings.Contains(fmt.Sprint(err), tc.want) {
				t.Errorf("the error is %v, want %s", err, tc.want)
			}
		})
	}
}

// TestAHubIsLeftAloneForAsLongAsItSays: Retry-After holds if it is longer than the own pause, up to an hour.
func TestAHubIsLeftAloneForAsLongAsItSays(t *testing.T) {
	h := New(Config{})
	for text, want := range map[string]time.Duration{"": 0, "-5": 0, "x": 0, "120": 2 * time.Minute, "999999999999": time.Hour} {
		resp := &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {text}}}
		err := statusError(resp, false)
		backoff := faultBackoff()
		if got := h.pause(&backoff, fmt.Errorf("x: %w", err)); got < want || want == 0 && got > firstRetry || want > 0 && got != want {
			t.Errorf("Retry-After %q: a pause of %s, want %s", text, got, want)
		}
	}
}

// TestTheChatTemplateOfThePool is downloaded with the others, from a directory, too, and must exist.
func TestTheChatTemplateOfThePool(t *testing.T) {
	w := newWorld(t)
	w.commits[first]["a b/tool.jinja"] = "tools"
	h := open(t, w.hub.URL, t.TempDir(), nil)
	r := modelfiles.Repository{Name: model.Name, Template: "a b/tool.jinja"}
	if commit, err := h.update(t.Context(), &r); err != nil || commit != first {
		t.Fatal(commit, err)
	}
	has(t, h.cache.snapshot(&r, first), w.commits[first])
	r.Template = "none.jinja"
	for range 2 { // the second time, the cache knows
		if _, err := h.update(t.Context(), &r); !strings.Contains(fmt.Sprint(err), "no file none.jinja") {
			t.Errorf("the error is %v", err)
		}
	}
}

// TestARevisionWithASlash is one part of the hub's path.
func TestARevisionWithASlash(t *testing.T) {
	w := newWorld(t)
	var got string
	w.change = func(rw http.ResponseWriter, r *http.Request) {
		got = r.URL.EscapedPath()
		rw.WriteHeader(http.StatusNotFound)
	}
	u, _ := url.Parse(w.hub.URL + "/mirror")
	h := open(t, u.String(), t.TempDir(), nil)
	_, _ = h.update(t.Context(), &modelfiles.Repository{Name: model.Name, Revision: "refs/pr/1"})
	if want := "/mirror/org/model/resolve/refs%2Fpr%2F1/tokenizer.json"; got != want {
		t.Errorf("the hub was asked for %s, want %s", got, want)
	}
}

// TestANewTokenCostsNoFiles: a pool whose token was replaced has the files of the cache at once, before the hub has answered.
func TestANewTokenCostsNoFiles(t *testing.T) {
	w := newWorld(t)
	h := open(t, w.hub.URL, t.TempDir(), nil)
	h.Keep([]modelfiles.Repository{model})
	dir := h.await(model, "the files", func(f Files) bool { return f.Dir != "" }).Dir
	answer := make(chan struct{})
	w.set(func() { w.change = func(http.ResponseWriter, *http.Request) { <-answer } })
	t.Cleanup(func() { close(answer) })
	replaced := model
	replaced.Token = "hf_another"
	h.Keep([]modelfiles.Repository{replaced})
	if got := h.Files(replaced); got.Dir != dir || got.Err != nil {
		t.Errorf("the files are %+v, want those in %s", got, dir)
	}
}
