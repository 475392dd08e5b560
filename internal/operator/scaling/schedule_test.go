package scaling

import (
	"strings"
	"testing"
	"time"
)

func at(t *testing.T, s string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSchedules(t *testing.T) {
	office, err := ParseSchedule("office", "0 8 * * 1-5", "Europe/Oslo", 10*time.Hour, 4)
	if err != nil {
		t.Fatal(err)
	}
	night, err := ParseSchedule("night", "30 23 * * *", "UTC", time.Hour, 2)
	if err != nil {
		t.Fatal(err)
	}
	both := []Schedule{office, night}
	for _, c := range []struct {
		now  string
		want int
		why  string
	}{
		{"2026-11-20T06:59:59Z", 0, "a second before eight in Oslo, in winter"},
		{"2026-11-20T07:00:00Z", 4, "eight in Oslo"},
		{"2026-11-20T16:59:59Z", 4, "the last second"},
		{"2026-11-20T17:00:00Z", 0, "ten hours later"},
		{"2026-07-03T06:00:00Z", 4, "summer time"},
		{"2026-11-21T09:00:00Z", 0, "a Saturday"},
		{"2026-11-21T00:15:00Z", 2, "begun yesterday"},
		{"2026-10-25T23:45:00Z", 2, "the day the clocks go back"},
	} {
		if got := scheduled(both, at(t, c.now)); got != c.want {
			t.Errorf("%s (%s): least size %d, want %d", c.now, c.why, got, c.want)
		}
	}
}

func TestTheHighestActiveScheduleWins(t *testing.T) {
	var all []Schedule
	for _, least := range []int{3, 7, 5} {
		s, err := ParseSchedule("s", "0 0 * * *", "UTC", 24*time.Hour, least)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if got := scheduled(all, at(t, "2026-11-20T12:00:00Z")); got != 7 {
		t.Errorf("least size %d, want 7", got)
	}
}

func TestLeapDaysCome(t *testing.T) {
	if _, err := ParseSchedule("leap", "0 8 29 2 *", "UTC", time.Hour, 1); err != nil {
		t.Error(err)
	}
}

func TestBadSchedulesNameThemselves(t *testing.T) {
	for _, c := range []struct{ start, zone, want string }{
		{"0 8 * *", "UTC", "five fields"},
		{"0 0 8 * * *", "UTC", "five fields"},
		{"61 8 * * *", "UTC", "five fields"},
		{"@every 1h", "UTC", "five fields"},
		{"CRON_TZ=Asia/Tokyo 0 8 * * *", "UTC", "five fields"},
		{"0 8 * * *", "Mars/Olympus", "time zone"},
		{"0 8 30 2 *", "UTC", "never comes"},
		{"0 8 31 4,6,9,11 *", "UTC", "never comes"},
	} {
		_, err := ParseSchedule("office", c.start, c.zone, time.Hour, 1)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "office") {
			t.Errorf("%q %q: %v, want an error of office about %q", c.start, c.zone, err, c.want)
		}
	}
}
