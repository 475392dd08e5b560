package hub

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/fault"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

func faultBackoff() fault.Backoff { return fault.Backoff{Min: firstRetry, Max: lastRetry} }

// zeros are endless.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestAHostileHub: what it sends is refused, for the right reason, and no file of it is used or left.
func TestAHostileHub(t *testing.T) {
	pinned := modelfiles.Repository{Name: model.Name, Revision: first}
	header := func(rw http.ResponseWriter, pairs ...string) {
		rw.Header().Set("X-Repo-Commit", first)
		for i := 0; i < len(pairs); i += 2 {
			rw.Header().Set(pairs[i], pairs[i+1])
		}
	}
	redirect := func(to string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			header(rw, "Location", to)
			rw.WriteHeader(http.StatusFound)
		}
	}
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"no hub": {func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "<html>log in</html>") }, "names no commit"},
		"another commit": {func(rw http.ResponseWriter, _ *http.Request) {
			header(rw, "X-Repo-Commit", second)
			_, _ = io.WriteString(rw, "{}")
		}, "a file of commit 22222222 instead of 11111111"},
		"another file": {func(rw http.ResponseWriter, _ *http.Request) {
			header(rw, "ETag", `"`+gitHash("{}")+`"`)
			_, _ = io.WriteString(rw, `{"a": 1}`)
		}, "not the one that was announced"},
		"another large file": {func(rw http.ResponseWriter, _ *http.Request) {
			header(rw, "X-Linked-Etag", `"`+strings.Repeat("ab", 32)+`"`)
			_, _ = io.WriteString(rw, "{}")
		}, "not the one that was announced"},
		"a size that is too large": {func(rw http.ResponseWriter, _ *http.Request) {
			header(rw, "X-Linked-Size", strconv.Itoa(testLimit+1))
			_, _ = io.WriteString(rw, "{}")
		}, "more than 67108864 bytes"},
		"a length that is too large": {func(rw http.ResponseWriter, _ *http.Request) {
			header(rw, "Content-Length", "999999999999999")
		}, "more than 67108864 bytes"},
		"two sizes": {func(rw http.ResponseWriter, _ *http.Request) {
			header(rw, "X-Linked-Size", "5")
			_, _ = io.WriteString(rw, "{}")
		}, "announced 5 bytes and sends 2"},
		"less than announced, in chunks": {func(rw http.ResponseWriter, _ *http.Request) {
			header(rw, "X-Linked-Size", "5")
			_, _ = io.WriteString(rw, "{}")
			rw.(http.Flusher).Flush()
		}, "announced 5 bytes and sent 2"},
		"an end amid the file": {func(rw http.ResponseWriter, _ *http.Request) {
			header(rw, "Content-Length", "5")
			_, _ = io.WriteString(rw, "{}")
		}, "unexpected EOF"},
		"no end": {func(rw http.ResponseWriter, _ *http.Request) {
			header(rw)
			_, _ = io.Copy(rw, zeros{})
		}, "more than 67108864 bytes"},
		"a compressed bomb": {func(rw http.ResponseWriter, _ *http.Request) {
			header(rw, "Content-Encoding", "gzip")
			z := gzip.NewWriter(rw)
			_, _ = io.CopyN(z, zeros{}, 2*testLimit)
			z.Close()
		}, "compressed"},
		"a header without end": {func(rw http.ResponseWriter, _ *http.Request) {
			header(rw, "X-Long", strings.Repeat("x", 2*maxHeader))
		}, "header"},
		"silence":             {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "not finished after"},
		"a file of this host": {redirect("file:///etc/passwd"), `redirects to a URL that is not https ("file")`},
		"another scheme":      {redirect("gopher://h/x"), "not https"},
		"no URL":              {redirect("http://%zz"), "no URL"},
		"no place":            {redirect(""), "no URL"},
		"a user in the URL":   {redirect("http://user:pw@127.0.0.1/x"), "no URL"},
		"metadata":            {redirect("http://169.254.169.254/latest/meta-data/iam"), "link-local"},
		"metadata over IPv6":  {redirect("http://[fd00:ec2::254]/"), "link-local"},
		"metadata in IPv6":    {redirect("http://[::ffff:169.254.169.254]/"), "link-local"},
		"no address":          {redirect("http://0.0.0.0/"), "link-local"},
		"a circle":            {redirect("/again"), "more than 5 redirects"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.change = tc.answer
			dir := t.TempDir()
			h := open(t, w.hub.URL, dir, nil)
			if name == "silence" {
				h.pace.timeout = 50 * time.Millisecond
			}
			r := pinned
			r.Token = secret
			commit, err := h.update(t.Context(), &r)
			if commit != "" || !strings.Contains(fmt.Sprint(err), tc.want) {
				t.Errorf("commit %q, error %v, want %s", commit, err, tc.want)
			}
			if text := fmt.Sprint(err); strings.Contains(text, secret) || len(text) > 300 {
				t.Errorf("the error is long, or has the token: %s", text)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
				t.Errorf("there is left: %q", left)
			}
		})
	}
}

// TestTheFilesTogetherAreBounded: the limit is for all files of a model.
func TestTheFilesTogetherAreBounded(t *testing.T) {
	w := newWorld(t)
	half := strings.Repeat("x", testLimit/2+1)
	w.commits[first] = map[string]string{"tokenizer.json": half, "config.json": half}
	h := open(t, w.hub.URL, t.TempDir(), nil)
	pinned := modelfiles.Repository{Name: model.Name, Revision: first}
	for _, r := range []*modelfiles.Repository{&model, &pinned} {
		if _, err := h.update(t.Context(), r); !strings.Contains(fmt.Sprint(err), "config.json: the files have more than") {
			t.Errorf("the error is %v", err)
		}
		if h.cache.current(r) != "" {
			t.Errorf("a part of the files is used for %s", r)
		}
	}
	w.set(func() { w.commits[first] = map[string]string{"tokenizer.json": half, "config.json": "{}"} })
	if commit, err := h.update(t.Context(), &pinned); commit != first || err != nil || h.cache.current(&pinned) != first {
		t.Errorf("all files are not used: %q, %v", commit, err)
	}
}

// TestRedirectsLeadNowhereNearer: a hub elsewhere cannot make the picker ask what is in its own network.
func TestRedirectsLeadNowhereNearer(t *testing.T) {
	for text, want := range map[string]reach{
		"93.184.216.34": public, "2606:4700::1": public, "10.1.2.3": private, "192.168.0.1": private, "172.16.0.1": private,
		"100.64.0.1": private, "fc00::1": private, "127.0.0.1": loopback, "::1": loopback, "::ffff:127.0.0.1": loopback,
		"64:ff9b::127.0.0.1": loopback, "64:ff9b::10.0.0.1": private, "169.254.169.254": forbidden, "fe80::1%eth0": forbidden,
		"0.0.0.0": forbidden, "::": forbidden, "224.0.0.1": forbidden, "64:ff9b::a9fe:a9fe": forbidden,
		"100.100.100.200": forbidden, "fd00:ec2::254": forbidden, "168.63.129.16": forbidden, "192.0.0.192": forbidden,
	} {
		ip := netip.MustParseAddr(text)
		if got := reachOf(ip); got != want {
			t.Errorf("%s is %d, want %d", text, got, want)
		}
		for hub := public; hub <= loopback; hub++ {
			d := &dialer{}
			d.hub.Store(int32(hub) + 1)
			err := d.allow(netip.AddrPortFrom(ip, 443).String())
			if (err == nil) != (want <= hub) {
				t.Errorf("a hub of reach %d redirects to %s: %v", hub, text, err)
			}
		}
		if err := toHub(netip.AddrPortFrom(ip, 443).String()); (err == nil) != (want != forbidden) {
			t.Errorf("the hub is at %s: %v", text, err)
		}
		d := &dialer{}
		d.reached(net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, 443)))
		if got := reach(d.hub.Load() - 1); got != want {
			t.Errorf("the hub is at %s: its reach is %d", text, got)
		}
		d.reached(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 443})
		if got := reach(d.hub.Load() - 1); got != min(want, loopback) {
			t.Errorf("the name of a hub at %s leads to this machine later: its reach is %d", text, got)
		}
	}
}

// TestNoRedirectLeavesTLS: from https, none leads to http.
func TestNoRedirectLeavesTLS(t *testing.T) {
	from, err := ParseEndpoint("https://hub.example")
	if err != nil {
		t.Fatal(err)
	}
	for location, ok := range map[string]bool{"https://cdn.example/x": true, "/x": true, "//cdn.example/x": true, "http://hub.example/x": false} {
		if _, err := target(from, location); (err == nil) != ok {
			t.Errorf("%s: %v", location, err)
		}
	}
}

// TestEndpoints: a hub's URL has a host, and neither a user nor a query.
func TestEndpoints(t *testing.T) {
	for text, ok := range map[string]bool{
		"https://huggingface.co": true, "http://mirror:8090/api/hf/": true, "huggingface.co": false, "file:///etc": false, "https://": false,
		"https://u:p@h": false, "https://h?x": false, "https://h#x": false, "ftp://h": false, "https://h:x": false, "": false,
	} {
		u, err := ParseEndpoint(text)
		if (err == nil) != ok || ok && strings.HasSuffix(u.String(), "/") {
			t.Errorf("%q: %v, %v", text, u, err)
		}
	}
}

// TestTheCacheIsBounded: the least recently used snapshots go; what is used, is recent, or belongs to others stays.
func TestTheCacheIsBounded(t *testing.T) {
	c := cache{dir: t.TempDir(), max: modelfiles.MaxBytes + 25}
	age := func(path string, hours time.Duration) {
		at := time.Now().Add(-hours * time.Hour)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	snapshot := func(name string, hours time.Duration) string {
		r := modelfiles.Repository{Name: name}
		dir := c.snapshot(&r, first)
		put(t, filepath.Join(dir, "tokenizer.json"), strings.Repeat("x", 10))
		put(t, filepath.Join(c.model(&r), "refs", "main"), first)
		age(dir, hours)
		return dir
	}
	oldest, old, used, recent, linked := snapshot("oldest", 9), snapshot("old", 8), snapshot("used", 10), snapshot("recent", 0), snapshot("linked", 11)
	if err := os.Symlink("../x", filepath.Join(linked, "model.safetensors")); err != nil {
		t.Fatal(err)
	}
	age(linked, 11)
	stale, fresh := filepath.Join(c.dir, temporary+"1"), filepath.Join(c.dir, temporary+"2")
	put(t, stale, "")
	put(t, fresh, "")
	age(stale, 1)
	expect := func(what string, gone, there []string) {
		t.Helper()
		for _, path := range append(gone, there...) {
			_, err := os.Stat(path)
			if is := err == nil; is != (len(gone) == 0 || !contains(gone, path)) {
				t.Errorf("%s: %s is there: %t", what, path, is)
			}
		}
	}
	if err := c.makeRoom(map[string]bool{used: true}); err != nil {
		t.Error(err)
	}
	expect("room for two", []string{oldest, filepath.Dir(filepath.Dir(oldest)), old, stale}, []string{used, recent, linked, fresh})
	c.max -= 10
	if err := c.makeRoom(map[string]bool{used: true}); !strings.Contains(fmt.Sprint(err), "has no room") {
		t.Errorf("the error is %v", err)
	}
	expect("nothing can go", nil, []string{used, recent, linked})
}

func contains(list []string, s string) bool {
	for _, one := range list {
		if one == s {
			return true
		}
	}
	return false
}

// TestKeepEndsWorkAtOnce: also while a hub does not answer.
func TestKeepEndsWorkAtOnce(t *testing.T) {
	w := newWorld(t)
	asked := make(chan struct{}, 10)
	w.change = func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}
	h := open(t, w.hub.URL, t.TempDir(), nil)
	h.Keep([]modelfiles.Repository{model})
	<-asked
	h.Keep(nil)
	if f := h.Files(model); !errors.Is(f.Err, errAsking) {
		t.Errorf("there is %+v of a repository that is not followed", f)
	}
}

// TestNamesAreCheckedAgain: a repository whose name leads elsewhere is not asked for.
func TestNamesAreCheckedAgain(t *testing.T) {
	w := newWorld(t)
	h := open(t, w.hub.URL, t.TempDir(), nil)
	for _, r := range []modelfiles.Repository{
		{Name: "../x"}, {Name: "a/../b"}, {Name: "http://x/y"}, {Name: "a/b/c"}, {Name: "a/b", Revision: "../../c"}, {Name: "a/b", Template: "../c"},
	} {
		h.Keep([]modelfiles.Repository{r})
		h.await(r, "refused", func(f Files) bool { return strings.Contains(fmt.Sprint(f.Err), "is no ") })
	}
	if asked := w.asked(); len(asked) > 0 {
		t.Errorf("the hub was asked for %q", asked)
	}
}

// TestAHubThatEndsWithTheContext: an update ends with its context, and says so.
func TestAHubThatEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := newWorld(t)
	if _, err := open(t, w.hub.URL, t.TempDir(), nil).update(ctx, &model); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}
