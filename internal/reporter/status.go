package reporter

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/sidecar"
)

// Status is how a reporter does. There are neither keys nor tokens in it.
type Status struct {
	Ranks   []RankStatus   `json:"ranks"`
	Pickers []PickerStatus `json:"pickers"`
	// Panics that ended what was done for one picker or rank.
	Panics uint64 `json:"panics"`
	// Sidecar is the pool's port, where it is served.
	Sidecar *sidecar.Stats `json:"sidecar,omitempty"`
}

// RankStatus is about a rank of the engine.
type RankStatus struct {
	Rank  int             `json:"rank"`
	State string          `json:"state"`
	Stats cachesync.Stats `json:"stats"`
	// SaveErrors counts the saves that failed.
	SaveErrors uint64 `json:"saveErrors"`
}

// PickerStatus is about a replica.
type PickerStatus struct {
	Address string                  `json:"address"`
	Senders []cachesync.SenderStats `json:"senders"`
	// Last is why the last stream ended; empty if none did.
	Last string `json:"last,omitempty"`
}

// Status is how the reporter does now.
func (r *Reporter) Status() Status {
	s := Status{Panics: r.panics.Load()}
	if r.Sidecar != nil {
		stats := r.Sidecar()
		s.Sidecar = &stats
	}
	for _, k := range r.ranks {
		s.Ranks = append(s.Ranks, RankStatus{
			Rank: k.number, State: stateName(k.mirror), Stats: k.mirror.Stats(), SaveErrors: k.saveErrors.Load(),
		})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pickers {
		s.Pickers = append(s.Pickers, p.status())
	}
	sort.Slice(s.Pickers, func(i, j int) bool { return s.Pickers[i].Address < s.Pickers[j].Address })
	return s
}

func (p *picker) status() PickerStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := PickerStatus{Address: p.addr, Last: p.last}
	for _, sender := range p.senders {
		var stats cachesync.SenderStats
		if sender != nil {
			stats = sender.Stats()
		}
		out.Senders = append(out.Senders, stats)
	}
	return out
}

// stateName is a state without its prefix.
func stateName(m *cachesync.Mirror) string {
	return strings.ToLower(strings.TrimPrefix(m.State().String(), "STATE_"))
}

// StatusHandler serves /healthz, /status (JSON) and /metrics (Prometheus text).
func (r *Reporter) StatusHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		_ = encoder.Encode(r.Status()) // a client that has gone misses the answer
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprint(w, r.Status().metrics())
	})
	return mux
}

// metrics is the status as Prometheus text.
func (s Status) metrics() string {
	var b strings.Builder
	series := func(name, kind, help string, value func(r *RankStatus) float64) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
		for i := range s.Ranks {
			r := &s.Ranks[i]
			fmt.Fprintf(&b, "%s{rank=\"%d\"} %s\n", name, r.Rank, strconv.FormatFloat(value(r), 'g', -1, 64))
		}
	}
	series("kvasir_reporter_synced", "gauge", "Whether every batch of this life of the engine was applied.",
		func(r *RankStatus) float64 {
			if r.State == "synced" {
				return 1
			}
			return 0
		})
	for _, one := range []struct {
		name, help string
		value      func(*cachesync.Stats) int
	}{
		{"blocks", "Blocks that the engine holds.", func(s *cachesync.Stats) int { return s.Blocks }},
		{"orphan_blocks", "Blocks that wait for the beginning of their chain.", func(s *cachesync.Stats) int { return s.Orphans }},
	} {
		series("kvasir_reporter_"+one.name, "gauge", one.help, func(r *RankStatus) float64 { return float64(one.value(&r.Stats)) })
	}
	for _, one := range []struct {
		name, help string
		value      func(*cachesync.Stats) uint64
	}{
		{"batches", "Event batches applied.", func(s *cachesync.Stats) uint64 { return s.Batches }},
		{"stored_blocks", "Blocks announced, copies included.", func(s *cachesync.Stats) uint64 { return s.Stored }},
		{"removed_blocks", "Blocks removed, copies included.", func(s *cachesync.Stats) uint64 { return s.Removed }},
		{"epochs", "Lives of the engine begun.", func(s *cachesync.Stats) uint64 { return s.Epochs }},
		{"refused_blocks", "Blocks that there was no room for.", func(s *cachesync.Stats) uint64 { return s.Refused }},
		{"orphans_dropped", "Blocks without a known beginning that were given up.", func(s *cachesync.Stats) uint64 { return s.OrphansDropped }},
	} {
		series("kvasir_reporter_"+one.name+"_total", "counter", one.help, func(r *RankStatus) float64 { return float64(one.value(&r.Stats)) })
	}
	series("kvasir_reporter_save_errors_total", "counter", "Saves of the state that failed, as on a full disk; the last good one stays.",
		func(r *RankStatus) float64 { return float64(r.SaveErrors) })
	name := "kvasir_reporter_panics_total"
	fmt.Fprintf(&b, "# HELP %s Faults of the reporter that interrupted one picker's report, or a save.\n# TYPE %s counter\n%s %d\n", name, name, name, s.Panics)
	name = "kvasir_reporter_picker_connected"
	fmt.Fprintf(&b, "# HELP %s Whether the picker has answered on the present stream.\n# TYPE %s gauge\n", name, name)
	for _, p := range s.Pickers {
		for rank, sender := range p.Senders {
			n := 0
			if sender.Welcome {
				n = 1
			}
			fmt.Fprintf(&b, "%s{picker=%q,rank=\"%d\"} %d\n", name, p.Address, rank, n)
		}
	}
	if s.Sidecar != nil {
		b.WriteString(sidecarMetrics(s.Sidecar))
	}
	return b.String()
}

// sidecarMetrics are those of the pool's port.
func sidecarMetrics(s *sidecar.Stats) string {
	var b strings.Builder
	for _, one := range []struct {
		name, kind, help string
		value            int64
	}{
		{"requests_total", "counter", "Requests to the pool's port.", s.Requests},
		{"refused_total", "counter", "Requests to the pool's port that were not passed on.", s.Refused},
		{"broken_total", "counter", "Requests that the engine has not answered, or not to the end, although the client has stayed.", s.Broken},
		{"requests_under_way", "gauge", "Requests that have not ended.", s.UnderWay},
		{"held_bytes", "gauge", "Bytes of request bodies that are held.", s.HeldBytes},
	} {
		name := "kvasir_sidecar_" + one.name
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s %d\n", name, one.help, name, one.kind, name, one.value)
	}
	const name = "kvasir_sidecar_handoffs_total"
	fmt.Fprintf(&b, "# HELP %s Requests that a picker has asked to hand over, by what became of that.\n# TYPE %s counter\n", name, name)
	for _, outcome := range slices.Sorted(maps.Keys(s.Handoffs)) {
		fmt.Fprintf(&b, "%s{outcome=%q} %d\n", name, outcome, s.Handoffs[outcome])
	}
	return b.String()
}
