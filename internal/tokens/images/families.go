package images

import "math"

// qwen are Qwen2-VL, Qwen2.5-VL and Qwen3-VL: an image is scaled to sides that are multiples of a cell, within a number of pixels, and has
// a token for each cell.
func qwen(c *config, p *processor, _ Vocabulary) (*Model, error) {
	least, most := or(p.MinPixels, p.Size.ShortestEdge), or(p.MaxPixels, p.Size.LongestEdge)
	cell := c.Vision.PatchSize * c.Vision.SpatialMergeSize
	if c.ImageTokenID == nil || least <= 0 || most < least || cell <= 0 {
		return nil, unsupported("a configuration without the sizes of images")
	}
	token := *c.ImageTokenID
	return &Model{placeholder: token, expand: func(dst []uint32, width, height int) ([]uint32, error) {
		w, h, err := scaled(width, height, cell, least, most)
		if err != nil {
			return dst, err
		}
		return repeat(dst, token, (w/cell)*(h/cell))
	}}, nil
}

// maxAspect is the largest ratio of the sides that the processor takes.
const maxAspect = 200

// scaled is the size that an image is scaled to: sides that are multiples of cell, and no more and no fewer pixels than given. Divisions
// and roundings are those of Python (smart_resize of transformers).
func scaled(width, height, cell, least, most int) (w, h int, err error) {
	fw, fh, f := float64(width), float64(height), float64(cell)
	if max(fw, fh)/min(fw, fh) > maxAspect {
		return 0, 0, unsupported("images so narrow")
	}
	w, h = int(math.RoundToEven(fw/f))*cell, int(math.RoundToEven(fh/f))*cell
	switch {
	case w*h > most:
		beta := math.Sqrt(fw * fh / float64(most))
		w = max(cell, int(math.Floor(fw/beta/f))*cell)
		h = max(cell, int(math.Floor(fh/beta/f))*cell)
	case w*h < least:
		beta := math.Sqrt(float64(least) / (fw * fh))
		w = int(math.Ceil(fw*beta/f)) * cell
		h = int(math.Ceil(fh*beta/f)) * cell
	}
	return w, h, nil
}

// mistral are Mistral Small 3.1 and its kin in the form of transformers (Mistral3ForConditionalGeneration): an image is scaled down to a
// longest side, and has a token for each cell, one at the end of each row but the last, and one at its end.
func mistral(c *config, p *processor, v Vocabulary) (*Model, error) {
	cell := c.Vision.PatchSize * c.SpatialMergeSize
	longest := or(p.Size.LongestEdge, nil)
	rowEnd, okRow := v.TokenID("[IMG_BREAK]")
	end, okEnd := v.TokenID("[IMG_END]")
	if c.ImageTokenIndex == nil || cell <= 0 || longest <= 0 || !okRow || !okEnd {
		return nil, unsupported("a configuration without the sizes of images")
	}
	token := *c.ImageTokenIndex
	return &Model{placeholder: token, expand: func(dst []uint32, width, height int) ([]uint32, error) {
		w, h := width, height
		if ratio := max(float64(w)/float64(longest), float64(h)/float64(longest)); ratio > 1 {
			w, h = int(math.Floor(float64(w)/ratio)), int(math.Floor(float64(h)/ratio))
		}
		if w <= 0 || h <= 0 {
			return dst, unsupported("images so narrow")
		}
		columns, rows := (w-1)/cell+1, (h-1)/cell+1
		for row := range rows {
			var err error
			if dst, err = repeat(dst, token, columns); err != nil {
				return dst, err
			}
			if row < rows-1 {
				dst = append(dst, rowEnd)
			}
		}
		return append(dst, end), nil
	}}, nil
}

// llava is LLaVA 1.5 with an encoder of CLIP: all images are cut to one square, and have as many tokens.
func llava(c *config, _ *processor, _ Vocabulary) (*Model, error) {
	v := &c.Vision
	if c.ImageTokenIndex == nil || v.ModelType != "clip_vision_model" || v.PatchSize <= 0 || v.ImageSize <= 0 || v.ImageSize%v.PatchSize != 0 {
		return nil, unsupported("a configuration without the sizes of images")
	}
	side := v.ImageSize / v.PatchSize
	n := side * side
	switch c.FeatureStrategy {
	case "default", "": // without the token of the class
	case "full":
		n++
	default:
		return nil, unsupported("features of the kind %q", c.FeatureStrategy)
	}
	token := *c.ImageTokenIndex
	return &Model{placeholder: token, expand: func(dst []uint32, _, _ int) ([]uint32, error) { return repeat(dst, token, n) }}, nil
}

// or is the first value that is present, 0 if none is.
func or(values ...*int) int {
	for _, v := range values {
		if v != nil {
			return *v
		}
	}
	return 0
}

func repeat(dst []uint32, token uint32, n int) ([]uint32, error) {
	if n <= 0 || n > maxTokens {
		return dst, unsupported("images of this size")
	}
	for range n {
		dst = append(dst, token)
	}
	return dst, nil
}
