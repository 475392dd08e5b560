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

// ParseSchedule reads a cron expression of five fields (minute, hour, day of month, month, day of week) for the times when
// the least size rises to least, for duration, by the clocks of zone, an IANA name. It refuses descriptors such as @daily,
// a zone within the expression, and expressions that never match.
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
	if parsed.Next(time.Date(2024, time.January, 1, 0, 0, 0, 0, time.UTC)).IsZero() { // in the five years after, with a leap day
		return Schedule{}, fmt.Errorf("schedule %s: %q names a day that never comes", name, start)
	}
	return Schedule{name: name, start: parsed, duration: duration, least: least}, nil
}

// active reports whether a start was within the last duration.
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
