package lab

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/sim/trace"
)

// firstLine is how much of a file is looked at to see what it is.
const firstLine = 64 << 10

var errNoRequests = errors.New("it has no requests")

// Read reads a workload: a trace in Mooncake's format or in that of the Azure traces, or a decision log, plain or gzip. The
// first line shows which: that of an Azure trace is its header, that of a log names the strategy. skipped are the lines of
// a log that are no records. It fails if there is no request.
//
// Logs and Azure traces have arrivals to the millisecond; those of one millisecond keep their order.
func Read(name string, r io.Reader) (w *Workload, skipped decisionlog.Skipped, err error) {
	in := bufio.NewReaderSize(r, firstLine)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, skipped, fmt.Errorf("reading %s: %w", name, err)
		}
		in = bufio.NewReaderSize(z, firstLine)
	}
	var list []trace.Request
	tick, refused := time.Millisecond, 0
	switch head, _ := in.Peek(len(trace.AzureHeader)); {
	case string(head) == trace.AzureHeader:
		list, err = trace.ReadAzure(in)
	case isLog(in):
		var records []decisionlog.Record
		records, skipped, err = decisionlog.Read(in)
		list = decisionlog.Trace(records)
		refused = len(records) - len(list)
	default:
		tick = trace.Tick
		list, err = trace.Read(in)
	}
	if err == nil && len(list) == 0 {
		err = errNoRequests
	}
	if err != nil {
		return nil, skipped, fmt.Errorf("reading %s: %w", name, err)
	}
	w = FromTrace(name, list)
	w.Dropped.Refused = refused
	for i := range w.Requests {
		w.Requests[i].Tick = min(w.Requests[i].Tick, tick)
	}
	return w, skipped, nil
}

// isLog reports whether the first complete line is one of a decision log.
func isLog(in *bufio.Reader) bool {
	head, _ := in.Peek(firstLine)
	for line := range bytes.Lines(head) {
		var record struct {
			Strategy *string `json:"strategy"`
			Input    *int    `json:"input_length"`
		}
		if json.Unmarshal(line, &record) == nil && record.Input != nil {
			return record.Strategy != nil
		}
	}
	return false
}
