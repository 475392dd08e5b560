package usageotlp

import (
	"context"
	"errors"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	sdk "go.opentelemetry.io/otel/sdk/log"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvasir-dev/kvasir/internal/logging"
)

const (
	// firstPause is how long after a failure a batch is sent again, and longestPause the bound of its doubling.
	firstPause, longestPause = time.Second, 10 * time.Second
	// reportEvery is how often the log reports faults of the collector.
	reportEvery = time.Minute
)

// sender sends batches, one at a time, until the collector has taken them, and counts what becomes of their records.
type sender struct {
	to       sdk.Exporter
	waiting  *atomic.Int64
	patience time.Duration // for one batch
	log      logr.Logger

	sent, lost atomic.Int64

	hurried, aborted context.Context // once there is no time to wait, and no time for another attempt
	hurry, abort     context.CancelFunc

	mu       sync.Mutex // guards what follows
	last     error      // why the last attempt failed; nil if it did not
	reported time.Time  // when the log has reported a fault
	known    int64      // the lost records that it has reported
}

func newSender(to sdk.Exporter, waiting *atomic.Int64, patience time.Duration, log logr.Logger) *sender {
	s := &sender{to: to, waiting: waiting, patience: patience, log: log}
	s.hurried, s.hurry = context.WithCancel(context.Background())
	s.aborted, s.abort = context.WithCancel(context.Background())
	return s
}

// deliver sends a batch.
func (s *sender) deliver(batch []sdk.Record) {
	lost, err := s.send(batch)
	s.settle(int64(len(batch)), lost)
	s.report(err)
}

// send returns how many records of a batch are lost, and why.
func (s *sender) send(batch []sdk.Record) (lost int64, err error) {
	ctx, cancel := context.WithTimeout(s.aborted, s.patience)
	defer cancel()
	all := int64(len(batch))
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		last := s.hurried.Err() != nil
		if err = s.to.Export(ctx, batch); err == nil {
			return 0, nil
		}
		if n, part := rejected(err); part {
			return min(n, all), err
		}
		if !temporary(err) || last || ctx.Err() != nil {
			return all, err
		}
		s.report(err)
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
		case <-s.hurried.Done():
		case <-ctx.Done():
		}
		wait.Stop()
	}
}

// settle counts records that waited, some of them as lost.
func (s *sender) settle(all, lost int64) {
	s.waiting.Add(-all)
	s.lost.Add(lost)
	s.sent.Add(all - lost)
}

// report puts faults into the log, at most one in reportEvery, and their end.
func (s *sender) report(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = err
	lost, now := s.lost.Load(), time.Now()
	switch fault := err != nil || lost > s.known; {
	case !fault && !s.reported.IsZero() && now.Sub(s.reported) >= reportEvery:
		s.reported = time.Time{}
		s.log.Info("Usage records are exported again", "sent", s.sent.Load(), "lost", lost)
	case fault && (s.reported.IsZero() || now.Sub(s.reported) >= reportEvery):
		reason := "too many wait"
		if err != nil {
			reason = short(err)
		}
		logging.Warn(s.log, "Exporting usage records failed", "reason", reason, "lost", lost-s.known, "waiting", s.waiting.Load())
		s.reported, s.known = now, lost
	}
}

// reason is why the last batch was not taken, or another error.
func (s *sender) reason(other error) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.last != nil:
		return short(s.last)
	case other != nil:
		return short(other)
	}
	return "too many waited, or the collector did not take all"
}

// temporary reports whether the collector can take the batch later, by OTLP's rules: gRPC's codes that can be tried again, HTTP's
// statuses 429, 502, 503 and 504, and connections that fail.
func temporary(err error) bool {
	if s, ok := status.FromError(err); ok {
		switch s.Code() {
		case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss, codes.ResourceExhausted:
			return true
		}
		return false
	}
	connection := (*url.Error)(nil)
	return errors.As(err, &connection) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		strings.Contains(err.Error(), "retry-able") // the SDK's type for the statuses is private
}

// partly is how the SDK reports that the collector has taken a part of a batch.
var partly = regexp.MustCompile(`^OTLP partial success: (?s:.*) \((-?\d+) logs rejected\)$`)

// rejected is how many records the collector has refused of a batch that it has taken otherwise; part is false for other errors.
func rejected(err error) (n int64, part bool) {
	found := partly.FindStringSubmatch(err.Error())
	if found == nil {
		return 0, false
	}
	n, failed := strconv.ParseInt(found[1], 10, 64)
	return max(0, n), failed == nil
}

// short is an error without most of what a collector has said in it.
func short(err error) string {
	const most = 300
	text := err.Error()
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + " (cut)"
	}
	return text
}
