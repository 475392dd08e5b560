package httpproxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// named is a pool whose name is its model's, without aliases.
func named(name string, addresses ...string) picker.Spec {
	s := spec(addresses...)
	s.Name, s.Model, s.Aliases, s.Adapters = name, name, nil, nil
	s.Policy.AnswerHeaders = "Always"
	for i := range s.Endpoints {
		s.Endpoints[i].ID.Pod = fmt.Sprint(name, "-uid-", i)
	}
	return s
}

// routeTo is a route for the model chat with one backend.
func routeTo(pool string) modelroute.Route {
	return modelroute.Route{Namespace: "default", Name: "chat", Models: []string{"chat"}, Rules: []modelroute.Rule{{
		Backends: []modelroute.Backend{{Pool: "default/" + pool, Weight: 1}},
	}}}
}

func (h *house) apply(specs []picker.Spec, routes ...modelroute.Route) {
	h.t.Helper()
	if err := h.picker.Apply(specs, routes...); err != nil {
		h.t.Fatal(err)
	}
}

// TestTheEngineGetsTheNameOfItsModel: only the model differs from the body that the client has sent, whatever is around it.
func TestTheEngineGetsTheNameOfItsModel(t *testing.T) {
	for _, pool := range []string{"a", "chat-with-a-name-that-is-much-longer-than-the-one-that-clients-use"} {
		got := make(chan string, 1)
		e := engine(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got <- string(body)
			_, _ = io.WriteString(w, `{"model":"`+pool+`","choices":[{"finish_reason":"stop"}]}`)
		})
		specs := []picker.Spec{named(pool, e)}
		h := newHouse(t, Options{}, specs...)
		h.apply(specs, routeTo(pool))
		for _, body := range []string{
			`{"model":"chat","prompt":"x"}`,
			`{ "prompt":"the model \"chat\"" , "model" : "ch\u0061t" }`,
			`{"model":"other","prompt":"x","model":"chat"}`,
			`{"prompt":"` + strings.Repeat("long ", 50_000) + `","model":"chat"}`,
		} {
			answer := h.post("/v1/completions", body)
			text := read(t, answer)
			at := strings.LastIndex(body, `"ch`)
			end := at + 1 + strings.Index(body[at+1:], `"`) + 1
			want := body[:at] + `"` + pool + `"` + body[end:]
			if sent := await(t, "the request at the engine", got); sent != want {
				t.Fatalf("body %.200s, want %.200s", sent, want)
			}
			if answer.StatusCode != http.StatusOK || !strings.Contains(text, pool) {
				t.Errorf("answer %d %s, want the engine's as it is", answer.StatusCode, text)
			}
			if route := answer.Header.Get("X-Kvasir-Route"); route != "default/chat rule=0; pool=default/"+pool+"; weight 1 of 1, by chance" {
				t.Errorf("route %q", route)
			}
		}
		h.idle()
	}
}

func TestModelsOfRoutesAreListed(t *testing.T) {
	specs := []picker.Spec{named("a", nobodyAt(t)), named("b", nobodyAt(t))}
	h := newHouse(t, Options{}, specs...)
	h.apply(specs, routeTo("a"))
	r, err := http.NewRequest(http.MethodGet, h.url+"/v1/models", nil)
	if err != nil {
		t.Fatal(err)
	}
	text := read(t, h.do(r))
	for _, name := range []string{`"id":"chat"`, `"id":"a"`, `"id":"b"`} {
		if !strings.Contains(text, name) {
			t.Errorf("%s lacks %s", text, name)
		}
	}
}
