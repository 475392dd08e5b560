package httpproxy

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// seen is what an engine gets of a request.
type seen struct {
	header http.Header
	body   string
}

// seeing starts an engine that hands over what it gets.
func seeing(t *testing.T) (address string, got <-chan seen) {
	c := make(chan seen, 8)
	return engine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		c <- seen{r.Header, string(b)}
		_, _ = io.WriteString(w, "{}")
	}), c
}

// TestClientsDoNotSteerTheEngine: a priority does not reach an engine and a transfer is refused, on every route and in
// every spelling, unless the tenant's class allows it.
func TestClientsDoNotSteerTheEngine(t *testing.T) {
	address, got := seeing(t)
	s := keyed(t, address)
	s.Policy.Admission.Tenants.Classes["all"].SetsPriority, s.Policy.Admission.Tenants.Classes["all"].SetsTransfer = true, true
	s.Policy.Admission.Tenants.Classes["some"].Models = nil // a body without a readable model is not refused for that
	h := newHouse(t, Options{}, s)
	const transfer = `"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"10.0.0.1"}`
	for path, prompt := range map[string]string{
		"/v1/chat/completions": `"messages":[]`, "/v1/completions": `"prompt":"x"`, "/v1/responses": `"input":"x"`, "/v1/messages": `"messages":[]`,
		"/v1/embeddings": `"input":"x"`, "/v1/rerank": `"query":"q"`, "/inference/v1/generate": `"token_ids":[1]`, "/v1/chat/completions/batch": `"messages":[]`,
		"/invocations": `"prompt":"x"`, "/pooling": `"input":"x"`,
	} {
		for fields, want := range map[string]struct {
			status int
			gets   string // in place of fields
		}{
			`,"priority":-5`:                                              {200, strings.Repeat(" ", 14)},
			`,"priority":1,"pri\u006frity":-5,"n":1`:                      {200, "," + strings.Repeat(" ", len(`"priority":1,"pri\u006frity":-5,`)) + `"n":1`},
			`,"priority":"-5"`:                                            {200, strings.Repeat(" ", 16)},
			`,"user":"priority"`:                                          {200, `,"user":"priority"`},
			"," + transfer:                                                {400, ""},
			"," + transfer + `,"kv_transfer_params":null`:                 {400, ""},
			strings.Replace(","+transfer, "_", `\u005f`, 1):               {400, ""},
			`,"vllm_xargs":{"kv_transfer_params":"x"}`:                    {400, ""},
			`,"vllm_xargs":{"kv_cache_report_mode":"full"}`:               {400, ""},
			`,"sampling_params":{"extra_args":{"ec_transfer_params":{}}}`: {400, ""},
			`,"bootstrap_host":"10.0.0.1","bootstrap_room":1`:             {400, ""},
			`,"priority":1,` + transfer:                                   {400, ""},
			`,"x":NaN,` + transfer:                                        {400, ""},
		} {
			head := `{"model":"m",` + prompt
			for _, key := range []string{"small", "acme"} {
				status, gets := want.status, want.gets
				if key == "acme" && !strings.Contains(fields, "NaN") && !strings.Contains(fields, "report_mode") {
					status, gets = 200, fields
				}
				answer := h.post(path, head+fields+"}", "Authorization", "Bearer k-"+key, "Content-Type", "application/json")
				if text := read(t, answer); answer.StatusCode != status || status == 400 && !strings.Contains(text, "error") {
					t.Errorf("%s %s of %s: status %d, want %d: %s", path, fields, key, answer.StatusCode, status, text)
				}
				if answer.StatusCode != 200 {
					continue
				}
				if r := await(t, "the request", got); r.body != head+gets+"}" && status == 200 {
					t.Errorf("%s %s of %s: the engine gets\n%s", path, fields, key, r.body)
				}
			}
		}
	}
	h.idle()
}

// TestHeadersThatSteerAreRemoved: the same of headers, also of requests without a body that is read.
func TestHeadersThatSteerAreRemoved(t *testing.T) {
	address, got := seeing(t)
	s := keyed(t, address)
	s.Policy.Admission.Tenants.Classes["all"].SetsPriority, s.Policy.Admission.Tenants.Classes["all"].SetsTransfer = true, true
	h := newHouse(t, Options{}, s)
	for _, name := range []string{
		"X-Vllm-Priority", "X-Prefiller-Host-Port", "X-Prefiller-Url", "X-Encoder-Hosts-Ports", "X-Data-Parallel-Host-Port", "X-Kv-Cache-Source-Host-Port",
		"X-Amzn-Sagemaker-Adapter-Identifier", "X-Amzn-Sagemaker-Adapter-Alias",
	} {
		for path, body := range map[string]string{"/v1/completions": `{"model":"m","prompt":"x"}`, "/v1/rerank": `{"model":"m"}`, "/invocations": `{"model":"m"}`,
			"/v1/other": `{"model":"m"}`} {
			for key, passes := range map[string]bool{"acme": !strings.HasPrefix(name, "X-Amzn-"), "small": false} {
				if status := h.post(path, body, "Authorization", "Bearer k-"+key, name, "1").StatusCode; status != 200 {
					t.Fatalf("%s %s: status %d", path, name, status)
				}
				want := map[bool]string{true: "1"}[passes]
				if path == "/invocations" && name == "X-Amzn-Sagemaker-Adapter-Identifier" {
					want = "m" // the body's
				}
				if r := await(t, "the request", got); r.header.Get(name) != want {
					t.Errorf("%s %s of %s: the engine gets %q", path, name, key, r.header.Get(name))
				}
			}
		}
	}
	h.idle()
}

// TestInvocationsAreForTheModelOfTheBody: vLLM takes their model from a header, and without it serves the base model.
func TestInvocationsAreForTheModelOfTheBody(t *testing.T) {
	address, got := seeing(t)
	h := newHouse(t, Options{}, spec(address))
	for body, want := range map[string]string{
		`{"model":"m","prompt":"x"}`: "m", `{"model":"an/adapter","prompt":"x"}`: "an/adapter", `{"prompt":"x"}`: "", `{"model":5}`: "",
	} {
		if status := h.post("/invocations", body).StatusCode; status != 200 {
			t.Fatalf("%s: status %d", body, status)
		}
		if r := await(t, "the request", got); r.header.Get("X-Amzn-Sagemaker-Adapter-Identifier") != want || r.body != body {
			t.Errorf("%s: the engine gets %q and %s", body, r.header, r.body)
		}
	}
	if status := h.post("/invocations", `{"model":"m\r\nX-Evil: 1","prompt":"x"}`).StatusCode; status != 404 {
		t.Errorf("a model that no header can have: status %d", status)
	}
	h.idle()
}

// TestAPriorityDoesNotHideAKiller: a request whose priority was dropped is recognized when its client sends it again.
func TestAPriorityDoesNotHideAKiller(t *testing.T) {
	crash := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		panic(http.ErrAbortHandler)
	}
	s := spec(engine(t, crash), engine(t, crash), engine(t, crash))
	h := newHouse(t, Options{}, s)
	const body = `{"model":"m","prompt":"x","priority":1}`
	read(t, h.post("/v1/completions", body))
	answer := h.post("/v1/completions", body)
	if text := read(t, answer); answer.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "engines_broke_off") {
		t.Errorf("status %d: %s", answer.StatusCode, text)
	}
	h.idle()
}

// TestADroppedPriorityStaysDropped: the next endpoint gets the same body as the first.
func TestADroppedPriorityStaysDropped(t *testing.T) {
	full := engine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if found, err := openai.SteeringOf(b); found != 0 || err != nil {
			t.Errorf("the first engine gets %s", b)
		}
		w.WriteHeader(http.StatusInternalServerError)
	})
	address, got := seeing(t)
	h := newHouse(t, Options{}, spec(full, address))
	if status := h.post("/v1/completions", `{"priority":1,"model":"m","prompt":"x"}`).StatusCode; status != 200 {
		t.Fatalf("status %d", status)
	}
	if r := await(t, "the request", got); r.body != strings.Replace(`{"priority":1,"model":"m","prompt":"x"}`, `"priority":1,`, strings.Repeat(" ", 13), 1) {
		t.Errorf("the second engine gets %s", r.body)
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
}
