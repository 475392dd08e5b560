package trace

import (
	"bytes"
	"compress/gzip"
	_ "embed" // the slice
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// The slice in the repository: its source, and which part of it was taken.
const (
	Source  = "Mooncake FAST25 conversation trace (https://github.com/kvcache-ai/Mooncake, FAST25-release/traces)"
	Licence = "Apache-2.0"
	// SliceFrom and SliceFor are the window of the published trace that the slice holds.
	SliceFrom = 10 * time.Minute
	SliceFor  = 10 * time.Minute
)

//go:embed conversation-slice.jsonl.gz
var slice []byte

// Slice reads the trace that is in the repository.
func Slice() ([]Request, error) {
	return ReadGzip(bytes.NewReader(slice))
}

// ReadGzip reads a trace, compressed or not.
func ReadGzip(r io.Reader) ([]Request, error) {
	head := make([]byte, 2)
	n, err := io.ReadFull(r, head)
	if err != nil && n == 0 {
		return nil, fmt.Errorf("reading a trace: %w", err)
	}
	whole := io.MultiReader(bytes.NewReader(head[:n]), r)
	if n < 2 || head[0] != 0x1f || head[1] != 0x8b {
		return Read(whole)
	}
	z, err := gzip.NewReader(whole)
	if err != nil {
		return nil, fmt.Errorf("reading a trace: %w", err)
	}
	return Read(z)
}

// Cut is the part of a trace that arrives in [from, from+length), its times counted from the cut. Ids are numbered
// again in the order they appear, which keeps what equality says and makes the file small.
func Cut(list []Request, from, length time.Duration) []Request {
	var out []Request
	numbers := map[int]int{}
	for _, q := range list {
		at := time.Duration(q.Timestamp)*time.Millisecond - from
		if at < 0 || at >= length {
			continue
		}
		cut := Request{Timestamp: at.Milliseconds(), Input: q.Input, Output: q.Output, Blocks: make([]int, len(q.Blocks))}
		for i, id := range q.Blocks {
			number, ok := numbers[id]
			if !ok {
				number = len(numbers)
				numbers[id] = number
			}
			cut.Blocks[i] = number
		}
		out = append(out, cut)
	}
	return out
}

// WriteGzip writes a trace, compressed. The bytes depend on the trace alone.
func WriteGzip(w io.Writer, list []Request) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	lines := json.NewEncoder(z)
	for i := range list {
		if err := lines.Encode(&list[i]); err != nil {
			return fmt.Errorf("writing a trace: %w", err)
		}
	}
	if err := z.Close(); err != nil {
		return fmt.Errorf("writing a trace: %w", err)
	}
	return nil
}
