//go:build unix

package browser

import (
	"flag"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
)

var site = flag.String("browser.site", "", "directory of the documentation's site, as `make docs` builds it")

// TestTheSiteIsSearched: the documentation's site shows its index, finds pages by words, leads to them, and asks for nothing that it lacks.
func TestTheSiteIsSearched(t *testing.T) {
	if *site == "" {
		t.Skip("-browser.site is not set (`make test-site`)")
	}
	var mu sync.Mutex
	var missing []string
	files := http.FileServer(http.Dir(*site))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := &recorded{ResponseWriter: w}
		files.ServeHTTP(status, r)
		if status.code == http.StatusNotFound && r.URL.Path != "/favicon.ico" {
			mu.Lock()
			defer mu.Unlock()
			missing = append(missing, r.URL.Path)
		}
	}))
	defer s.Close()
	b := open(t)
	b.size(1360, 900, false, "light")
	b.do(chromedp.Navigate(s.URL + "/index.html"))
	b.until(`document.querySelector('h1').textContent.startsWith('Documentation')`)
	b.picture("site-index")
	var form string
	b.evaluate(`document.querySelector('input[name=q]').form.action`, &form)
	b.do(chromedp.Navigate(form + "?q=lame+duck"))
	b.until(`document.querySelectorAll('#search-results li').length > 0`)
	b.picture("site-search")
	var found string
	b.evaluate(`document.querySelector('#search-results li a').href`, &found)
	b.do(chromedp.Navigate(found))
	b.until(`document.body.innerText.toLowerCase().includes('lame')`)
	b.do(chromedp.Navigate(s.URL + "/tutorial-gpus.html"))
	b.until(`document.querySelectorAll('pre').length > 5`)
	b.picture("site-tutorial")
	mu.Lock()
	defer mu.Unlock()
	if len(missing) > 0 {
		t.Errorf("the site lacks %s", strings.Join(missing, ", "))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, url := range b.urls {
		if !strings.HasPrefix(url, s.URL+"/") && !strings.HasPrefix(url, "data:") {
			t.Errorf("the site has asked for %s", url)
		}
	}
}

// recorded remembers the status of an answer.
type recorded struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (r *recorded) WriteHeader(code int) {
	r.code = code
	r.ResponseWriter.WriteHeader(code)
}
