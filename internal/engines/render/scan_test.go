package render

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// slowScan is the same reading with encoding/json.
func slowScan(answer []byte) (ids []uint32, others, objects int, multimodal, ok bool) {
	var list []json.RawMessage
	if json.Unmarshal(answer, &list) != nil || list == nil {
		list = []json.RawMessage{answer}
	}
	for i, raw := range list {
		var fields map[string]json.RawMessage
		if json.Unmarshal(raw, &fields) != nil || fields == nil {
			return nil, 0, 0, false, false
		}
		// Whole numbers only: encoding/json takes null for "leave it as it is".
		var numbers []json.RawMessage
		if json.Unmarshal(fields["token_ids"], &numbers) != nil || numbers == nil {
			return nil, 0, 0, false, false
		}
		for _, n := range numbers {
			var id uint32
			if string(n) == "null" || json.Unmarshal(n, &id) != nil {
				return nil, 0, 0, false, false
			}
			if i == 0 {
				ids = append(ids, id)
			} else {
				others++
			}
		}
		var features map[string]json.RawMessage
		if json.Unmarshal(fields["features"], &features) != nil {
			continue
		}
		for _, name := range []string{"mm_hashes", "mm_placeholders"} {
			var kinds map[string]json.RawMessage
			if json.Unmarshal(features[name], &kinds) != nil {
				continue
			}
			for _, kind := range kinds {
				var items []json.RawMessage
				multimodal = multimodal || json.Unmarshal(kind, &items) == nil && len(items) > 0
			}
		}
	}
	return ids, others, len(list), multimodal, true
}

func FuzzScan(f *testing.F) {
	f.Add(`{"request_id":"x","token_ids":[1,22,4294967295],"features":null,"sampling_params":{"stop":["a\\\"]"]}}`)
	f.Add(`[{"token_ids":[],"features":{"mm_hashes":{"image":["ab"]},"kwargs_data":{"a":[{"b":1.5e3}]}}}]`)
	f.Add(`[ {"token_ids":[ 1 , 2 ]} , {"token_ids":[3]} ]`)
	f.Add(`[{"token_ids":[1]},{"token_ids":[3,4]},{"token_ids":[],"features":{"mm_hashes":{"image":["ab"]}}}]`)
	f.Add(`[{"token_ids":[1]},{}]`)
	f.Add(`{"a":"x\\","b":"\\\"","token_ids":[1.5]}`)
	f.Add(`{"a":"x\\","b":"\\\"","token_ids":[7]}`)
	f.Add(`{"token_ids":[4294967296]}`)
	f.Add(`{"token_ids":[true]}`)
	f.Add(`{"features":{"mm_placeholders":{"image":[{"offset":1}]}},"token_ids":[0]}`)
	f.Add(`{"token_ids":[0,1,2],"features":{"mm_hashes":{"image":["a","b"]},"mm_placeholders":{"image":[{"offset":1,"length":1},{"offset":0,"length":1}]}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var got answerScan
		err := got.scan([]byte(text), "token_ids")
		if items, wrong := got.items(); err == nil && wrong == nil {
			end := 0
			for _, item := range items {
				if item.Key == "" || item.Offset < end || item.Length <= 0 || item.Offset+item.Length > len(got.ids) {
					t.Fatalf("items %+v of %d tokens", items, len(got.ids))
				}
				end = item.Offset + item.Length
			}
		}
		// Only valid answers must be read the same; of invalid ones, none may do harm. Keys written with escapes or
		// twice, and items out of the bounds of nesting, are not what engines send.
		if !json.Valid([]byte(text)) || strings.Contains(text, `\u`) || strings.Count(text, "[")+strings.Count(text, "{") > maxDepth {
			return
		}
		for _, key := range []string{"token_ids", "features", "mm_hashes", "mm_placeholders"} {
			if strings.Count(text, key) > 1+strings.Count(text, "},") {
				return
			}
		}
		ids, others, objects, multimodal, ok := slowScan([]byte(text))
		if ok && len(ids) == 0 && objects == 0 {
			ok = err == nil
		}
		if ok != (err == nil) {
			t.Fatalf("got %v, want success %v", err, ok)
		}
		more := 0
		for _, further := range got.more {
			more += len(further)
		}
		if err == nil && (!slices.Equal(ids, got.ids) || others != more || objects != got.objects || multimodal != got.multimodal) {
			t.Fatalf("got %v and %d of %d, %v; want %v and %d of %d, %v", got.ids, more, got.objects, got.multimodal, ids, others, objects, multimodal)
		}
	})
}

func longAnswer() []byte {
	ids := make([]string, 32768)
	for i := range ids {
		ids[i] = fmt.Sprint(i * 4)
	}
	return []byte(`{"request_id":"x","token_ids":[` + strings.Join(ids, ",") + `],"features":null,"sampling_params":{},"model":"m"}`)
}

func TestScanAllocatesOnlyTheIDs(t *testing.T) {
	answer := longAnswer()
	var s answerScan
	if n := testing.AllocsPerRun(20, func() {
		s = answerScan{}
		if err := s.scan(answer, "token_ids"); err != nil {
			t.Fatal(err)
		}
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
	if len(s.ids) != 32768 || cap(s.ids) != 32768 {
		t.Errorf("%d ids in room for %d", len(s.ids), cap(s.ids))
	}
}

// BenchmarkScan reads an answer of 32768 ids.
func BenchmarkScan(b *testing.B) {
	answer := longAnswer()
	b.SetBytes(int64(len(answer)))
	b.ReportAllocs()
	for b.Loop() {
		var s answerScan
		if err := s.scan(answer, "token_ids"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEncodingJSON is the baseline: the same into a struct.
func BenchmarkEncodingJSON(b *testing.B) {
	answer := longAnswer()
	b.SetBytes(int64(len(answer)))
	b.ReportAllocs()
	for b.Loop() {
		var s struct {
			IDs []uint32 `json:"token_ids"`
		}
		if err := json.Unmarshal(answer, &s); err != nil {
			b.Fatal(err)
		}
	}
}
