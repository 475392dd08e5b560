package vllmcpu

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
)

// attentive is a model with weights of its own, because with those that the engine makes each token follows from the one before: an
// answer would not show whether the right blocks of the prompt were read. Its weights are large enough that every token of the prompt counts.
const attentive = "attentive"

// tensor is a matrix of random weights, or a vector of ones.
type tensor struct {
	shape  []int
	spread float64 // standard deviation; 0 makes ones
}

// attentiveWeights are those of modelConfig's layers.
func attentiveWeights() map[string]tensor {
	const hidden, inner, vocabulary = 64, 128, 151680
	all := map[string]tensor{
		"model.embed_tokens.weight": {[]int{vocabulary, hidden}, 1}, "model.norm.weight": {shape: []int{hidden}},
	}
	for layer := range 2 {
		for name, t := range map[string]tensor{
			"input_layernorm.weight": {shape: []int{hidden}}, "post_attention_layernorm.weight": {shape: []int{hidden}},
			"self_attn.q_proj.weight": {[]int{hidden, hidden}, 0.2}, "self_attn.q_proj.bias": {[]int{hidden}, 0.2},
			"self_attn.k_proj.weight": {[]int{hidden / 2, hidden}, 0.2}, "self_attn.k_proj.bias": {[]int{hidden / 2}, 0.2},
			"self_attn.v_proj.weight": {[]int{hidden / 2, hidden}, 0.8}, "self_attn.v_proj.bias": {[]int{hidden / 2}, 0.2},
			"self_attn.o_proj.weight": {[]int{hidden, hidden}, 0.8},
			"mlp.gate_proj.weight":    {[]int{inner, hidden}, 0.15}, "mlp.up_proj.weight": {[]int{inner, hidden}, 0.15},
			"mlp.down_proj.weight": {[]int{hidden, inner}, 0.15},
		} {
			all[fmt.Sprintf("model.layers.%d.%s", layer, name)] = t
		}
	}
	return all
}

// writeWeights writes a model.safetensors, the same one each time: the length of a JSON header, the header, and the tensors in bfloat16.
func writeWeights(dir string, tensors map[string]tensor) error {
	type entry struct {
		Type    string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	header, at := map[string]entry{}, 0
	names := slices.Sorted(maps.Keys(tensors))
	for _, name := range names {
		size := 2
		for _, n := range tensors[name].shape {
			size *= n
		}
		header[name] = entry{"BF16", tensors[name].shape, [2]int{at, at + size}}
		at += size
	}
	raw, err := json.Marshal(header)
	if err != nil {
		return fmt.Errorf("writing the header of weights: %w", err)
	}
	var out bytes.Buffer
	out.Grow(8 + len(raw) + at)
	_ = binary.Write(&out, binary.LittleEndian, uint64(len(raw))) // to memory
	out.Write(raw)
	random := rand.New(rand.NewPCG(1, 2))
	for _, name := range names {
		t := tensors[name]
		for range (header[name].Offsets[1] - header[name].Offsets[0]) / 2 {
			value := 1.0
			if t.spread > 0 {
				value = random.NormFloat64() * t.spread
			}
			out.Write(binary.LittleEndian.AppendUint16(nil, uint16(math.Float32bits(float32(value))>>16)))
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), out.Bytes(), 0o644); err != nil {
		return fmt.Errorf("writing weights: %w", err)
	}
	return nil
}
