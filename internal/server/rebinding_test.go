package server

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestAPageFromElsewhereReadsNothing: a browser that was made to believe that a public name is ours gets nothing, whatever a page has it
// say that it is.
func TestAPageFromElsewhereReadsNothing(t *testing.T) {
	h := withoutRebinding(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("secret")) }),
		[]string{"kvasir.example.com"})
	const browser = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"
	for _, tc := range []struct {
		host, agent string
		want        int
	}{
		{"evil.example.com:9090", browser, http.StatusMisdirectedRequest},
		{"EVIL.EXAMPLE.COM.", browser, http.StatusMisdirectedRequest},
		{"127.0.0.1.evil.example.com", browser, http.StatusMisdirectedRequest},
		{"evil.example.com", "Prometheus/3.0", http.StatusMisdirectedRequest},
		{"evil.example.com", "", http.StatusMisdirectedRequest},
		{"x.kvasir.example.com", browser, http.StatusMisdirectedRequest},
		{"Kvasir.example.com:9090", browser, http.StatusOK},
		{"kvasir.example.com.", "Prometheus/3.0", http.StatusOK},
		{"10.0.0.1:9090", "Prometheus/3.0", http.StatusOK},
		{"", "Prometheus/3.0", http.StatusOK},
		{"127.0.0.1:9090", browser, http.StatusOK},
		{"[::1]:9090", browser, http.StatusOK},
		{"localhost:9090", browser, http.StatusOK},
		{"picker:9090", browser, http.StatusOK},
		{"chat-picker.ai.svc:9090", browser, http.StatusOK},
		{"chat-picker.ai.svc.cluster.local", browser, http.StatusOK},
	} {
		r := httptest.NewRequest(http.MethodGet, "/status", nil)
		r.Host = tc.host
		r.Header.Set("User-Agent", tc.agent)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tc.want {
			t.Errorf("%s, %s: status %d, want %d", tc.host, tc.agent, w.Code, tc.want)
		}
	}
}
