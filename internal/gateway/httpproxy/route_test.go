package httpproxy

import (
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// routeTakes reports whether the operator's route sends requests for a path to a pool.
func routeTakes(path string) bool {
	for _, m := range resources.RouteMatches() {
		value := *m.Path.Value
		if path == value || *m.Path.Type == gwapiv1.PathMatchPathPrefix && strings.HasPrefix(path, value+"/") {
			return true
		}
	}
	return false
}

// Clients work behind a gateway as in front of the proxy, and no path is open behind a gateway only: the operator's route
// takes exactly the paths that the proxy admits, without administrative ones, which the picker refuses in both places.
func TestTheOperatorsRouteTakesWhatTheProxyAdmits(t *testing.T) {
	h := newHouse(t, Options{}, spec(engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusOK)
	})))
	page, err := os.ReadFile("../../../docs/routing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Paths\n")
	section, _, _ = strings.Cut(section, "\n## ")
	open, closed, _ := strings.Cut(section, "\n| purpose | paths |\n")
	var paths []string
	for _, path := range regexp.MustCompile("`(/[^`]*)`").FindAllStringSubmatch(closed, -1) {
		paths = append(paths, path[1])
	}
	if len(paths) < 50 {
		t.Fatalf("the page closes %d paths", len(paths))
	}
	for _, path := range openai.ClientPaths() {
		paths = append(paths, path, path+"/", path+"/x", "/x"+path)
		if base, _ := strings.CutSuffix(path, "/render"); !strings.Contains(open, "`"+base+"`") {
			t.Errorf("docs/routing.md does not list %s", path)
		}
	}
	paths = append(paths, "/", "/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/responses/x", "/v1/messages/count_tokens",
		"/v1/audio/speech", "/v1/realtime", "/v10/models", "/v2/models", "/v1x", "/api/v1/models", "/generate",
		"/inference/v1/x", "/favicon.ico", "/status", "/readyz", "/healthz")
	for _, path := range paths {
		admitted, redirected := false, false
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			var body io.Reader = http.NoBody
			if method == http.MethodPost {
				body = strings.NewReader("{}")
			}
			r, err := http.NewRequestWithContext(t.Context(), method, h.url+path, body)
			if err != nil {
				t.Fatal(err)
			}
			answer := h.do(r)
			refused := answer.StatusCode == http.StatusNotFound && strings.Contains(read(t, answer), "There is nothing at this path.")
			admitted = admitted || !refused
			redirected = redirected || answer.Request.URL.Path != path
		}
		if redirected { // to a path of its own
			continue
		}
		if want := routeTakes(path) && !openai.Administrative(path); admitted != want {
			t.Errorf("%s: the proxy admits it: %v, a gateway: %v", path, admitted, want)
		}
	}
}
