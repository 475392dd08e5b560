package reporter

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/relay"
	"github.com/kvasir-dev/kvasir/internal/sidecar"
)

func TestTheDocumentationListsTheReportersMetrics(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	status := Status{Ranks: []RankStatus{{}}, Pickers: []PickerStatus{{Address: "a:1", Senders: []cachesync.SenderStats{{}}}},
		Sidecar: &sidecar.Stats{Handoffs: map[relay.Outcome]int64{relay.HandedOver: 1}}}
	shown := status.metrics()
	help := map[string]string{}
	for _, m := range regexp.MustCompile(`# HELP (\S+) (.*)`).FindAllStringSubmatch(shown, -1) {
		help[m[1]] = m[2]
	}
	if len(help) < 17 {
		t.Errorf("only %d metrics are shown:\n%s", len(help), shown)
	}
	for name, meaning := range help {
		m := regexp.MustCompile(`# TYPE ` + name + ` (\S+)\n[^{ ]+(\{[^ ]*\})? `).FindStringSubmatch(shown)
		if m == nil {
			t.Errorf("%s has no type or no value", name)
			continue
		}
		var labels []string
		for _, l := range regexp.MustCompile(`([a-z]+)=`).FindAllStringSubmatch(m[2], -1) {
			labels = append(labels, "`"+l[1]+"`")
		}
		row := "| `" + name + "` | " + m[1] + " | " + strings.Join(labels, ", ")
		if row = strings.TrimSuffix(row, " ") + " | " + meaning + " |\n"; !strings.Contains(string(text), row) {
			t.Errorf("docs/metrics.md does not have the row\n%s", row)
		}
	}
	for _, m := range regexp.MustCompile("\n\\| `(kvasir_(?:reporter|sidecar)_[a-z_]+)`").FindAllStringSubmatch(string(text), -1) {
		if help[m[1]] == "" {
			t.Errorf("docs/metrics.md has %s, which is not exported", m[1])
		}
	}
}
