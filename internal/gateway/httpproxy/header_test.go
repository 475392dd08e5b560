package httpproxy

import (
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// echo is an engine that keeps the last request's header and answers with the given one.
type echo struct {
	host   string
	uri    string
	header http.Header
}

func (e *echo) engine(t *testing.T, answer http.Header) string {
	return engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		e.host, e.uri, e.header = r.Host, r.URL.RequestURI(), r.Header
		for name, values := range answer {
			w.Header()[name] = values
		}
		_, _ = io.WriteString(w, "x")
	})
}

func TestHeadersPassFromEndToEndOnly(t *testing.T) {
	var e echo
	address := e.engine(t, http.Header{
		"Connection": {"keep-alive, X-Private"}, "Keep-Alive": {"timeout=5"}, "X-Private": {"1"}, "Proxy-Authenticate": {"Basic"},
		"X-Kvasir-Endpoint": {"forged"}, "X-Engine": {"a", "b"}, "Date": {"yesterday"}, "Content-Type": {"application/json"},
	})
	h := newHouse(t, Options{}, spec(address))
	request, err := http.NewRequest("POST", h.url+"/v1/completions?a=%2Fb&c", strings.NewReader(streamed))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = http.Header{
		"Connection": {"X-Secret , keep-alive", "x-also"}, "X-Secret": {"1"}, "X-Also": {"1"}, "Keep-Alive": {"1"},
		"Te": {"trailers"}, "Upgrade": {"websocket"}, "Proxy-Authorization": {"x"}, "Proxy-Connection": {"x"},
		"X-Forwarded-For": {"1.2.3.4", "5.6.7.8"}, "X-Request-Id": {"id-1"}, "Traceparent": {"00-ab-cd-01"},
		"Authorization": {"Bearer mine"}, "X-Kvasir-Explain": {"true"}, "X-Kvasir-Other": {"1"},
		"X-Data-Parallel-Rank": {"3"}, "Accept-Encoding": {"br"}, "X-Custom": {"a", "b"}, "User-Agent": {"me"},
	}
	request.Host = "models.example"
	r := h.do(request)
	read(t, r)

	want := http.Header{
		"X-Forwarded-For": {"1.2.3.4, 5.6.7.8, 127.0.0.1"}, "X-Request-Id": {"id-1"}, "Traceparent": {"00-ab-cd-01"},
		"Authorization": {"Bearer mine"}, "Accept-Encoding": {"br"}, "X-Custom": {"a", "b"}, "User-Agent": {"me"},
		"Content-Length": {strconv.Itoa(len(streamed))},
	}
	if diff := cmp.Diff(want, e.header); diff != "" {
		t.Errorf("the engine's header (-want +got):\n%s", diff)
	}
	if e.host != address || e.uri != "/v1/completions?a=%2Fb&c" {
		t.Errorf("host %s, URI %s", e.host, e.uri)
	}
	wantAnswer := http.Header{
		"X-Engine": {"a", "b"}, "Date": {"yesterday"}, "Content-Type": {"application/json"}, "Content-Length": {"1"},
		"X-Request-Id": {"id-1"},
	}
	if diff := cmp.Diff(wantAnswer, r.Header); diff != "" {
		t.Errorf("the client's header (-want +got):\n%s", diff)
	}
}

func TestWhatTheClientDoesNotSendIsNotInvented(t *testing.T) {
	var e echo
	address := e.engine(t, http.Header{"Content-Type": nil, "Date": nil})
	h := newHouse(t, Options{}, spec(address))
	request, err := http.NewRequest("POST", h.url+"/v1/completions", strings.NewReader(streamed))
	if err != nil {
		t.Fatal(err)
	}
	request.Header["User-Agent"] = nil
	r := h.do(request)
	read(t, r)
	id := e.header.Get("X-Request-Id")
	if len(id) != 32 || r.Header.Get("X-Request-Id") != id {
		t.Errorf("request ids %q and %q", id, r.Header.Get("X-Request-Id"))
	}
	names := slices.Sorted(maps.Keys(e.header))
	if diff := cmp.Diff([]string{"Content-Length", "X-Forwarded-For", "X-Request-Id"}, names); diff != "" {
		t.Errorf("the engine's header (-want +got):\n%s", diff)
	}
	if kind, ok := r.Header["Content-Type"]; ok {
		t.Errorf("guessed content type %q", kind)
	}
	read(t, h.post("/v1/completions", streamed))
	if e.header.Get("X-Request-Id") == id {
		t.Error("two requests have one id")
	}
}

func TestTheEndpointDecidesRankAndKey(t *testing.T) {
	var e echo
	s := spec(e.engine(t, nil))
	s.Endpoints[0].RankHeader = 0
	s.EngineAPIKey = "theirs"
	h := newHouse(t, Options{}, s)
	read(t, h.post("/v1/completions", streamed, "X-Data-Parallel-Rank", "7", "Authorization", "Bearer mine"))
	if rank := e.header["X-Data-Parallel-Rank"]; len(rank) != 1 || rank[0] != "0" {
		t.Errorf("rank %q", rank)
	}
	if key := e.header["Authorization"]; len(key) != 1 || key[0] != "Bearer theirs" {
		t.Errorf("key %q", key)
	}
}

// TestTheEngineChecksClientsThatNobodyElseHasChecked: it receives their key unchanged, or none.
func TestTheEngineChecksClientsThatNobodyElseHasChecked(t *testing.T) {
	tenants := keyed(t).Policy.Admission.Tenants
	for name, tc := range map[string]struct {
		pass        bool
		pool        string
		tenants     *picker.TenantsSpec
		shown, want string
	}{
		"the client's key":              {true, "theirs", nil, "Bearer mine", "Bearer mine"},
		"another kind of authorization": {true, "theirs", nil, "Basic bWluZQ==", "Basic bWluZQ=="},
		"no key":                        {true, "theirs", nil, "", ""},
		"no key of the pool":            {true, "", nil, "Bearer mine", "Bearer mine"},
		"the pool's key":                {false, "theirs", nil, "Bearer mine", "Bearer theirs"},
		"the pool's key for no key":     {false, "theirs", nil, "", "Bearer theirs"},
		"a tenant":                      {true, "theirs", tenants, "Bearer k-acme", "Bearer theirs"},
		"a tenant, and open engines":    {true, "", tenants, "Bearer k-acme", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var e echo
			s := spec(e.engine(t, nil))
			s.PassClientAuth, s.EngineAPIKey, s.Policy.Admission.Tenants = tc.pass, tc.pool, tc.tenants
			h := newHouse(t, Options{}, s)
			var header []string
			if tc.shown != "" {
				header = []string{"Authorization", tc.shown}
			}
			if r := h.post("/v1/completions", streamed, header...); r.StatusCode != http.StatusOK {
				t.Fatalf("status %d: %s", r.StatusCode, read(t, r))
			}
			if got := strings.Join(e.header["Authorization"], "|"); got != tc.want {
				t.Errorf("the engine has got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestEnginesBehindUnixSockets(t *testing.T) {
	var hosts []string
	var specs []picker.Spec
	for _, name := range []string{"a", "b"} {
		path := filepath.Join(t.TempDir(), name+" x.sock")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			hosts = append(hosts, r.Host)
			_, _ = io.WriteString(w, name)
		}))
		_ = server.Listener.Close()
		server.Listener = l
		server.Start()
		t.Cleanup(server.Close)
		s := spec("")
		s.Name, s.Model, s.Aliases, s.Adapters = name, name, nil, nil
		s.Endpoints[0].Socket = path
		specs = append(specs, s)
	}
	h := newHouse(t, Options{}, specs...)
	for _, name := range []string{"a", "b", "a"} {
		if got := read(t, h.post("/v1/completions", `{"model":"`+name+`","prompt":"x"}`)); got != name {
			t.Errorf("asked %s, %s has answered", name, got)
		}
	}
	if diff := cmp.Diff([]string{"localhost", "localhost", "localhost"}, hosts); diff != "" {
		t.Errorf("hosts (-want +got):\n%s", diff)
	}
}

func TestAnswersExplainThemselvesWhereThePolicyAllows(t *testing.T) {
	explained := map[string]string{
		"X-Kvasir-Endpoint": "pod-1/0", "X-Kvasir-Strategy": "RoundRobin", "X-Kvasir-Tokens": "given",
		"X-Kvasir-Prompt-Tokens": "64", "X-Kvasir-Predicted-Tokens": "0", "X-Kvasir-Confirmed-Tokens": "0",
		"X-Kvasir-Reason": "match=0/4 inflight=0 cost=1 candidates=2", "X-Kvasir-Attempt": "2",
	}
	cases := map[string]struct {
		setting string
		header  []string
		want    bool
	}{
		"never":              {"Never", []string{explainHeader, "true"}, false},
		"on request, asked":  {"OnRequest", []string{explainHeader, "1"}, true},
		"on request, unsure": {"OnRequest", []string{explainHeader, "please"}, false},
		"on request, silent": {"OnRequest", nil, false},
		"always":             {"Always", nil, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var e echo
			s := spec(nobodyAt(t), e.engine(t, http.Header{"X-Kvasir-Strategy": {"forged"}}))
			s.Policy.AnswerHeaders = tc.setting
			h := newHouse(t, Options{}, s)
			r := h.post("/v1/completions", streamed, tc.header...)
			got := map[string]string{}
			for name, values := range r.Header {
				if strings.HasPrefix(name, ownPrefix) {
					got[name] = strings.Join(values, "|")
				}
			}
			want := map[string]string{}
			if tc.want {
				want = explained
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
		})
	}
}

// TestThePagesCheckFindsItsHeaders: "Does it work?" in docs/install-vllm.md sends what the policy that it shows requires, and looks
// for headers that the answer then has.
func TestThePagesCheckFindsItsHeaders(t *testing.T) {
	page, err := os.ReadFile("../../../docs/install-vllm.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "\n## Does it work?\n")
	section, _, _ = strings.Cut(section, "\n## ")
	setting := regexp.MustCompile(`answerHeaders: (\w+)`).FindStringSubmatch(section)
	sent := regexp.MustCompile(`-H '([^:']+): ([^']+)'`).FindAllStringSubmatch(section, -1)
	wanted := regexp.MustCompile(`grep -iE '([^']+)'`).FindStringSubmatch(section)
	named := regexp.MustCompile("`(x-kvasir-[a-z-]+)`").FindAllStringSubmatch(section, -1)
	if !ok || setting == nil || len(sent) == 0 || wanted == nil || len(named) == 0 {
		t.Fatalf("the check is not to be found in\n%s", section)
	}
	var e echo
	s := spec(e.engine(t, nil))
	s.Policy.AnswerHeaders = setting[1]
	h := newHouse(t, Options{}, s)
	var header []string
	for _, m := range sent {
		header = append(header, m[1], m[2])
	}
	r := h.post("/v1/completions", streamed, header...)
	looked := strings.Split(wanted[1], "|")
	for _, m := range named {
		if !slices.Contains(looked, m[1]) {
			t.Errorf("the page explains %s and does not look for it", m[1])
		}
	}
	for _, name := range looked {
		if strings.HasPrefix(name, "x-") && r.Header.Get(name) == "" {
			t.Errorf("the answer has no %s, with answerHeaders: %s and the headers %q", name, setting[1], header)
		}
	}
	read(t, r)
}

func FuzzCopyHeader(f *testing.F) {
	f.Add("X-A", "1", "close")
	f.Add("Upgrade", "websocket", "Upgrade")
	f.Add("X-Kvasir-Endpoint", "x", ",, ,X-B")
	f.Add("X-B", "x", " x-b ,keep-alive")
	f.Fuzz(func(t *testing.T, name, value, connection string) {
		for _, c := range []byte(name + connection) {
			if c < ' ' || c > '~' {
				t.Skip() // does not pass net/http
			}
		}
		if name == "" {
			t.Skip()
		}
		src := http.Header{"Connection": {connection}, "X-Stays": {"1"}}
		src.Set(name, value)
		src.Set("Connection", connection)
		dst := http.Header{}
		copyHeader(dst, src)
		for name := range dst {
			if hopByHop(name) || strings.HasPrefix(name, ownPrefix) {
				t.Errorf("%q is copied", name)
			}
			for _, listed := range strings.Split(connection, ",") {
				if strings.EqualFold(strings.Trim(listed, " \t"), name) {
					t.Errorf("%q is copied though Connection names it", name)
				}
			}
		}
		for name := range src {
			named := slices.ContainsFunc(strings.Split(connection, ","), func(s string) bool {
				return http.CanonicalHeaderKey(strings.Trim(s, " \t\r\n")) == name
			})
			if _, ok := dst[name]; !ok && !named && !hopByHop(name) && !strings.HasPrefix(name, ownPrefix) {
				t.Errorf("%q is lost", name)
			}
		}
	})
}
