package httpproxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// saltOf is the cache salt that an engine got, as a parser finds it.
func saltOf(t *testing.T, body string) string {
	t.Helper()
	var r openai.Request
	if err := openai.Parse(openai.Completions, []byte(body), &r); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return r.CacheSalt
}

// TestEnginesGetTheTenantsSalt: the body that reaches the engine has the salt of the tenant in place of the client's, and is
// unchanged otherwise, also on the second engine; what cannot have one is refused.
func TestEnginesGetTheTenantsSalt(t *testing.T) {
	address, got := seeing(t)
	failing := engine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	s := keyed(t, failing, address)
	s.Policy.Admission.Tenants.Salts = true
	s.Policy.AnswerHeaders = "Always"
	h := newHouse(t, Options{}, s)
	salts := map[string]string{}
	const head = `{"model":"m","prompt":"x"`
	for _, fields := range []string{"", `,"cache_salt":"a"`, `,"cache\u005fsalt":"a","priority":1`, `,"cache_salt":"b","n":1`} {
		for _, key := range []string{"small", "acme"} {
			for range 2 {
				answer := h.post("/v1/completions", head+fields+"}", "Authorization", "Bearer k-"+key)
				if text := read(t, answer); answer.StatusCode != 200 {
					t.Fatalf("%s: status %d: %s", fields, answer.StatusCode, text)
				}
				r := await(t, "the request", got)
				salt := saltOf(t, r.body)
				if last := salts[key+fields]; last != "" && last != salt {
					t.Errorf("%s of %s: the salts %s and %s", fields, key, last, salt)
				}
				salts[key+fields] = salt
				if !strings.HasPrefix(r.body, head) || strings.Contains(fields, `"n"`) != strings.Contains(r.body, `"n":1`) {
					t.Errorf("%s: the engine gets %s", fields, r.body)
				}
				for name, values := range answer.Header {
					if strings.Contains(strings.Join(values, " "), salt) {
						t.Errorf("the header %s has the salt", name)
					}
				}
			}
		}
	}
	if salts[`small,"cache_salt":"a"`] != salts[`small,"cache\u005fsalt":"a","priority":1`] {
		t.Error("the same salt in another spelling counts as another one")
	}
	distinct := map[string]bool{}
	for _, salt := range salts {
		distinct[salt] = true
	}
	if len(distinct) != 6 || distinct[""] || distinct["a"] || distinct["b"] {
		t.Errorf("salts %v", salts)
	}
	for path, want := range map[string]int{
		"/v1/embeddings": 400, "/v1/rerank": 400, "/v1/audio/transcriptions": 400,
		"/invocations": 400, "/tokenize": 200, "/v1/messages/count_tokens": 200,
	} {
		body := `{"model":"m","input":"x","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`
		answer := h.post(path, body, "Authorization", "Bearer k-acme")
		text := read(t, answer)
		if answer.StatusCode != want || want == 400 && !strings.Contains(text, "The policy separates the caches of tenants") {
			t.Errorf("%s: status %d, want %d: %s", path, answer.StatusCode, want, text)
		}
		if answer.StatusCode == 200 {
			if r := await(t, "the request", got); r.body != body {
				t.Errorf("%s: the engine gets %s", path, r.body)
			}
		}
	}
	releases := picker.Releases{s.Endpoints[0].Epoch(): 26, s.Endpoints[1].Epoch(): 26}
	for _, want := range []int{400, 200} { // with old engines, and with a newer one
		h.picker.SetExact(s.Namespace, s.Name, &picker.Exact{Releases: &releases})
		for path, status := range map[string]int{"/v1/messages": want, "/inference/v1/generate": 200} {
			body := `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}],"token_ids":[1],"cache_salt":"a"`
			answer := h.post(path, body+"}", "Authorization", "Bearer k-acme")
			if text := read(t, answer); answer.StatusCode != status {
				t.Errorf("%s: status %d, want %d: %s", path, answer.StatusCode, status, text)
			} else if status == 200 {
				r := await(t, "the request", got)
				if own, err := openai.SaltOf([]byte(r.body)); err != nil || own != s.Seed.TenantSalt("acme", "a") {
					t.Errorf("%s: the engine gets %s", path, r.body)
				}
			}
		}
		releases = picker.Releases{s.Endpoints[0].Epoch(): 26, s.Endpoints[1].Epoch(): 27}
	}
	h.idle()
}

// TestASaltDoesNotHideAKiller: the salt, which clients do not see, makes no other request of one that is sent
// again.
func TestASaltDoesNotHideAKiller(t *testing.T) {
	crash := func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }
	s := keyed(t, engine(t, crash), engine(t, crash), engine(t, crash))
	s.Policy.Admission.Tenants.Salts = true
	h := newHouse(t, Options{}, s)
	const body = `{"model":"m","prompt":"x","cache_salt":"a"}`
	read(t, h.post("/v1/completions", body, "Authorization", "Bearer k-acme"))
	answer := h.post("/v1/completions", body, "Authorization", "Bearer k-acme")
	if text := read(t, answer); answer.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "engines_broke_off") {
		t.Errorf("status %d: %s", answer.StatusCode, text)
	}
	h.idle()
}

// TestARequestKeepsItsSaltWhileItWaits: a request that is picked for again has the same salt, not the salt of its salt, and
// is not too large because of it.
func TestARequestKeepsItsSaltWhileItWaits(t *testing.T) {
	const body = `{"model":"m","prompt":"x"}`
	full := make(chan string, 8)
	address, got := seeing(t)
	refuses := engine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		full <- string(b)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(fullBody))
	})
	s := keyed(t, refuses)
	s.Policy.Admission.Tenants.Salts = true
	s.MaxRequestBody = int64(len(body))
	s.Policy.Admission.Queue, s.Policy.Admission.WaitBudget = true, time.Hour
	s.Policy.Admission.Limits.Requests, s.Policy.Admission.Limits.Bytes = 1000, 1<<20
	s.Policy.Admission.Limits.TTL, s.Policy.Admission.Limits.Hold = time.Hour, time.Hour
	h := newHouse(t, Options{}, s)
	answers := make(chan int, 1)
	go func() {
		answer := h.post("/v1/completions", body, "Authorization", "Bearer k-acme")
		read(t, answer)
		answers <- answer.StatusCode
	}()
	first := saltOf(t, await(t, "the first engine has refused", full))
	eventually(t, "it waits", func() bool { return h.picker.Stats()[0].Admission.Waiting == 1 })
	other := s
	other.Endpoints = append(other.Endpoints, spec(refuses, address).Endpoints[1])
	if err := h.picker.Apply([]picker.Spec{other}); err != nil {
		t.Fatal(err)
	}
	if again := saltOf(t, await(t, "the request", got).body); again != first || first == "" {
		t.Errorf("salt %q, then %q", first, again)
	}
	if status := await(t, "an answer", answers); status != 200 {
		t.Errorf("status %d", status)
	}
	h.idle()
}

// TestABodyWithoutRoomForItsSaltIsRefused: of budgets that are hardly enough for a body, some are not for its salt. Then the
// request is refused, and nothing is left of it.
func TestABodyWithoutRoomForItsSaltIsRefused(t *testing.T) {
	s := keyed(t, engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "{}")
	}))
	s.Policy.Admission.Tenants.Salts = true
	s.MaxRequestBody = 2 * request.KeepBuffer
	body := `{"model":"m","prompt":"` + strings.Repeat("x", request.KeepBuffer+request.KeepBuffer/8) + `"}` // more than buffers that are reused
	seen := map[int64]int{}
	// A tenant holds at most twice what is free.
	least := int64(len(body)+requestCost) * 3 / 2
	for room := least - 64; room < least+256; room += 16 {
		h := newHouse(t, Options{Budget: budget.New(room, time.Now)}, s)
		answer := h.post("/v1/completions", body, "Authorization", "Bearer k-acme")
		text := read(t, answer)
		failed := h.picker.Stats()[0].Outcomes[picker.Failed]
		if answer.StatusCode != 200 && (answer.StatusCode != 503 || !strings.Contains(text, "overloaded")) {
			t.Fatalf("status %d: %s", answer.StatusCode, text)
		}
		if answer.StatusCode == 503 {
			seen[failed]++
		}
		h.idle()
		h.stop()
	}
	if seen[1] == 0 {
		t.Errorf("none was refused after its pick: %v", seen)
	}
}
