package render

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// rendered is an answer of a render route with features, in the order in which vLLM 0.32 writes them.
func rendered(ids int, features string) string {
	return `{"request_id":"chatcmpl-a","token_ids":[1` + strings.Repeat(",1", ids-1) + `],"token_offsets":null,"features":` + features +
		`,"content_parts":null,"sampling_params":{"temperature":1.0}}`
}

// TestItemsOfAPrompt: what vLLM 0.32 answered about two images; items of two kinds are in the order of their places.
func TestItemsOfAPrompt(t *testing.T) {
	for name, tc := range map[string]struct {
		ids      int
		features string
		want     []kvblock.Item
		err      error
	}{
		"two images": {84, `{"mm_hashes":{"image":["2c567f5d74127d9e","be55f19f16d2721e"]},` +
			`"mm_placeholders":{"image":[{"offset":45,"length":16},{"offset":74,"length":4}]},"kwargs_data":null,"mm_metadata":null}`,
			[]kvblock.Item{{Key: "2c567f5d74127d9e", Offset: 45, Length: 16}, {Key: "be55f19f16d2721e", Offset: 74, Length: 4}}, nil},
		"with their tensors, which older releases add": {9, `{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":0,"length":9}]},` +
			`"kwargs_data":{"image":["AAAA"]}}`, []kvblock.Item{{Key: "a", Length: 9}}, nil},
		"sound between images": {9, `{"mm_placeholders":{"image":[{"offset":6,"length":2},{"offset":0,"length":2}],"audio":[{"offset":3,"length":1}]},` +
			`"mm_hashes":{"audio":["s\u00f6"],"image":["b","a"]}}`,
			[]kvblock.Item{{Key: "a", Length: 2}, {Key: "sö", Offset: 3, Length: 1}, {Key: "b", Offset: 6, Length: 2}}, nil},
		"no items":              {9, `null`, nil, ErrMultimodal},
		"empty lists":           {9, `{"mm_hashes":{"image":[]},"mm_placeholders":{"image":[]}}`, nil, ErrMultimodal},
		"fewer places":          {9, `{"mm_hashes":{"image":["a","b"]},"mm_placeholders":{"image":[{"offset":0,"length":2}]}}`, nil, ErrAnswer},
		"places of other kinds": {9, `{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":0,"length":2}],"audio":[{"offset":3,"length":2}]}}`, nil, ErrAnswer},
		"places alone":          {9, `{"mm_placeholders":{"image":[{"offset":0,"length":2}]}}`, nil, ErrAnswer},
		"no length":             {9, `{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":1}]}}`, nil, ErrAnswer},
		"before the prompt":     {9, `{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":-1,"length":2}]}}`, nil, ErrAnswer},
		"beyond the prompt":     {9, `{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":8,"length":2}]}}`, nil, ErrAnswer},
		"beyond all numbers":    {9, `{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":1,"length":9223372036854775807}]}}`, nil, ErrAnswer},
		"one in another":        {9, `{"mm_hashes":{"image":["a","b"]},"mm_placeholders":{"image":[{"offset":0,"length":4},{"offset":3,"length":2}]}}`, nil, ErrMultimodal},
		"no name":               {9, `{"mm_hashes":{"image":[""]},"mm_placeholders":{"image":[{"offset":1,"length":2}]}}`, nil, ErrAnswer},
		"a name too long": {9, `{"mm_hashes":{"image":["` + strings.Repeat("a", maxItemName+1) + `"]},"mm_placeholders":{"image":[{"offset":1,"length":2}]}}`,
			nil, ErrAnswer},
		"too many": {2 * maxItems, `{"mm_hashes":{"image":["a"` + strings.Repeat(`,"a"`, maxItems) + `]},"mm_placeholders":{"image":[{"offset":0,"length":1}` +
			manyPlaces(maxItems) + `]}}`, nil, ErrAnswer},
		"hashes that are numbers": {9, `{"mm_hashes":{"image":[1]},"mm_placeholders":{"image":[{"offset":1,"length":2}]}}`, nil, ErrAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			room := budget.NewRoom(64 << 20)
			e := &engine{answers: map[string]answer{chatRender: {200, rendered(tc.ids, tc.features)}}}
			got, err := newClient(t, Options{Room: room}).Items(t.Context(), start(t, e), openai.ChatCompletions, []byte("\ufeff "+chatBody), "key")
			if !errors.Is(err, tc.err) || !reflect.DeepEqual(got.Items, tc.want) || tc.err == nil && len(got.IDs) != tc.ids {
				t.Errorf("%d ids, %+v, %v", len(got.IDs), got.Items, err)
			}
			if err == nil {
				got.Release()
			}
			if n := room.Held(); n != 0 {
				t.Errorf("%d bytes are left", n)
			}
			if want := withoutTensors + chatBody[1:]; len(e.asked) != 1 || e.asked[0] != (question{chatRender, "Bearer key", want}) {
				t.Errorf("asked %q", e.asked)
			}
		})
	}
}

func manyPlaces(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,{"offset":%d,"length":1}`, i+1)
	}
	return b.String()
}

// TestItemsNeedARenderRoute: /tokenize knows no items, so it is not asked, and nothing is made of the request for it.
func TestItemsNeedARenderRoute(t *testing.T) {
	e := &engine{answers: map[string]answer{chatRender: {403, routeClosed}, "/tokenize": {200, `{"tokens":[1]}`}}}
	c, ep := newClient(t, Options{}), start(t, e)
	for range 2 {
		if _, err := c.Items(t.Context(), ep, openai.ChatCompletions, []byte(chatBody), ""); !errors.Is(err, ErrMultimodal) {
			t.Errorf("got %v", err)
		}
	}
	if want := []string{chatRender}; !slices.Equal(e.paths(), want) {
		t.Errorf("asked %q, want %q", e.paths(), want)
	}
	if _, err := c.Tokens(t.Context(), ep, openai.ChatCompletions, []byte(chatBody), ""); err != nil {
		t.Errorf("a text is not tokenized: %v", err)
	}
}

// TestItemsLeaveRoomForTexts: questions about items that engines load slowly do not take the slots of others.
func TestItemsLeaveRoomForTexts(t *testing.T) {
	const slots, most = 8, 2
	arrived, release := make(chan struct{}, slots), make(chan struct{})
	ep := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), "mm_payload") {
			arrived <- struct{}{}
			<-release
		}
		_, _ = io.WriteString(w, `{"token_ids":[1]}`)
	}))
	c := newClient(t, Options{Concurrency: slots})
	var asking sync.WaitGroup
	for range most {
		asking.Go(func() { _, _ = c.Items(t.Context(), ep, openai.ChatCompletions, []byte(chatBody), "") })
	}
	for range most {
		<-arrived
	}
	if _, err := c.Items(t.Context(), ep, openai.ChatCompletions, []byte(chatBody), ""); !errors.Is(err, ErrBusy) {
		t.Errorf("one more than a quarter: %v", err)
	}
	if _, err := c.Tokens(t.Context(), ep, openai.ChatCompletions, []byte(chatBody), ""); err != nil {
		t.Errorf("a text beside them: %v", err)
	}
	close(release)
	asking.Wait()
}
