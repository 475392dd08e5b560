// Package images says what vLLM makes of the images in a chat: how many tokens stand for one, and by which key the engine's events
// name it. Of an image only the file's bytes and its size in pixels matter: no pixel is decoded.
package images

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
)

// ErrUnsupported is wrapped by errors about models and images for which only the engine knows the prompt.
var ErrUnsupported = errors.New("images of this kind are read by the engine only")

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}

// Model is what is known of a model that takes images. It does not change and is safe for many goroutines.
type Model struct {
	// placeholder is the token that the chat template writes for an image.
	placeholder uint32
	// expand appends the tokens that replace the placeholder for an image of a size in pixels.
	expand func(dst []uint32, width, height int) ([]uint32, error)
}

// Placeholder is the token that stands for an image until it is replaced.
func (m *Model) Placeholder() uint32 { return m.placeholder }

// Expand appends the tokens that the engine puts in the place of a placeholder, for an image of a size in pixels.
func (m *Model) Expand(dst []uint32, width, height int) ([]uint32, error) {
	return m.expand(dst, width, height)
}

// maxTokens bounds the tokens of one image: more than any model has in its context.
const maxTokens = 1 << 20

// config is what a model's config.json says of images.
type config struct {
	ModelType        string  `json:"model_type"`
	ImageTokenID     *uint32 `json:"image_token_id"`
	ImageTokenIndex  *uint32 `json:"image_token_index"` // the older name
	SpatialMergeSize int     `json:"spatial_merge_size"`
	FeatureStrategy  string  `json:"vision_feature_select_strategy"`
	Vision           struct {
		ModelType        string `json:"model_type"`
		ImageSize        int    `json:"image_size"`
		PatchSize        int    `json:"patch_size"`
		SpatialMergeSize int    `json:"spatial_merge_size"`
	} `json:"vision_config"`
}

// processor is what a model's preprocessor_config.json says of sizes, in pixels.
type processor struct {
	MinPixels *int `json:"min_pixels"`
	MaxPixels *int `json:"max_pixels"`
	Size      struct {
		ShortestEdge *int `json:"shortest_edge"`
		LongestEdge  *int `json:"longest_edge"`
	} `json:"size"`
	Resizes *bool `json:"do_resize"`
}

// Vocabulary finds the id of a token by its text.
type Vocabulary interface {
	TokenID(text string) (id uint32, ok bool)
}

// New reads the configuration of a model. The error wraps ErrUnsupported if its images cannot be followed here; most models take none.
func New(files fs.FS, vocabulary Vocabulary) (*Model, error) {
	var c config
	if err := readJSON(files, "config.json", &c); err != nil {
		return nil, err
	}
	family, ok := families[c.ModelType]
	if !ok {
		return nil, unsupported("models of the type %q", c.ModelType)
	}
	var p processor
	if err := readJSON(files, "preprocessor_config.json", &p); err != nil {
		return nil, err
	}
	if p.Resizes != nil && !*p.Resizes {
		return nil, unsupported("images without resizing")
	}
	return family(&c, &p, vocabulary)
}

func readJSON(files fs.FS, name string, into any) error {
	data, err := fs.ReadFile(files, name)
	if err != nil {
		return unsupported("%v", err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return unsupported("%s: %v", name, err)
	}
	return nil
}

// families are the kinds of models whose images are followed, by model_type of config.json.
var families = map[string]func(*config, *processor, Vocabulary) (*Model, error){
	"qwen2_vl": qwen, "qwen2_5_vl": qwen, "qwen3_vl": qwen, "qwen3_vl_moe": qwen,
	"mistral3": mistral,
	"llava":    llava,
}
