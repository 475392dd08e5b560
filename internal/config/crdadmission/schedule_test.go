package crdadmission

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/operator/scaling"
)

// TestEveryScheduleThatCanBeReadIsAdmitted: the schema refuses nothing that the autoscaler reads. What it admits without effect (a
// range that runs backwards, a day that never comes) is for a condition.
func TestEveryScheduleThatCanBeReadIsAdmitted(t *testing.T) {
	a := newAdmitter(t)
	r := rand.New(rand.NewPCG(7, 7))
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	number := func() string {
		return pick(fmt.Sprint(r.IntN(62)), fmt.Sprint(r.IntN(14)), fmt.Sprintf("%02d", r.IntN(8)), fmt.Sprint(r.IntN(7)))
	}
	name := func() string { return pick("mon", "SUN", "Sat", "jan", "DEC", "Feb", "day") }
	value := func() string {
		if r.IntN(6) == 0 {
			return name()
		}
		return number()
	}
	field := func() string {
		var parts []string
		for range 1 + r.IntN(8)/6 {
			part := pick("*", "?", value(), value(), value(), value()+"-"+value())
			if r.IntN(5) == 0 {
				part += "/" + number()
			}
			parts = append(parts, part)
		}
		return strings.Join(parts, ",")
	}
	var read, refused int
	for range 1000 {
		var fields [5]string
		for i := range fields {
			fields[i] = "*"
			if r.IntN(2) == 0 {
				fields[i] = field()
			}
		}
		start := strings.Join(fields[:], " ")
		_, err := scaling.ParseSchedule("s", start, "UTC", time.Hour, 1)
		_, admission := a.Admit(t.Context(), []byte(`{"apiVersion": "kvasir.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": "p", "namespace": "d"},
			"spec": {"model": {"name": "m"}, "template": {"spec": {"containers": [{"name": "e", "image": "e"}]}},
			"autoscaling": {"maxReplicas": 2, "schedules": [{"name": "s", "start": "`+start+`", "durationSeconds": 60, "minReplicas": 1}]}}}`), nil)
		if err == nil {
			read++
			if admission != nil {
				t.Fatalf("%q is refused: %v", start, admission)
			}
		}
		if admission != nil {
			refused++
			if !strings.Contains(admission.Error(), "must be a cron expression") {
				t.Fatalf("%q: %v", start, admission)
			}
		}
	}
	if read < 100 || refused < 100 {
		t.Errorf("%d schedules could be read, %d were refused", read, refused)
	}
}
