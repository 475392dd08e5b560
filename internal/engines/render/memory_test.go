package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// flood answers every question with a list of ids that ends when released, and says when it has sent so many bytes.
type flood struct {
	bytes   int
	sent    sync.WaitGroup
	release chan struct{}
}

func (f *flood) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	_, _ = io.WriteString(w, `{"token_ids":[1`)
	_, _ = io.WriteString(w, strings.Repeat(",1", f.bytes/2))
	_ = http.NewResponseController(w).Flush()
	f.sent.Done()
	<-f.release
	_, _ = io.WriteString(w, `]}`)
}

func ask(t *testing.T, c *Client, ep *endpoint.Endpoint) (Answer, error) {
	return c.Tokens(t.Context(), ep, openai.ChatCompletions, []byte(chatBody), "")
}

// TestAnswersDrawOnTheRoom: however large the answers of an engine, and however many it is asked for at once. Those of others have room
// meanwhile, and everything is given back.
func TestAnswersDrawOnTheRoom(t *testing.T) {
	const limit, questions = 1 << 20, 16
	room := budget.NewRoom(limit)
	c := newClient(t, Options{Room: room})
	hostile := &flood{bytes: 90 << 10, release: make(chan struct{})}
	bad := start(t, hostile)
	good := start(t, &engine{answers: map[string]answer{chatRender: {200, `{"token_ids":[1` + strings.Repeat(",1", 8000) + `]}`}}})
	good.ID.Pod = "good"
	hostile.sent.Add(questions)
	errs := make(chan error, questions)
	for range questions {
		go func() {
			a, err := ask(t, c, bad)
			if err == nil {
				a.Release()
			}
			errs <- err
		}()
	}
	hostile.sent.Wait()
	if got, err := ask(t, c, good); err != nil || len(got.IDs) != 8001 {
		t.Errorf("another engine's answer of %d ids: %v", len(got.IDs), err)
	} else {
		got.Release()
	}
	close(hostile.release)
	full := 0
	for range questions {
		if err := <-errs; errors.Is(err, budget.ErrFull) {
			full++
		} else if err != nil {
			t.Error(err)
		}
	}
	if full == 0 {
		t.Errorf("answers of %d bytes together had room in %d bytes", questions*hostile.bytes, limit)
	}
	if n := room.Held(); n != 0 || len(c.shares.of) != 0 {
		t.Errorf("%d bytes are left, and %d shares", n, len(c.shares.of))
	}
}

// TestAnAnswerHoldsRoomUntilItsRelease: so many answers that are kept leave none.
func TestAnAnswerHoldsRoomUntilItsRelease(t *testing.T) {
	const limit = 2 << 20
	room := budget.NewRoom(limit)
	c := newClient(t, Options{Room: room})
	ep := start(t, &engine{answers: map[string]answer{chatRender: {200, `{"token_ids":[1` + strings.Repeat(",1", 40_000) + `]}`}}})
	var kept []Answer
	for range 100 {
		got, err := ask(t, c, ep)
		if err != nil {
			if !errors.Is(err, budget.ErrFull) {
				t.Fatal(err)
			}
			break
		}
		kept = append(kept, got)
	}
	held := 0
	for i := range kept {
		held += idBytes * cap(kept[i].IDs)
	}
	if len(kept) == 0 || len(kept) == 100 || int64(held-ownBytes) != room.Held() {
		t.Errorf("%d answers with %d bytes are kept, and %d are taken of %d", len(kept), held, room.Held(), limit)
	}
	for i := range kept {
		kept[i].Release()
		kept[i].Release()
	}
	if got, err := ask(t, c, ep); err != nil {
		t.Error(err)
	} else {
		got.Release()
	}
	if n := room.Held(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}

// TestAnswersThatGrowWhenDecodedAreCounted: a byte of a list of empty objects takes many where it is decoded. Where only ids are read, it
// takes none.
func TestAnswersThatGrowWhenDecodedAreCounted(t *testing.T) {
	const limit = 8 << 20
	grows := "[{}" + strings.Repeat(",{}", 200_000) + "]"
	ep := start(t, &engine{answers: map[string]answer{
		completionRender:       {200, grows},
		"/v1/chat/completions": {200, `{"choices":` + grows + `}`},
		chatRender:             {403, routeClosed},
	}})
	c := newClient(t, Options{Room: budget.NewRoom(limit)})
	if n := testing.AllocsPerRun(1, func() {
		if err := new(answerScan).scan([]byte(grows), "token_ids"); err == nil {
			t.Error("it has ids")
		}
		if _, ok := earlyAnswer([]byte(grows), openai.Completions); ok {
			t.Error("it is an early answer")
		}
	}); n > 20 {
		t.Errorf("reading it takes %v allocations", n)
	}
	if _, err := c.Proof(t.Context(), ep, openai.ChatCompletions, []byte(chatBody), ""); !errors.Is(err, budget.ErrFull) {
		t.Errorf("got %v", err)
	}
	if n := c.shares.room.Held(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}

// TestMoreTokensThanBytesAreRefused: an engine cannot make the picker keep what no request of its size has.
func TestMoreTokensThanBytesAreRefused(t *testing.T) {
	most := extraIDs + idsPerByte*len(chatBody)
	for _, ids := range []int{most, most + 1} {
		ep := start(t, &engine{answers: map[string]answer{chatRender: {200, `{"token_ids":[1` + strings.Repeat(",1", ids-1) + `]}`}}})
		got, err := ask(t, newClient(t, Options{}), ep)
		if refused := errors.Is(err, ErrAnswer); refused != (ids > most) || !refused && len(got.IDs) != ids {
			t.Errorf("%d ids: %v", ids, err)
		}
	}
}

// TestLongEarlyAnswersHaveRoom: the prompts of vLLM 0.17 are read in the same memory as those of releases today.
func TestLongEarlyAnswersHaveRoom(t *testing.T) {
	const ids = 128_000
	list := strings.Repeat("10000,", ids-1) + "10000"
	for _, text := range []string{`[{"token_ids":[` + list + `],"features":null}]`, `[{"type":"token","prompt_token_ids":[` + list + `]}]`} {
		ep := start(t, &engine{answers: map[string]answer{completionRender: {200, text}}})
		c := newClient(t, Options{Room: budget.NewRoom(51 << 20)}) // of a picker with 512 MiB
		got, err := c.Tokens(t.Context(), ep, openai.Completions, []byte(`{"model":"m","prompt":"`+strings.Repeat("word", ids)+`"}`), "")
		if err != nil || len(got.IDs) != ids {
			t.Fatalf("%.20s: %d ids, %v", text, len(got.IDs), err)
		}
		got.Release()
	}
}

// TestQuestionsDrawOnTheRoom: what is made of requests for /tokenize takes several times their bytes, most where they have many fields.
// Requests beyond the room are not asked about; requests of ordinary size are, and everything is given back.
func TestQuestionsDrawOnTheRoom(t *testing.T) {
	room := budget.NewRoom(4 << 20)
	long, many := strings.Repeat("x", 400<<10), strings.Repeat(`,"x":1`, 10_000)
	for name, tc := range map[string]struct {
		body string
		full bool
	}{
		"small":       {chatBody, false},
		"long prompt": {`{"model":"m","messages":[{"role":"user","content":"` + long[:100<<10] + `"}]}`, false},
		"too long":    {`{"model":"m","messages":[{"role":"user","content":"` + long + `"}]}`, true},
		"many fields": {`{"model":"m","messages":[]` + many + `}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := &engine{answers: map[string]answer{chatRender: {403, routeClosed}, "/tokenize": {200, `{"tokens":[1]}`}}}
			ep := start(t, e)
			c := newClient(t, Options{Room: room})
			got, err := c.Tokens(t.Context(), ep, openai.ChatCompletions, []byte(tc.body), "")
			if full := errors.Is(err, budget.ErrFull); full != tc.full || !full && err != nil {
				t.Errorf("got %v", err)
			}
			if asked := slices.Contains(e.paths(), "/tokenize"); asked == tc.full {
				t.Errorf("asked: %t", asked)
			}
			if err == nil {
				got.Release()
			}
			if n := room.Held(); n != 0 {
				t.Errorf("%d bytes are left", n)
			}
		})
	}
}

// TestQuestionsTakeWhatIsCounted: no request makes its questions take more than is drawn on the room for it. What is allocated in all can
// be half as much again: buffers that have grown leave garbage.
func TestQuestionsTakeWhatIsCounted(t *testing.T) {
	const size = 64 << 10
	var fields strings.Builder
	for i := 0; fields.Len() < size; i++ {
		fmt.Fprintf(&fields, `,"%x":1`, i)
	}
	for name, tc := range map[string]struct {
		route openai.Route
		body  string
	}{
		"fields":     {openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"a"}]` + fields.String() + `}`},
		"arguments":  {openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"a"}],"reasoning_effort":"low","chat_template_kwargs":{"a":1` + fields.String() + `}}`},
		"escapes":    {openai.Completions, `{"model":"m","prompt":"` + strings.Repeat(`\u0001`, size/6) + `"}`},
		"text":       {openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", size) + `"}]}`},
		"separators": {openai.Completions, `{"model":"m","prompt":"` + strings.Repeat("\u2028", size/3) + `"}`},
		"numbers":    {openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"a"}],"x":[0` + strings.Repeat(",0", size/2) + `]}`},
	} {
		t.Run(name, func(t *testing.T) {
			body, most := []byte(tc.body), uint64(0)
			var before, after runtime.MemStats
			for range 2 {
				runtime.ReadMemStats(&before)
				questions, err := tokenizeRequests(t.Context(), tc.route, body, SwitchedOff, new(openai.Request))
				if err != nil {
					t.Fatal(err)
				}
				for _, q := range questions {
					if _, err := encoded(q); err != nil {
						t.Fatal(err)
					}
				}
				runtime.ReadMemStats(&after)
				most = max(most, after.TotalAlloc-before.TotalAlloc)
			}
			if most > uint64(questionCost(body)*3/2) {
				t.Errorf("%d bytes are taken for a request of %d, and %d are counted", most, len(body), questionCost(body))
			}
		})
	}
}

// TestIdentitiesDrawOnTheRoom: what an engine says that it is takes little, while it is read and afterwards. A list of models as long as
// engines have it is read.
func TestIdentitiesDrawOnTheRoom(t *testing.T) {
	room := budget.NewRoom(1 << 20)
	adapter := `,{"id":"a","object":"model","created":1,"owned_by":"vllm","root":"/a","parent":"m","max_model_len":null,"permission":[]}`
	for name, tc := range map[string]struct {
		version, models string
		want            Identity
		full            bool
	}{
		"as engines answer": {`{"version":"0.32.0"}`, `{"data":[{"id":"m","root":"/m"}` + strings.Repeat(adapter, 100) + `]}`, Identity{"0.32.0", "/m"}, false},
		"empty entries":     {`{}`, `{"data":[{}` + strings.Repeat(",{}", 300_000) + `]}`, Identity{}, true},
		"numbers":           {`{}`, `{"data":[0` + strings.Repeat(",0", 500_000) + `]}`, Identity{}, true},
		"too large":         {`{}`, `{"data":[]}` + strings.Repeat(" ", 1<<20), Identity{}, true},
		"long texts": {`{"version":"` + strings.Repeat("9", maxVersion+1) + `"}`,
			`{"data":[{"id":"m","root":"` + strings.Repeat("r", maxRoot+1) + `"}]}`, Identity{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, Options{Room: room})
			ep := start(t, &engine{answers: map[string]answer{"/version": {200, tc.version}, "/v1/models": {200, tc.models}}})
			got, err := c.Identity(t.Context(), ep, "m", "")
			if got != tc.want || (err != nil) != tc.full || tc.full && !errors.Is(err, budget.ErrFull) {
				t.Errorf("got a version of %d bytes, a root of %d, %v", len(got.Version), len(got.Root), err)
			}
			if n := room.Held(); n != 0 {
				t.Errorf("%d bytes are left", n)
			}
		})
	}
}

// TestListsTakeWhatIsCounted: no list of models takes more than is drawn on the room for it.
func TestListsTakeWhatIsCounted(t *testing.T) {
	for _, entry := range []string{"0,", "{},", `{"id":""},`} {
		var into struct{ Data []struct{ ID, Root string } }
		body := []byte(`{"data":[` + strings.Repeat(entry, 20_000) + `{}]}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_ = json.Unmarshal(body, &into)
		runtime.ReadMemStats(&after)
		if n := int(after.TotalAlloc - before.TotalAlloc); n > listCost(body) || len(into.Data) != 20_001 {
			t.Errorf("%s: %d bytes are taken for %d entries, and %d are counted", entry, n, len(into.Data), listCost(body))
		}
	}
}
