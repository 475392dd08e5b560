package scaling

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // images have no zone files

	"github.com/robfig/cron/v3"
)

// Schedule raises the least size for some time, again and again.
type Schedule struct {
	name     string
	start    cron.Schedule
	duration time.Duration
	least    int
}

// ParseSchedule reads a cron expression of five fields (minute, hour, day of month, month, day of week) that tells when
// the least size rises to least, for duration, by the clocks of zone, an IANA name. Descriptors such as @daily and a
// zone within the expression are refused.
func ParseSchedule(name, start, zone string, duration time.Duration, least int) (Schedule, error) {
	location, err := time.LoadLocation(zone)
	if err != nil {
		return Schedule{}, fmt.Errorf("schedule %s: unknown time zone %q", name, zone)
	}
	if strings.ContainsAny(start, "@=") {
		return Schedule{}, fmt.Errorf("schedule %s: %q is not a cron expression of five fields", name, start)
	}
	parsed, err := cron.ParseStandard(start)
	if err != nil {
		return Schedule{}, fmt.Errorf("schedule %s: %q is not a cron expression of five fields: %w", name, start, err)
	}
	if spec, ok := parsed.(*cron.SpecSchedule); ok {
		spec.Location = location
	}
	return Schedule{name: name, start: parsed, duration: duration, least: least}, nil
}

// active tells whether a start lies within the last duration.
func (s *Schedule) active(now time.Time) bool {
	start := s.start.Next(now.Add(-s.duration))
	return !start.IsZero() && !start.After(now)
}

// scheduled is the greatest least size that is active; 0 without one.
func scheduled(schedules []Schedule, now time.Time) int {
	least := 0
	for i := range schedules {
		if s := &schedules[i]; s.least > least && s.active(now) {
			least = s.least
		}
	}
	return least
}
