package live

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
)

// server answers as a picker does, and remembers which client has asked.
func server(t *testing.T, start func(*httptest.Server)) (s *httptest.Server, shown *string) {
	shown = new(string)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		*shown = r.Header.Get("Authorization")
		_, _ = w.Write([]byte(`{"kind":"List","live":{"picker":"picker-0","time":"2026-11-20T12:00:00Z"}}`))
	})
	mux.HandleFunc("GET /decision-log", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("{\"timestamp\":1}\n"))
	})
	mux.HandleFunc("GET /decisions", func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Get("limit") != "3" || q.Get("follow") != "1" || q.Get("ended") != "1" {
			http.Error(w, r.URL.RawQuery, http.StatusBadRequest)
			return
		}
		_, _ = w.Write([]byte("{\"id\":1}\n{\"id\":2}\n"))
	})
	mux.HandleFunc("GET /prefixes", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte("the account may not\n"))
	})
	mux.HandleFunc("POST /explain", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"code":404,"message":"no pool has the model"}`))
	})
	s = httptest.NewUnstartedServer(mux)
	start(s)
	t.Cleanup(s.Close)
	return s, shown
}

func TestAPickerAtAnAddress(t *testing.T) {
	s, shown := server(t, (*httptest.Server).Start)
	p, err := At(strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	told, err := p.Status(t.Context())
	if err != nil || told.Picker != "picker-0" || *shown != "" {
		t.Errorf("%+v, %v, shown %q", told, err, *shown)
	}
	var ids []uint64
	err = p.Decisions(t.Context(), 3, true, true, func(d *api.Decision) error { ids = append(ids, d.ID); return nil })
	if err != nil || len(ids) != 2 || ids[1] != 2 {
		t.Errorf("%v, %v", ids, err)
	}
	enough := errors.New("enough")
	if err := p.Decisions(t.Context(), 3, true, true, func(*api.Decision) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("%v", err)
	}
	_, err = p.Explain(t.Context(), "/v1/completions", []byte("{}"))
	var fault *Fault
	if !errors.As(err, &fault) || fault.Code != 404 || fault.Message != "no pool has the model" {
		t.Errorf("%v", err)
	}
	if _, err = p.Prefixes(t.Context(), 5); !errors.As(err, &fault) || fault.Code != 403 || fault.Message != "the account may not" {
		t.Errorf("%v", err)
	}
	for _, wrong := range []string{"", "ftp://a", "http://", "http://%"} {
		if _, err := At(wrong); err == nil {
			t.Errorf("%q is an address", wrong)
		}
	}
}

// TestAPodIsSpokenToAsItSpeaks: with TLS it is shown a token, if its certificate is believed; without it is not.
// The port of requests and the port of the page are easily confused.
func TestAnotherPortOfAPickerIsNamed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"error":{"message":"There is nothing at this path."}}`, http.StatusNotFound)
	}))
	defer server.Close()
	picker, err := At(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := picker.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "9090 by default") {
		t.Errorf("%v", err)
	}
}

func TestAPodIsSpokenToAsItSpeaks(t *testing.T) {
	payload := base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"system:serviceaccount:llm:viewer"}`))
	own := "e30." + payload + ".sig"
	for name, tc := range map[string]struct {
		start   func(*httptest.Server)
		believe bool
		shown   string
		fails   string
	}{
		"in the clear":               {(*httptest.Server).Start, true, "", ""},
		"with TLS":                   {(*httptest.Server).StartTLS, true, "Bearer " + own, ""},
		"with a strange certificate": {(*httptest.Server).StartTLS, false, "", "certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			s, shown := server(t, tc.start)
			config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: "example.com", RootCAs: x509.NewCertPool()}
			if tc.believe && s.Certificate() != nil {
				config.RootCAs.AddCert(s.Certificate())
			}
			a := &Access{Config: &rest.Config{BearerToken: own}, Dial: func(ctx context.Context, pod types.NamespacedName, port int) (net.Conn, error) {
				if pod.Name != "chat-picker-0" || port != 9090 {
					t.Errorf("dialled %s, %d", pod, port)
				}
				return (&net.Dialer{}).DialContext(ctx, "tcp", s.Listener.Addr().String())
			}}
			p := a.picker(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "chat-picker-0"}}, config)
			_, err := p.Status(t.Context())
			if (err == nil) != (tc.fails == "") || err != nil && !strings.Contains(err.Error(), tc.fails) || *shown != tc.shown {
				t.Errorf("%v, shown %q", err, *shown)
			}
			cert, why := p.Certificate()
			if secure := s.TLS != nil; (cert != nil) != (secure && tc.believe) || (why != nil) != (secure && !tc.believe) {
				t.Errorf("certificate %v, %v", cert != nil, why)
			}
		})
	}
}

// TestAPickerThatIsNotReachedIsNotTakenForOneWithoutTLS neither before a question nor when it cannot be dialled.
func TestAPickerThatIsNotReachedIsNotTakenForOneWithoutTLS(t *testing.T) {
	a := &Access{Config: &rest.Config{}, Dial: func(context.Context, types.NamespacedName, int) (net.Conn, error) {
		return nil, errors.New("connection refused")
	}}
	p := a.picker(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "chat-picker-0"}}, &tls.Config{MinVersion: tls.VersionTLS12})
	for _, when := range []string{"before a question", "after one"} {
		if cert, err := p.Certificate(); cert != nil || err == nil {
			t.Errorf("%s: certificate %v, %v", when, cert != nil, err)
		}
		if _, err := p.Status(t.Context()); err == nil {
			t.Fatal("it answers")
		}
	}
}

func TestOnlyTokensOfServiceAccountsAreShown(t *testing.T) {
	encode := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".sig"
	}
	for token, want := range map[string]bool{
		encode(`{"sub":"system:serviceaccount:a:b"}`): true, encode(`{"sub":"somebody@example.com"}`): false, "opaque": false, "a.!.c": false, "": false,
	} {
		if got := ownToken(&rest.Config{BearerToken: token}) != ""; got != want {
			t.Errorf("%q: %v", token, got)
		}
	}
}

// TestThePageIsForBrowsersOfThisMachine: under its own names, and for no other site.
func TestThePageIsForBrowsersOfThisMachine(t *testing.T) {
	s, shown := server(t, (*httptest.Server).Start)
	p, err := At(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	p.token = func(context.Context) (string, error) { return "secret", nil }
	page := p.Page("127.0.0.1:8080", "localhost:8080")
	ask := func(method, target, host string, header ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader("{}"))
		r.Host = host
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		page.ServeHTTP(w, r)
		return w
	}
	if w := ask("GET", "/status", "localhost:8080", "Authorization", "Bearer other"); w.Code != 200 || *shown != "Bearer secret" {
		t.Errorf("%d, shown %q", w.Code, *shown)
	}
	if w := ask("POST", "/explain", "127.0.0.1:8080", "Sec-Fetch-Site", "same-origin"); w.Code != 404 || !strings.Contains(w.Body.String(), "no pool has the model") {
		t.Errorf("explain: %d %s", w.Code, w.Body)
	}
	*shown = ""
	if w := ask("GET", "/status", "evil.example:8080"); w.Code != 403 || *shown != "" {
		t.Errorf("another name: %d, shown %q", w.Code, *shown)
	}
	if w := ask("POST", "/explain", "127.0.0.1:8080", "Sec-Fetch-Site", "cross-site"); w.Code != 403 {
		t.Errorf("another site: %d", w.Code)
	}
	p.token = func(context.Context) (string, error) { return "", errors.New("no account") }
	if w := ask("GET", "/status", "localhost:8080"); w.Code != 502 || !strings.Contains(w.Body.String(), "no account") {
		t.Errorf("without a token: %d %s", w.Code, w.Body)
	}
}

func TestADecisionLogIsFetched(t *testing.T) {
	s, _ := server(t, (*httptest.Server).Start)
	p, err := At(strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	if err := p.DecisionLog(t.Context(), &log); err != nil || log.String() != "{\"timestamp\":1}\n" {
		t.Errorf("%q, %v", log.String(), err)
	}
}
