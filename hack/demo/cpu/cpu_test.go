package cpu

import "testing"

func TestBusyIsAllButIdleAndDisk(t *testing.T) {
	a, err := parse([]byte("cpu  100 20 30 1000 50 1 2 3 7 8\ncpu0 1 2 3 4\n"))
	if err != nil {
		t.Fatal(err)
	}
	if want := (times{busy: 156, all: 1206}); a != want {
		t.Errorf("times are %+v, want %+v", a, want)
	}
	b, err := parse([]byte("cpu  140 20 40 1040 60 1 2 3 7 8\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := between(a, b); got != 0.5 {
		t.Errorf("busy %v of the time, want 0.5", got)
	}
	if got := between(b, a); got != 0 {
		t.Errorf("backwards it is busy %v of the time", got)
	}
}

func TestOtherTextIsRefused(t *testing.T) {
	for name, in := range map[string]string{
		"nothing":         "",
		"too few numbers": "cpu 1 2 3\n",
		"no number":       "cpu 1 2 x 4 5\n",
		"one processor":   "cpu0 1 2 3 4 5\n",
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := parse([]byte(in)); err == nil {
				t.Errorf("read %+v", got)
			}
		})
	}
}

func TestMeterAgreesWithItself(t *testing.T) {
	m := Start(t.Context())
	for range 50 {
		m.look()
	}
	now := m.Now()
	mean, highest := m.Stop()
	if now < 0 {
		if mean >= 0 || highest >= 0 {
			t.Errorf("nothing is known but a mean of %v and a maximum of %v", mean, highest)
		}
		return
	}
	if mean < 0 || mean > 1 || highest < now || highest > 1 {
		t.Errorf("now %v, mean %v, highest %v", now, mean, highest)
	}
}
