package images

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// recording is what vLLM and transformers have made of images: see testdata/record.py.
type recording struct {
	Model string
	Files []struct {
		Name, File, Key string
		Width, Height   int
	}
	Qwen []struct {
		Config struct {
			MinPixels *int            `json:"min_pixels"`
			MaxPixels *int            `json:"max_pixels"`
			Size      *map[string]int `json:"size"`
			Patch     int             `json:"patch_size"`
			Merge     int             `json:"merge_size"`
		}
		Sizes [][3]*int // width, height and tokens; no tokens where the processor refuses the image
	}
	Mistral []struct {
		Patch, Merge, Longest int
		Sizes                 [][4]int // width, height, columns and rows
	}
}

func recorded(t testing.TB) *recording {
	t.Helper()
	data, err := os.ReadFile("testdata/images.json")
	if err != nil {
		t.Fatal(err)
	}
	r := &recording{}
	if err := json.Unmarshal(data, r); err != nil {
		t.Fatal(err)
	}
	return r
}

func dataURL(file string) string { return "data:image/any;name=x;base64," + file }

// leftToTheEngine are the files that are not read here.
var leftToTheEngine = []string{"PNG animated", "PNG turned by a text", "JPEG turned by a text", "WebP animated", "WebP turned", "GIF", "BMP", "TIFF"}

func TestFilesHaveTheKeyAndTheSizeOfTheEngine(t *testing.T) {
	r := recorded(t)
	for _, f := range r.Files {
		got, err := Read(t.Context(), dataURL(f.File), r.Model)
		switch left := slices.Contains(leftToTheEngine, f.Name); {
		case left && !errors.Is(err, ErrUnsupported):
			t.Errorf("%s: %+v, %v", f.Name, got, err)
		case !left && (err != nil || got != Image{Key: f.Key, Width: f.Width, Height: f.Height}):
			t.Errorf("%s: %+v, %v, recorded %s, %d × %d", f.Name, got, err, f.Key, f.Width, f.Height)
		}
	}
}

// vocabulary is one of some tokens.
type vocabulary map[string]uint32

func (v vocabulary) TokenID(text string) (uint32, bool) {
	id, ok := v[text]
	return id, ok
}

func modelOf(t testing.TB, config, processor string) (*Model, error) {
	t.Helper()
	return New(fstest.MapFS{"config.json": {Data: []byte(config)}, "preprocessor_config.json": {Data: []byte(processor)}},
		vocabulary{"[IMG_BREAK]": 12, "[IMG_END]": 13})
}

func TestImagesOfQwenHaveAsManyTokensAsItsProcessorMakes(t *testing.T) {
	for _, q := range recorded(t).Qwen {
		processor, err := json.Marshal(map[string]any{"min_pixels": q.Config.MinPixels, "max_pixels": q.Config.MaxPixels, "size": q.Config.Size})
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"} {
			m, err := modelOf(t, fmt.Sprintf(`{"model_type": %q, "image_token_id": 7, "vision_config": {"patch_size": %d, "spatial_merge_size": %d}}`,
				kind, q.Config.Patch, q.Config.Merge), string(processor))
			if err != nil {
				t.Fatal(err)
			}
			for _, size := range q.Sizes {
				got, err := m.Expand([]uint32{1}, *size[0], *size[1])
				switch {
				case size[2] == nil && !errors.Is(err, ErrUnsupported):
					t.Errorf("%d × %d: %d tokens, %v", *size[0], *size[1], len(got)-1, err)
				case size[2] != nil && (err != nil || len(got) != 1+*size[2] || got[0] != 1 || slices.ContainsFunc(got[1:], func(id uint32) bool { return id != 7 })):
					t.Errorf("%d × %d: %d tokens, recorded %d; %v", *size[0], *size[1], len(got)-1, *size[2], err)
				}
			}
		}
	}
}

func TestImagesOfMistralHaveTheRowsOfItsProcessor(t *testing.T) {
	for _, r := range recorded(t).Mistral {
		m, err := modelOf(t, fmt.Sprintf(`{"model_type": "mistral3", "image_token_index": 10, "spatial_merge_size": %d, "vision_config": {"patch_size": %d}}`,
			r.Merge, r.Patch), fmt.Sprintf(`{"size": {"longest_edge": %d}}`, r.Longest))
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range r.Sizes {
			row := append(slices.Repeat([]uint32{10}, size[2]), 12)
			want := slices.Repeat(row, size[3])
			want[len(want)-1] = 13
			if got, err := m.Expand(nil, size[0], size[1]); err != nil || !slices.Equal(got, want) {
				t.Errorf("%d × %d: %d tokens, want %d columns and %d rows; %v", size[0], size[1], len(got), size[2], size[3], err)
			}
		}
	}
}

func TestImagesOfLLaVAHaveOneSize(t *testing.T) {
	for strategy, want := range map[string]int{"default": 576, "full": 577} {
		m, err := modelOf(t, fmt.Sprintf(`{"model_type": "llava", "image_token_index": 32000, "vision_feature_select_strategy": %q,
			"vision_config": {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14}}`, strategy), `{}`)
		if err != nil {
			t.Fatal(err)
		}
		for _, side := range []int{1, 336, 5000} {
			if got, err := m.Expand(nil, side, 20); err != nil || len(got) != want || got[0] != m.Placeholder() {
				t.Errorf("%s: %d tokens, %v", strategy, len(got), err)
			}
		}
	}
}

func TestOtherModelsAreLeftToTheEngine(t *testing.T) {
	for _, c := range [][2]string{
		{`{"model_type": "qwen2"}`, `{}`},
		{`{"model_type": "gemma3"}`, `{}`},
		{`{"model_type": "qwen2_vl", "image_token_id": 7, "vision_config": {"patch_size": 14, "spatial_merge_size": 2}}`, `{}`},
		{`{"model_type": "qwen2_vl", "image_token_id": 7, "vision_config": {"patch_size": 14, "spatial_merge_size": 2}}`, `{"min_pixels": 9, "max_pixels": 3}`},
		{`{"model_type": "qwen2_vl", "vision_config": {"patch_size": 14, "spatial_merge_size": 2}}`, `{"min_pixels": 3, "max_pixels": 9}`},
		{`{"model_type": "qwen2_vl", "image_token_id": 7, "vision_config": {"patch_size": -14, "spatial_merge_size": 2}}`, `{"min_pixels": 3, "max_pixels": 9}`},
		{`{"model_type": "qwen2_vl", "image_token_id": 7, "vision_config": {"patch_size": 14, "spatial_merge_size": 2}}`,
			`{"min_pixels": 3, "max_pixels": 9, "do_resize": false}`},
		{`{"model_type": "mistral3", "image_token_index": 7, "vision_config": {"patch_size": 14}}`, `{"size": {"longest_edge": 1540}}`},
		{`{"model_type": "llava", "image_token_index": 7, "vision_config": {"model_type": "siglip_vision_model", "image_size": 336, "patch_size": 14}}`, `{}`},
		{`{"model_type": 3}`, `{}`}, {`[`, `{}`}, {`{"model_type": "llava"}`, `[`},
	} {
		if m, err := modelOf(t, c[0], c[1]); m != nil || !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s, %s: %v", c[0], c[1], err)
		}
	}
	if _, err := New(fstest.MapFS{}, vocabulary{}); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
}

func TestOnlyBase64DataIsRead(t *testing.T) {
	r := recorded(t)
	file := r.Files[0].File
	for _, url := range []string{"", "data:", "http://127.0.0.1/x.png", "file:///x.png", "data:image/png," + file, "data:image/png;base64",
		"data:image/png;base64,", "data:image/png;base64,====", "data:image/png;base64," + file[:len(file)-1], "data:image/png;base64,\n" + file[1:],
		"data:image/png;base64,!" + file[1:], "data:image/png;base64," + strings.Replace(file, "A", "-", 1), "DATA:image/png;base64," + file,
		"data:image/png;base64," + file + "AAAA"[:4-len(file)%4]} {
		if got, err := Read(t.Context(), url, "m"); err == nil && got.Key == "" || err != nil && !errors.Is(err, ErrUnsupported) {
			t.Errorf("%.60s: %+v, %v", url, got, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(ctx, dataURL(file), "m"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Whatever a client sends, reading ends without a panic, and what is read does not depend on how the file is cut into pieces.
func FuzzFiles(f *testing.F) {
	for _, file := range recorded(f).Files {
		data, err := base64.StdEncoding.DecodeString(file.File)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data[:min(len(data), 1000)], 7)
	}
	f.Fuzz(func(t *testing.T, data []byte, step int) {
		step = max(1, step%64)
		var whole, cut format
		if err := whole.begin(data, len(data)); err != nil {
			if !errors.Is(err, ErrUnsupported) {
				t.Fatal(err)
			}
			return
		}
		if err := cut.begin(data, len(data)); err != nil {
			t.Fatal(err)
		}
		whole.follow(data)
		for piece := range slices.Chunk(data, step) {
			cut.follow(piece)
		}
		w, h, err := whole.end()
		if w2, h2, err2 := cut.end(); w != w2 || h != h2 || (err == nil) != (err2 == nil) {
			t.Fatalf("%d × %d, %v; in pieces of %d bytes %d × %d, %v", w, h, err, step, w2, h2, err2)
		}
		if got, err := Read(t.Context(), dataURL(base64.StdEncoding.EncodeToString(data)), "m"); err == nil && (got.Width != w || got.Height != h) {
			t.Fatalf("%+v, want %d × %d", got, w, h)
		}
	})
}

// BenchmarkRead reads files of sizes that clients send.
func BenchmarkRead(b *testing.B) {
	head, err := base64.StdEncoding.DecodeString(recorded(b).Files[9].File) // a JPEG file
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{100 << 10, 1 << 20, 5 << 20} {
		url := dataURL(base64.StdEncoding.EncodeToString(append(slices.Clone(head), make([]byte, size)...)))
		b.Run(fmt.Sprint(size>>10, "KiB"), func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Read(b.Context(), url, "m"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
