package real

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestRoutesAreTheEngines: the picker lists models as an engine does, and passes each route of the engine on, apart from those
// that docs/routing.md names. A route that is in neither list is new: decide which it belongs to.
func TestRoutesAreTheEngines(t *testing.T) {
	engines := sharedEngines(t)
	e, p := engines[0], startPicker(t, engines, pickerConfig{files: true})
	t.Run("models", func(t *testing.T) {
		want := modelsOf(t, e.url)
		verdict(t, within(patience, func() error {
			if got := modelsOf(t, p.proxy); !slices.Equal(got, want) {
				return fmt.Errorf("the picker lists %+v, the engine %+v", got, want)
			}
			return nil
		}))
		_, list := callURL(http.MethodGet, p.proxy+"/v1/models", nil)
		if status, one := callURL(http.MethodGet, p.proxy+"/v1/models/m", nil); status != http.StatusOK || !strings.Contains(list, one) {
			t.Errorf("/v1/models/m answers %d: %s; the list is %s", status, one, list)
		}
		if status, none := callURL(http.MethodGet, p.proxy+"/v1/models/none", nil); status != http.StatusNotFound || !strings.Contains(none, `"error":{`) {
			t.Errorf("/v1/models/none answers %d: %s", status, none)
		}
	})
	t.Run("no model", func(t *testing.T) {
		r := chat("no model", say("user", text("no model", 300))).with(object{"model": nil})
		verdict(t, p.repeated(r))
	})
	t.Run("invocations", func(t *testing.T) {
		if !atLeast("0.20") {
			t.Skipf("vLLM %s takes the model from the body", run.release)
		}
		for model, want := range map[string]int{"m": http.StatusOK, "none": http.StatusNotFound} {
			r := completion("-", ids(11, 40)).with(object{"model": model})
			r.path = "/invocations"
			if a := p.try(t.Context(), r); a.status != want {
				verdict(t, fmt.Errorf("a request for the model %s: status %d, want %d: %.300s", model, a.status, want, a.body))
			}
		}
	})
	t.Run("each route", func(t *testing.T) {
		for _, r := range routesOf(t, e) {
			verdict(t, p.judgeRoute(t, e, r))
		}
	})
}

// listed is what a list of models says of one.
type listed struct {
	ID, Object, Root string
	MaxModelLen      int `json:"max_model_len"`
}

func modelsOf(t *testing.T, base string) []listed {
	t.Helper()
	status, body := callURL(http.MethodGet, base+"/v1/models", nil)
	var list struct{ Data []listed }
	if err := json.Unmarshal([]byte(body), &list); err != nil || status != http.StatusOK {
		t.Fatalf("/v1/models answers %d: %s (%v)", status, body, err)
	}
	return list.Data
}

// route is a method and a path of an engine.
type route struct{ method, path string }

// routesOf lists the routes that an engine describes.
func routesOf(t *testing.T, e *engine) (routes []route) {
	t.Helper()
	status, body := e.call(http.MethodGet, "/openapi.json", nil)
	var description struct {
		Paths map[string]map[string]any
	}
	if err := json.Unmarshal([]byte(body), &description); err != nil || status != http.StatusOK {
		t.Fatalf("/openapi.json answers %d: %.300s (%v)", status, body, err)
	}
	for path, methods := range description.Paths {
		for method := range methods {
			routes = append(routes, route{strings.ToUpper(method), path})
		}
	}
	if len(routes) < 20 {
		t.Fatalf("the engine describes %d routes", len(routes))
	}
	return routes
}

// closedByDocs are the paths of the table of closed paths in docs/routing.md.
func closedByDocs(t *testing.T) map[string]bool {
	t.Helper()
	page, err := os.ReadFile("../../docs/routing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n| purpose | paths |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	closed := map[string]bool{}
	for _, path := range regexp.MustCompile("`(/[^`]*)`").FindAllStringSubmatch(table, -1) {
		closed[path[1]] = true
	}
	if len(closed) < 50 {
		t.Fatalf("the table names %d paths", len(closed))
	}
	return closed
}

var pathParameter = regexp.MustCompile(`\{[^}]*\}`)

// judgeRoute asks for a route of the engine through the picker. A closed one is the picker's 404, and the engine does not
// see it; of all others the answer is the engine's.
func (p *picker) judgeRoute(t *testing.T, e *engine, r route) error {
	t.Helper()
	path := pathParameter.ReplaceAllString(r.path, "x")
	var body any
	if r.method == http.MethodPost {
		body = object{}
	}
	status, answer := callURL(r.method, p.proxy+path, body)
	closed := status == http.StatusNotFound && strings.Contains(answer, "There is nothing at this path.")
	if want := closedByDocs(t)[r.path]; closed != want {
		return fmt.Errorf("%s %s: answered with %d, %.200s; docs/routing.md says that it is closed: %v", r.method, r.path, status, answer, want)
	}
	if closed || strings.HasPrefix(path, "/v1/models") || path == "/health" {
		return nil
	}
	if direct, said := e.call(r.method, path, body); direct != status {
		return fmt.Errorf("%s %s: the picker answers %d, %.200s, and the engine %d, %.200s", r.method, r.path, status, answer, direct, said)
	}
	return nil
}

// TestPromptLogprobsOfOneCostOthersNothing: requests that want the log probabilities of their prompt cannot read the cache. Sixty
// of them by one client leave the predictions of all other requests as they are.
func TestPromptLogprobsOfOneCostOthersNothing(t *testing.T) {
	engines := sharedEngines(t)
	p := startPicker(t, engines, pickerConfig{files: true})
	for round := range 10 {
		var odd sync.WaitGroup
		for i := range 6 {
			odd.Go(func() { verdict(t, p.send(oddRequest(i)).exact()) })
		}
		odd.Wait()
		verdict(t, p.repeated(chat("beside prompt logprobs", say("user", text(fmt.Sprint("others ", round), 300)))))
		if trusted := p.metric("kvasir_predictions_trusted"); trusted != 1 {
			verdict(t, fmt.Errorf("kvasir_predictions_trusted is %v after %d requests", trusted, 6*(round+1)))
		}
	}
}

// oddRequest repeats one of three prompts and does not read the cache.
func oddRequest(i int) request {
	switch i % 3 {
	case 0:
		return chat("echoed by one client", say("user", text("odd chat", 40))).with(object{"echo": true})
	case 1:
		return chat("prompt logprobs of one client", say("user", text("odd chat", 40))).with(object{"prompt_logprobs": 1})
	}
	return completion("echoed text of one client", text("odd text", 70)).with(object{"echo": true, "logprobs": 1})
}
