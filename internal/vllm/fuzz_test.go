package vllm

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

func FuzzDecode(f *testing.F) {
	for _, path := range goldenFrames(f) {
		f.Add(readHex(f, path), false)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		f.Add([]byte(enc{}.value([]any{1.5, []any{randomStored(rng), randomStored(rng)}, int64(2)})), false)
	}
	f.Add([]byte(enc{}.value([]any{1.0, []any{[]any{"BlockStored", []any{uint64(1)}, nil, []any{uint32(5)}, 1, nil, "GPU",
		pairs{{"cache_salt", "s"}}}}})), true)
	decoders := map[string]*Decoder{"VLLM": NewDecoder("VLLM"), "SGLang": NewDecoder("SGLang")}
	f.Fuzz(func(t *testing.T, payload []byte, sglang bool) {
		engine := "VLLM"
		if sglang {
			engine = "SGLang"
		}
		var got kvevent.Batch
		err := decoders[engine].Decode(payload, &got)
		checkRaw(t, decoders[engine], payload, new(Raw))
		value, rest, malformed := generic(payload)
		if malformed != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("got %v for what is not MessagePack", err)
			}
			return
		}
		want, wantErr := toBatch(value, engine)
		if wantErr != nil || err != nil {
			if !errors.Is(err, ErrLayout) || wantErr == nil {
				t.Fatalf("got %v, want %v", err, wantErr)
			}
			return
		}
		if len(rest) > 0 {
			want.Skipped++
		}
		if diff := cmp.Diff(want, got, same); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
	})
}

func benchmarkFrames(b *testing.B, run func(b *testing.B, payload []byte)) {
	for _, form := range []string{"array", "map"} {
		payload := readHex(b, frames+"/bench_"+form+".hex")
		b.Run(form, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(payload)))
			run(b, payload)
		})
	}
}

// BenchmarkDecode decodes one BlockStored of 32 blocks and 512 tokens.
func BenchmarkDecode(b *testing.B) {
	benchmarkFrames(b, func(b *testing.B, payload []byte) {
		d := NewDecoder("VLLM")
		var batch kvevent.Batch
		for b.Loop() {
			if err := d.Decode(payload, &batch); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkGeneric is the baseline: the same frames into generic values, and no further.
func BenchmarkGeneric(b *testing.B) {
	benchmarkFrames(b, func(b *testing.B, payload []byte) {
		for b.Loop() {
			if _, _, err := generic(payload); err != nil {
				b.Fatal(err)
			}
		}
	})
}
