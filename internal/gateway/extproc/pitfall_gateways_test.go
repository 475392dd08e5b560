package extproc

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

func TestPitfall11_BehindNginx(t *testing.T) {
	e := engine(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, readRequest(r)) })
	s := spec(e, "127.0.0.1:1")
	s.Policy.Strategy = policy.Config{Type: policy.LeastLoad}
	s.Endpoints[1].Ready = false
	h := newHouse(t, Options{}, ServeOptions{}, s)
	for name, open := range map[string]bool{"FailClose": false, "FailOpen": true} {
		t.Run(name, func(t *testing.T) {
			server := &envoytest.Nginx{Picker: h.address, Dial: []grpc.DialOption{plain}, FailOpen: open, Endpoints: []string{e}}
			g := &standIn{t: t, url: "http://" + engine(t, server.ServeHTTP)}
			chat := `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
			if text := read(t, g.post("/v1/chat/completions", chat)); text != chat {
				t.Errorf("answer %q", text)
			}
			// A refusal never reaches the client: closed it is a failure, open it is any pod.
			if answer := g.post("/v1/chat/completions", `{"model":`); (answer.StatusCode == 200) != open {
				t.Errorf("status %d for a refusal", answer.StatusCode)
			}
		})
	}
	h.outcomes(map[picker.Outcome]int64{picker.Unreported: 2})
	if models := h.seen.models; !slices.Equal(models, []string{"m", "m"}) {
		t.Errorf("picked for models %q", models)
	}
}

// Without a path the route follows from the body's shape, and a body of an unknown shape is routed by load.
func TestPitfall12_MissingAndUnknownPaths(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
	for name, tc := range map[string]struct {
		headers []string
		body    string
		model   string // "" when it goes by load
		status  int    // of a refusal
	}{
		"no path, a completion":  {nil, completion, "m", 0},
		"no path, a chat":        {nil, `{"model":"alias","messages":[]}`, "alias", 0},
		"no path, another shape": {nil, `{"model":"m","input":"x"}`, "", 0},
		"no path, broken":        {nil, `{"model":`, "", 400},
		"no path, no JSON":       {nil, "--boundary", "", 0},
		"a prefix":               {[]string{":path", "/llama/v1/completions?x=/v1/"}, completion, "m", 0},
		"an unknown path":        {[]string{":path", "/v1/audio/transcriptions"}, completion, "", 0},
		"a form":                 {[]string{":path", "/v1/completions", "content-type", "multipart/form-data; boundary=x"}, "--x", "", 0},
		"compressed":             {[]string{":path", "/v1/completions", "content-encoding", "gzip"}, "\x1f\x8b", "", 0},
		"another method":         {[]string{":method", "PUT", ":path", "/v1/completions"}, "x", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := h.script()
			s.send(requestHead(false, tc.headers...), requestPiece(tc.body, true))
			m := s.receive()
			if tc.status != 0 {
				if got := int(m.GetImmediateResponse().GetStatus().GetCode()); got != tc.status {
					t.Errorf("status %d", got)
				}
				return
			}
			if destinationOf(m) == "" {
				t.Fatalf("not routed: %v", m)
			}
			h.seen.mu.Lock()
			defer h.seen.mu.Unlock()
			if last := h.seen.models[len(h.seen.models)-1]; last != tc.model {
				t.Errorf("picked for model %q, want %q", last, tc.model)
			}
		})
	}
}

func TestPitfall16_APortMayServeOnePoolOnly(t *testing.T) {
	a, b := spec("127.0.0.1:1"), spec("127.0.0.1:2")
	b.Name, b.Model, b.Aliases, b.Adapters = "b", "b", nil, nil
	b.Endpoints[0].ID.Pod = "b"
	h := newHouse(t, Options{Pool: "default/b"}, ServeOptions{}, a, b)
	s := h.script()
	s.send(requestHead(true, ":method", "GET", ":path", "/v1/models"))
	if d := destinationOf(s.receive()); d != "127.0.0.1:2" {
		t.Errorf("destination %q", d)
	}
	s = h.script()
	s.send(requestHead(false, post...), requestPiece(completion, true))
	if r := s.receive().GetImmediateResponse(); r.GetStatus().GetCode() != 404 {
		t.Errorf("%v", r)
	}
	if d := h.script().routed(`{"model":"b","prompt":[1]}`); d != "127.0.0.1:2" {
		t.Errorf("destination %q", d)
	}
}

// A preflight has no key, by its specification: it reaches no engine, and the policy says what is answered.
func TestPitfall17_PreflightsAreAnswered(t *testing.T) {
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" {
			t.Error("a preflight has come to the engine")
		}
		w.WriteHeader(http.StatusAccepted)
	})
	for name, s := range map[string]picker.Spec{"everybody": spec(e), "tenants": keyed(t, e)} {
		t.Run(name, func(t *testing.T) {
			s.Policy.Admission.AllowedOrigins = []string{"https://example.com"}
			h := newHouse(t, Options{}, ServeOptions{}, s)
			g := h.envoy(envoytest.Options{})
			ask := func(header ...string) *http.Response {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, g.url+"/v1/chat/completions", http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				return g.do(r, header...)
			}
			r := ask("Origin", "https://example.com", "Access-Control-Request-Method", "POST")
			if r.StatusCode != http.StatusNoContent || r.Header.Get("Access-Control-Allow-Origin") != "https://example.com" {
				t.Errorf("status %d, header %v", r.StatusCode, r.Header)
			}
			r = ask("Origin", "https://other.example", "Access-Control-Request-Method", "POST")
			if r.StatusCode != http.StatusForbidden || r.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("another origin: status %d, header %v", r.StatusCode, r.Header)
			}
			want := http.StatusAccepted
			if name == "tenants" {
				want = http.StatusUnauthorized
			}
			if r := ask(); r.StatusCode != want {
				t.Errorf("OPTIONS that is no preflight: status %d, want %d", r.StatusCode, want)
			}
			h.idle()
		})
	}
}

func list(addresses ...string) *structpb.Value {
	l := &structpb.ListValue{}
	for _, a := range addresses {
		l.Values = append(l.Values, structpb.NewStringValue(a))
	}
	return structpb.NewListValue(l)
}

// A subset counts in every shape, on any message, and for requests without a body.
func TestPitfall18_SubsetsOfEveryShapeOnAnyMessage(t *testing.T) {
	const a, b, c = "10.0.0.1:8000", "10.0.0.2:8000", "[2001:db8::3]:8000"
	for name, tc := range map[string]struct {
		hint *structpb.Value
		want string // "" for a refusal
	}{
		"none":                    {nil, a},
		"a list":                  {list(b), b},
		"a list of several":       {list("10.9.9.9:1", c), c},
		"a string":                {structpb.NewStringValue(b), b},
		"a string of several":     {structpb.NewStringValue(" 10.9.9.9:1 , " + b + ","), b},
		"an address, any port":    {structpb.NewStringValue("10.0.0.2"), b},
		"IPv6, written otherwise": {list("[2001:0db8:0::3]:8000"), c},
		"IPv6, any port":          {list("2001:db8::3"), c},
		"IPv6 in brackets":        {list("[2001:db8::3]"), c},
		"an empty list":           {list(), ""},
		"an empty string":         {structpb.NewStringValue(""), ""},
		"none of ours":            {list("10.9.9.9:8000"), ""},
		"another port":            {list("10.0.0.2:9"), ""},
		"of an unexpected shape":  {structpb.NewNumberValue(3), ""},
	} {
		for place, messages := range map[string][]*pb.ProcessingRequest{
			"on headers":      {requestHead(false, post...), requestPiece(completion, true)},
			"on the body":     {requestHead(false, post...), requestPiece(completion, true)},
			"without a body":  {requestHead(true, ":method", "GET", ":path", "/v1/models")},
			"on an early one": {requestHead(false, post...), requestPiece("", false), requestPiece(completion, true)},
		} {
			t.Run(name+", "+place, func(t *testing.T) {
				h := newHouse(t, Options{}, ServeOptions{}, spec(a, b, c))
				if tc.hint != nil {
					at := map[string]int{"on the body": 1, "on an early one": 1}[place]
					withSubset(messages[at], tc.hint)
				}
				s := h.script()
				s.send(messages...)
				m := s.receive()
				if d := destinationOf(m); d != tc.want {
					t.Errorf("destination %q, want %q", d, tc.want)
				}
				if code := m.GetImmediateResponse().GetStatus().GetCode(); tc.want == "" && code != 503 {
					t.Errorf("status %d, want 503", code)
				}
			})
		}
	}
}

// Endpoints that no gateway can reach are not chosen.
func TestPitfall18_SocketsAreNoDestinations(t *testing.T) {
	s := spec("", "127.0.0.1:1")
	s.Endpoints[0].Socket = "/run/engine.sock"
	h := newHouse(t, Options{}, ServeOptions{}, s)
	for range 3 {
		if d := h.script().routed(completion); d != "127.0.0.1:1" {
			t.Errorf("destination %q", d)
		}
	}
}

// What an engine found in its cache is read from JSON and from streams, cut anywhere, and not from what is compressed.
func TestPitfall19_UsageIsReadFromAnswers(t *testing.T) {
	const usage = `"usage":{"prompt_tokens":3,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2}}`
	answers := map[string]struct {
		header []string
		body   string
		want   int64
	}{
		"JSON":       {[]string{":status", "200", "content-type", "application/json"}, `{"choices":[],` + usage + `}`, 1},
		"events":     {[]string{":status", "200", "content-type", "text/event-stream"}, "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[]," + usage + "}\n\ndata: [DONE]\n\n", 1},
		"compressed": {[]string{":status", "200", "content-type", "application/json", "content-encoding", "gzip"}, `{` + usage + `}`, 0},
		"not told":   {[]string{":status", "200", "content-type", "application/json"}, `{"usage":{"prompt_tokens":3}}`, 0},
	}
	for name, tc := range answers {
		for _, size := range []int{1, 3, 50, 1 << 20} {
			t.Run(fmt.Sprintf("%s, %d bytes at a time", name, size), func(t *testing.T) {
				h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
				s := h.script()
				s.routed(completion)
				s.send(responseHead(false, tc.header...))
				s.receive()
				got := ""
				for rest := tc.body; ; {
					n := min(size, len(rest))
					s.send(responsePiece(rest[:n], false))
					got += string(s.receive().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody())
					if rest = rest[n:]; rest == "" {
						break
					}
				}
				s.send(responsePiece("", true))
				s.receive()
				s.cancel()
				h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
				hits := h.picker.Stats()[0].Hits
				if got != tc.body || hits.Answers != tc.want || hits.Delivered != 2*tc.want {
					t.Errorf("%q comes back, hits %+v", got, hits)
				}
			})
		}
	}
}

func TestPitfall20_IPv6(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 here")
	}
	server := &http.Server{Handler: says("six"), ReadHeaderTimeout: patience}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	h := newHouse(t, Options{}, ServeOptions{}, spec(l.Addr().String()))
	for _, hint := range []*structpb.Value{nil, list(l.Addr().String()), structpb.NewStringValue("::1")} {
		if text := read(t, h.envoy(envoytest.Options{Subset: hint}).post("/v1/completions", completion)); text != "six" {
			t.Errorf("answer %q", text)
		}
	}
}

// Gateways that do not say how they send, and those that always stream, get bodies back; both header and metadata name
// the destination, for those that read only one of them.
func TestPitfall21_BodiesAreAlwaysAnswered(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec(engine(t, says("ok"))))
	for name, o := range map[string]envoytest.Options{
		"no word of modes": {NoProtocolConfig: true, Seed: 3},
		"metadata":         {Balance: envoytest.ByMetadata},
		"header":           {Balance: envoytest.ByHeader},
		"half-closed":      {HalfClose: true},
		"like gRPC":        {},
	} {
		t.Run(name, func(t *testing.T) {
			if text := read(t, h.envoy(o).post("/v1/completions", completion)); text != "ok" {
				t.Errorf("answer %q", text)
			}
		})
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 5})
}
