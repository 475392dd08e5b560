package httpproxy

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/callout"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/respcache"
)

// hashed is an embedding of a text: how often it has which words and which three letters, in 256 classes. Texts that share most of them are
// similar.
func hashed(text string) []float32 {
	v := make([]float32, 256)
	add := func(feature string) {
		h := fnv.New32a()
		_, _ = io.WriteString(h, feature)
		v[h.Sum32()%256]++
	}
	text = " " + strings.ToLower(text) + " "
	for word := range strings.FieldsSeq(text) {
		add("word " + word)
	}
	for i := 0; i+3 <= len(text); i++ {
		add(text[i : i+3])
	}
	return v
}

// embedder is an embedding service. It counts its calls.
type embedder struct {
	*httptest.Server
	calls atomic.Int64
	// embed makes the vector of a text; it can be changed.
	embed atomic.Pointer[func(text string) []float32]
}

func newEmbedder(t *testing.T) *embedder {
	t.Helper()
	e := &embedder{}
	f := hashed
	e.embed.Store(&f)
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.calls.Add(1)
		var in struct {
			Model string   `json:"model"`
			Input []string `json:"input"`
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Model != "embed" || r.URL.Path != "/v1/embeddings" ||
			r.Header.Get("Authorization") != "Bearer k-embed" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		type datum struct {
			Index     int       `json:"index"`
			Embedding []float32 `json:"embedding"`
		}
		var out struct {
			Data []datum `json:"data"`
		}
		for i, text := range in.Input {
			out.Data = append([]datum{{i, (*e.embed.Load())(text)}}, out.Data...) // in any order
		}
		_ = json.NewEncoder(w).Encode(&out)
	}))
	t.Cleanup(e.Close)
	return e
}

// alike is a pool whose cache answers similar questions with the vectors of a service.
func alike(s picker.Spec, url string) picker.Spec {
	s.Policy.Responses = picker.ResponseCacheSpec{MaxBytes: 1 << 20, Life: time.Hour, Similar: picker.SimilarSpec{
		Embeddings: respcache.Embeddings{URL: url + "/v1/embeddings", Model: "embed", Key: "k-embed", Timeout: patience}, Least: 0.8,
	}}
	return s
}

// alikeHouse is a proxy in front of pools that ask embedding services.
func alikeHouse(t *testing.T, specs ...picker.Spec) *house {
	t.Helper()
	services := callout.NewServices(time.Now, logr.Discard())
	t.Cleanup(services.Close)
	return houseOf(t, picker.Options{Embeddings: services}, Options{}, specs...)
}

// chat posts a chat with a question and more fields, and returns the body and what the answer says of the cache: miss, hit, or similar.
func (h *house) chat(question, fields string, header ...string) (body, cache string) {
	h.t.Helper()
	quoted, _ := json.Marshal(question)
	answer := h.post("/v1/chat/completions",
		`{"model":"m","temperature":0,"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":`+string(quoted)+`}]`+fields+`}`, header...)
	body, cache = read(h.t, answer), answer.Header.Get("X-Kvasir-Cache")
	if s := answer.Header.Get(picker.SimilarityHeader); s != "" {
		var similarity float64
		if _, err := fmt.Sscan(s, &similarity); err != nil || similarity < 0.8 || similarity > 1 || cache != "hit" || answer.Header.Get("Age") == "" {
			h.t.Errorf("%s, and a similarity of %q", cache, s)
		}
		cache = "similar"
	}
	return body, cache
}

// asks asks a question that is not in the cache, and waits until the answer is.
func (h *house) asks(question, fields string, header ...string) (body string) {
	h.t.Helper()
	n := h.responses().Entries
	body, cache := h.chat(question, fields, header...)
	if cache != "miss" {
		h.t.Fatalf("%q is answered by %q", question, cache)
	}
	eventually(h.t, "it is stored", func() bool { return h.responses().Entries == n+1 })
	return body
}

const (
	capital = "What is the capital of France?"
	again   = "What is the capital of France, please?"
	weather = "Will it rain in Bergen tomorrow?"
)

// TestASimilarQuestionIsAnsweredWithoutAnEngine: with the answer to the other question, its similarity and age; as JSON and as a stream.
func TestASimilarQuestionIsAnsweredWithoutAnEngine(t *testing.T) {
	t.Parallel()
	service := newEmbedder(t)
	address, asked := counting(t)
	h := alikeHouse(t, alike(spec(address), service.URL))
	for i, fields := range []string{``, `,"stream":true`} {
		first := h.asks(capital, fields)
		if body, cache := h.chat(again, fields); cache != "similar" || body != first {
			t.Errorf("%s: %q %s", fields, cache, body)
		}
		calls := service.calls.Load()
		if body, cache := h.chat(capital, fields); cache != "hit" || body != first || service.calls.Load() != calls {
			t.Errorf("the same question: %q %s, after %d calls", cache, body, service.calls.Load()-calls)
		}
		if n := asked.Load(); n != int64(i+1) {
			t.Errorf("%s: the engine was asked %d times", fields, n)
		}
	}
	h.asks(weather, ``)
	s := h.responses()
	if s.Results[respcache.Similar] != 2 || s.Results[respcache.Hit] != 2 || s.Results[respcache.Miss] != 3 || s.Vectors != 3 ||
		s.Embeddings != [respcache.NumEmbeddings]int64{5} || s.Trouble != nil {
		t.Errorf("%+v", s)
	}
	compared := int64(0)
	for _, n := range s.Similarity.Counts {
		compared += n
	}
	if compared != 3 { // the first question of each group had nothing to be compared with
		t.Errorf("%d were compared: %+v", compared, s.Similarity)
	}
}

// TestWhatIsNeverSimilar: the service says that all texts are the same, but not the mark, and still no answer crosses a border of the key.
func TestWhatIsNeverSimilar(t *testing.T) {
	t.Parallel()
	service := newEmbedder(t)
	same := func(text string) []float32 {
		if text == respcache.Mark {
			return []float32{0, 1}
		}
		return []float32{1, 0}
	}
	service.embed.Store(&same)
	address, asked := counting(t)
	h := alikeHouse(t, alike(spec(address), service.URL))
	h.asks(capital, ``)
	if _, cache := h.chat(weather, ``); cache != "similar" {
		t.Fatalf("the service finds all similar, and the cache says %q", cache)
	}
	h.asks("What was the capital of France in 1939?", ``)
	for _, repeats := range []string{`,"echo":true`, `,"return_token_ids":true`, `,"prompt_logprobs":1`} {
		h.asks(capital, repeats)
	}
	chat := func(messages string) string { return `{"model":"m","temperature":0,"messages":` + messages + `}` }
	n := asked.Load()
	for name, tc := range map[string]struct {
		question, fields string
		header           []string
		path, body       string
	}{
		"a salt":                 {fields: `,"cache_salt":"a"`},
		"a stream":               {fields: `,"stream":true`},
		"another seed":           {fields: `,"seed":2`},
		"another limit":          {fields: `,"max_tokens":5`},
		"tools":                  {fields: `,"tools":[{"type":"function","function":{"name":"f"}}]`},
		"a form":                 {fields: `,"response_format":{"type":"json_object"}`},
		"a field without name":   {fields: `,"x":1`},
		"a number":               {question: "What was the capital of France in 1940?"},
		"more numbers":           {question: "What was the capital of France in 1939, 1?"},
		"an echo":                {fields: `,"echo":true`},
		"the prompt's tokens":    {fields: `,"return_token_ids":true`},
		"the prompt's logprobs":  {fields: `,"prompt_logprobs":1`},
		"a long question":        {question: strings.Repeat("France ", 1000)},
		"another key":            {header: []string{"Authorization", "Bearer other"}},
		"a header":               {header: []string{"X-Mode", "terse"}},
		"only equal ones":        {header: []string{"X-Kvasir-Cache", "exact"}},
		"another system prompt":  {body: chat(`[{"role":"system","content":"Be long."},{"role":"user","content":"q"}]`)},
		"no system prompt":       {body: chat(`[{"role":"user","content":"q"}]`)},
		"a turn before":          {body: chat(`[{"role":"system","content":"Be brief."},{"role":"user","content":"p"},{"role":"user","content":"q"}]`)},
		"a name":                 {body: chat(`[{"role":"system","content":"Be brief."},{"role":"user","content":"q","name":"n"}]`)},
		"the assistant":          {body: chat(`[{"role":"system","content":"Be brief."},{"role":"assistant","content":"q"}]`)},
		"a part":                 {body: chat(`[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"q"}]}]`)},
		"two texts":              {body: chat(`[{"role":"system","content":"Be brief."},{"role":"user","content":"q","content":"r"}]`)},
		"another model":          {body: strings.Replace(chat(`[{"role":"system","content":"Be brief."},{"role":"user","content":"q"}]`), `"m"`, `"lora"`, 1)},
		"another path":           {path: "/v1/messages", body: chat(`[{"role":"user","content":"q"}]`)},
		"a completion":           {path: "/v1/completions", body: `{"model":"m","temperature":0,"prompt":"q"}`},
		"embeddings of a text":   {path: "/v1/embeddings", body: `{"model":"m","input":"q"}`},
		"embeddings of another":  {path: "/v1/embeddings", body: `{"model":"m","input":"r"}`},
		"a query":                {path: "/v1/chat/completions?a=b", body: chat(`[{"role":"system","content":"Be brief."},{"role":"user","content":"q"}]`)},
		"with chance":            {fields: `,"temperature":1`},
		"an answer that is kept": {fields: `,"store":true`},
	} {
		var cache string
		if tc.body == "" {
			question := tc.question
			if question == "" {
				question = weather
			}
			_, cache = h.chat(question, tc.fields, tc.header...)
		} else {
			path := tc.path
			if path == "" {
				path = "/v1/chat/completions"
			}
			answer := h.post(path, tc.body, tc.header...)
			read(t, answer)
			cache = answer.Header.Get("X-Kvasir-Cache")
		}
		if n++; asked.Load() != n || cache == "hit" || cache == "similar" {
			t.Errorf("%s: asked %d times, want %d; cache %q", name, asked.Load(), n, cache)
			n = asked.Load()
		}
	}
}

// TestNumbersCountWithTheirSigns: with other signs they are other numbers, though the service finds all texts the same.
func TestNumbersCountWithTheirSigns(t *testing.T) {
	t.Parallel()
	service := newEmbedder(t)
	same := func(text string) []float32 {
		if text == respcache.Mark {
			return []float32{0, 1}
		}
		return []float32{1, 0}
	}
	service.embed.Store(&same)
	address, asked := counting(t)
	h := alikeHouse(t, alike(spec(address), service.URL))
	for i, question := range []string{
		"What is 20.5 degrees in words?", "What is -20.5 degrees in words?", "What is \u221220.5 degrees in words?", "What is 20,5 degrees in words?",
		"What is 20/5 degrees in words?", "What is 20 5 degrees in words?", "What is 20.5% degrees in words?", "What is $20.5 in words?",
		"What is 7 - 3 in words?", "What is 7 + 3 in words?", "What is 73 in words?",
	} {
		if _, cache := h.chat(question, ``); cache == "similar" || asked.Load() != int64(i+1) {
			t.Errorf("%s: cache %q, asked %d times", question, cache, asked.Load())
		}
	}
	for _, question := range []string{"Please, what is 20.5 degrees, in words?", "What is (in words) 7 - 3?", "In words: \"73\"."} {
		if _, cache := h.chat(question, ``); cache != "similar" {
			t.Errorf("%s: the numbers are equal, and the cache says %q", question, cache)
		}
	}
}

// TestSimilarAnswersStayWithTheirTenant: though the service finds all texts the same.
func TestSimilarAnswersStayWithTheirTenant(t *testing.T) {
	t.Parallel()
	service := newEmbedder(t)
	for _, salts := range []bool{false, true} {
		address, asked := counting(t)
		s := alike(keyed(t, address), service.URL)
		s.Policy.Responses.Similar.Least = 0.7
		s.Policy.Admission.Tenants.Salts = salts
		h := alikeHouse(t, s)
		first := h.asks(capital, ``, "Authorization", "Bearer k-acme")
		if body, cache := h.chat(again, ``, "X-Api-Key", "k-acme"); cache != "similar" || body != first {
			t.Errorf("the same tenant: %q %s", cache, body)
		}
		if body, cache := h.chat(again, ``, "Authorization", "Bearer k-small"); cache != "miss" || body == first || asked.Load() != 2 {
			t.Errorf("another tenant: %q %s", cache, body)
		}
		if _, cache := h.chat(again, ``); cache != "" {
			t.Errorf("a stranger gets %q", cache)
		}
	}
}

// TestServicesThatLieOrFail: whatever the embedding service answers, requests are answered by the engine, equal ones from the cache, and the
// counters say what was wrong.
func TestServicesThatLieOrFail(t *testing.T) {
	t.Parallel()
	text := func(s string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) }
	}
	vectors := func(a, b string) http.HandlerFunc {
		return text(`{"data":[{"index":0,"embedding":` + a + `},{"index":1,"embedding":` + b + `}]}`)
	}
	long := "[" + strings.Repeat("1,", respcache.MaxDimensions) + "1]"
	for name, tc := range map[string]struct {
		service http.HandlerFunc
		want    respcache.Embedding
	}{
		"no JSON":                {text("<html>"), respcache.EmbeddingUnusable},
		"nothing":                {text(`{}`), respcache.EmbeddingUnusable},
		"one vector":             {text(`{"data":[{"index":0,"embedding":[1]}]}`), respcache.EmbeddingUnusable},
		"base64":                 {vectors(`"AAAA"`, `"AAAA"`), respcache.EmbeddingUnusable},
		"no number":              {vectors(`[NaN]`, `[1]`), respcache.EmbeddingUnusable},
		"a large number":         {vectors(`[1e39,1]`, `[1,0]`), respcache.EmbeddingUnusable},
		"zero":                   {vectors(`[0,0]`, `[1,0]`), respcache.EmbeddingUnusable},
		"zero for the mark":      {vectors(`[1,0]`, `[0,0]`), respcache.EmbeddingUnusable},
		"other dimensions":       {vectors(`[1,0]`, `[1]`), respcache.EmbeddingUnusable},
		"no dimensions":          {vectors(`[]`, `[]`), respcache.EmbeddingUnusable},
		"many dimensions":        {vectors(long, long), respcache.EmbeddingUnusable},
		"an index twice":         {text(`{"data":[{"index":1,"embedding":[1,0]},{"index":1,"embedding":[0,1]}]}`), respcache.EmbeddingUnusable},
		"an index out of range":  {text(`{"data":[{"index":9,"embedding":[1,0]},{"index":-1,"embedding":[0,1]}]}`), respcache.EmbeddingUnusable},
		"all alike":              {vectors(`[1,0]`, `[1,0.01]`), respcache.EmbeddingAlike},
		"a huge answer":          {text(strings.Repeat(" ", 1<<20)), respcache.EmbeddingFailed},
		"an error":               {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, respcache.EmbeddingFailed},
		"another key":            {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, respcache.EmbeddingFailed},
		"a redirect":             {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/x", http.StatusTemporaryRedirect) }, respcache.EmbeddingFailed},
		"a closed connection":    {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, respcache.EmbeddingFailed},
		"an answer that is long": {func(w http.ResponseWriter, r *http.Request) { w.(http.Flusher).Flush(); <-r.Context().Done() }, respcache.EmbeddingFailed},
		"no answer": {func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}, respcache.EmbeddingFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service := httptest.NewServer(tc.service)
			t.Cleanup(service.Close)
			address, asked := counting(t)
			s := alike(spec(address), service.URL)
			s.Policy.Responses.Similar.Embeddings.Timeout = patience
			if strings.Contains(name, "answer that is long") || name == "no answer" {
				s.Policy.Responses.Similar.Embeddings.Timeout = 50 * time.Millisecond
			}
			h := alikeHouse(t, s)
			first := h.asks(capital, ``)
			if body, cache := h.chat(capital, ``); cache != "hit" || body != first {
				t.Errorf("an equal question: %q %s", cache, body)
			}
			h.asks(again, ``)
			if n := asked.Load(); n != 2 {
				t.Errorf("the engine was asked %d times", n)
			}
			stats := h.responses()
			if stats.Embeddings[tc.want] != 2 || stats.Embeddings[respcache.Embedded] != 0 || stats.Vectors != 0 || stats.Trouble == nil || stats.Trouble.What != tc.want {
				t.Errorf("%v, %d vectors, %+v", stats.Embeddings, stats.Vectors, stats.Trouble)
			}
		})
	}
}

// TestAServiceThatIsDownIsLeftAlone: after some failures it is not called, and requests do not wait.
func TestAServiceThatIsDownIsLeftAlone(t *testing.T) {
	t.Parallel()
	address, _ := counting(t)
	h := alikeHouse(t, alike(spec(address), "http://"+nobodyAt(t)))
	for i := range 6 {
		h.asks(fmt.Sprintf("%s %s", capital, strings.Repeat("!", i)), ``)
	}
	if s := h.responses(); s.Embeddings[respcache.EmbeddingFailed]+s.Embeddings[respcache.EmbeddingNotCalled] != 6 || s.Embeddings[respcache.EmbeddingNotCalled] == 0 ||
		s.Trouble.What != respcache.EmbeddingFailed {
		t.Errorf("%v %+v", s.Embeddings, s.Trouble)
	}
}

// TestAnotherModelBehindTheService: vectors of the model before are dropped, also if the dimensions stay the same; the answers stay for
// equal requests.
func TestAnotherModelBehindTheService(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]func(string) []float32{
		"more dimensions": func(text string) []float32 { return append(hashed(text), 0) },
		"other vectors": func(text string) []float32 {
			v := hashed(text)
			return append(v[100:], v[:100]...)
		},
	} {
		service := newEmbedder(t)
		address, _ := counting(t)
		h := alikeHouse(t, alike(spec(address), service.URL))
		h.asks(capital, ``)
		service.embed.Store(&other)
		h.asks(again, ``)
		if _, cache := h.chat(capital, ``); cache != "hit" {
			t.Errorf("%s: the same question: %q", name, cache)
		}
		if _, cache := h.chat(again+" Now!", ``); cache != "similar" {
			t.Errorf("%s: a question after the change: %q", name, cache)
		}
		if s := h.responses(); s.Models != 1 || s.Vectors != 1 || s.Entries != 2 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// TestSimilarQuestionsAtOnce: many clients, a service that changes its model all the time, and a policy that changes; each answer is one to
// the client's own group.
func TestSimilarQuestionsAtOnce(t *testing.T) {
	t.Parallel()
	service := newEmbedder(t)
	address := engine(t, func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Seed int `json:"seed"`
		}
		_ = json.NewDecoder(r.Body).Decode(&in)
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"choices":[{"message":{"content":"%d"},"finish_reason":"stop"}]}`, in.Seed)
	})
	s := alike(spec(address), service.URL)
	h := alikeHouse(t, s)
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := range 40 {
				seed := i % 3
				body, _ := h.chat(capital+strings.Repeat("?", i%7), fmt.Sprintf(`,"seed":%d`, seed))
				if !strings.Contains(body, fmt.Sprintf(`"%d"`, seed)) {
					t.Errorf("seed %d: %s", seed, body)
				}
				switch {
				case w == 0 && i%10 == 0:
					turned := func(text string) []float32 { v := hashed(text); return append(v[i:], v[:i]...) }
					service.embed.Store(&turned)
				case w == 1 && i%20 == 10:
					s.Policy.Responses.Life += time.Second
					if err := h.picker.Apply([]picker.Spec{s}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	if stats := h.responses(); stats.Results[respcache.Similar] == 0 || stats.Models == 0 {
		t.Errorf("nothing was tested: %+v", stats)
	}
}
