package trace

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// AzureHeader begins a trace in the format of ReadAzure.
const AzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens"

// azureTime is the format of times in its lines; any number of digits can follow the seconds. Years after the first add a
// zone.
const azureTime = "2006-01-02 15:04:05"

// ReadAzure reads a trace in the format of the Azure LLM inference traces: lines with commas between the time of the
// arrival and the lengths of prompt and answer in tokens, below AzureHeader. They do not show what prompts have in common,
// so each request is a session of its own with blocks of its own. It fails with ErrFormat, also if the times are not
// ascending.
func ReadAzure(r io.Reader) ([]Request, error) {
	lines := csv.NewReader(r)
	lines.FieldsPerRecord, lines.ReuseRecord = 3, true
	if head, err := lines.Read(); err != nil || strings.Join(head, ",") != AzureHeader {
		return nil, fmt.Errorf("%w: it does not begin with %q", ErrFormat, AzureHeader)
	}
	var (
		list  []Request
		first time.Time
		block int
	)
	for {
		fields, err := lines.Read()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFormat, err)
		}
		n, _ := lines.FieldPos(0)
		if len(list) == maxRequests {
			return nil, fmt.Errorf("%w: more than %d requests", ErrFormat, maxRequests)
		}
		at, err := time.Parse(azureTime, strings.TrimSuffix(fields[0], "+00:00"))
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrFormat, n, err)
		}
		if first.IsZero() {
			first = at
		}
		session := len(list)
		q := Request{Timestamp: at.Sub(first).Milliseconds(), Session: &session}
		for i, length := range []*int{&q.Input, &q.Output} {
			if *length, err = strconv.Atoi(fields[i+1]); err != nil {
				return nil, fmt.Errorf("%w: line %d: %w", ErrFormat, n, err)
			}
		}
		for range (min(q.Input, maxTokens) + BlockTokens - 1) / BlockTokens {
			q.Blocks = append(q.Blocks, block)
			block++
		}
		if err := q.check(map[int]int{}); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrFormat, n, err)
		}
		if len(list) > 0 && q.Timestamp < list[len(list)-1].Timestamp {
			return nil, fmt.Errorf("%w: line %d arrives before the line above it", ErrFormat, n)
		}
		list = append(list, q)
	}
}
