package load

import (
	"math"
	"sync/atomic"
	"time"
)

// An engine that has stopped still accepts requests, and often answers to scrapes. What it no longer does is to move: no
// piece of any answer arrives, and its figures (requests that run and wait, KV use, generated tokens) stay as they are. All
// pickers see the figures, so that one picker's silent requests do not count while the engine works for others.
//
//	moving --own requests, and silence for longer than they explain--> stalled --any movement--> moving
//
// A stalled endpoint without requests is tried with one after stallTrial.
const (
	// minSilence is the shortest silence that is a stall. Engines move in each step, which takes some milliseconds to a
	// second, and are scraped five times a second while they run requests.
	minSilence = 1500 * time.Millisecond
	// usualSilences is how many times as long as the longest silence of the recent past a stall is.
	usualSilences = 3
	// silenceLife is how long a silence is remembered: its weight falls to a third in this time.
	silenceLife = 2 * time.Minute
	// slowest is the assumed speed of an engine while none is learned, in tokens/s: that of a large model on a CPU.
	slowest = 50
	// slack is how many times as long as predicted a prefill can take.
	slack = 2
	// fewMoves is how many movements must have been seen before silence means anything.
	fewMoves = 8
	// quietReports is how many reports must show no movement. Idle engines are scraped less often.
	quietReports = 2
	// stallTrial is the time after which a stalled endpoint without requests is tried.
	stallTrial = 10 * time.Second
)

// stall watches an endpoint for movement. All but pieces is guarded by the tracker's mu.
type stall struct {
	pieces  atomic.Uint64 // of answers, that have arrived
	known   uint64        // of them, at the last look
	moved   time.Time     // when something has moved last, or work has begun
	moves   int           // with work, at most fewMoves
	longest time.Duration // silence, recently
	quiet   int           // reports since moved
	since   time.Time     // of the verdict, renewed while it holds with requests; zero while the endpoint moves
}

// Pieces counts the pieces of answers that have arrived from the endpoint. Callers add to it.
func (t *Tracker) Pieces() *atomic.Uint64 { return &t.stall.pieces }

// Stalled is View(now).Stalled.
func (t *Tracker) Stalled(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	return t.stalled(now)
}

// working reports whether the endpoint has requests of this picker whose ends are reported.
func (t *Tracker) working() bool { return t.inFlight > len(t.left) }

// move records that the endpoint has moved.
func (t *Tracker) move(now time.Time) {
	s := &t.stall
	silence := now.Sub(s.moved)
	if t.working() && !s.moved.IsZero() {
		faded := time.Duration(float64(s.longest) * math.Exp(-float64(silence)/float64(silenceLife)))
		s.longest = max(silence, faded)
		s.moves = min(s.moves+1, fewMoves)
	}
	s.moved, s.quiet, s.since = now, 0, time.Time{}
}

// begin records that the endpoint has work again.
func (s *stall) begin(now time.Time) { s.moved, s.quiet = now, 0 }

// reportMoves takes a report before it replaces the former one.
func (t *Tracker) reportMoves(at time.Time, r *Report) {
	old := &t.report
	if t.reported.IsZero() || r.Running != old.Running || r.Waiting != old.Waiting || r.KVUsage != old.KVUsage ||
		r.Generated != old.Generated {
		t.move(at)
		return
	}
	t.stall.quiet++
}

// stalled reports whether the endpoint has accepted requests and shows no progress.
func (t *Tracker) stalled(now time.Time) bool {
	s := &t.stall
	if pieces := s.pieces.Load(); pieces != s.known {
		s.known = pieces
		t.move(now)
		return false
	}
	if s.since.IsZero() {
		if !t.working() || now.Sub(s.moved) < minSilence || !t.silent(now) {
			return false
		}
		s.since = now
		return true
	}
	if t.inFlight > 0 || t.peerView(now).InFlight > 0 {
		s.since = now
		return true
	}
	return now.Sub(s.since) < stallTrial
}

// silent reports whether the silence is longer than the present work explains.
func (t *Tracker) silent(now time.Time) bool {
	s := &t.stall
	if s.moves < fewMoves || t.reported.IsZero() || s.quiet < quietReports && now.Sub(t.reported) <= metricsFresh {
		return false
	}
	silence := now.Sub(s.moved)
	if silence < usualSilences*s.longest {
		return false
	}
	all := t.pending
	start, first, ours := t.first()
	if len(t.peers) > 0 {
		_, first, _ = t.firstWithPeers(now, start, first, ours, &all)
	}
	if all.Tokens <= 0 {
		return true
	}
	speed, _ := t.rate.learned(now)
	if speed.PerToken <= 0 {
		speed.PerToken = 1.0 / slowest
	}
	// Nothing moves before a step ends. The first prompt is taken to be one step, because engines without chunked prefill
	// show nothing before its end, and others can be in the same step.
	with := min(max(0, all.Tokens-first.Tokens), stepTokens)
	peers := t.peerView(now)
	seconds := speed.Overhead + speed.PerContext*t.decodingWith(&peers) + speed.Seconds(first) + speed.PerToken*with
	return silence > duration(slack*seconds)
}
