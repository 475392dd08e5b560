package overload

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func usage(r Resource, percent int64) (u Usage) {
	for i := range NumResources {
		u.Limit[i] = 1000
	}
	u.Used[r] = 10 * percent
	return u
}

func TestActionsBeginInTheirOrderAndEndLater(t *testing.T) {
	for r := range Resource(NumResources) {
		m := new(Manager)
		for _, step := range []struct {
			percent int64
			want    [NumActions]bool
		}{
			{79, [NumActions]bool{}},
			{80, [NumActions]bool{LowPriority: true}},
			{88, [NumActions]bool{LowPriority: true, AnonymousBodies: true}},
			{96, [NumActions]bool{true, true, true}},
			{91, [NumActions]bool{true, true, true}}, // not yet
			{89, [NumActions]bool{true, true, false}},
			{82, [NumActions]bool{true, false, false}},
			{74, [NumActions]bool{}},
			{79, [NumActions]bool{}},
		} {
			before := m.State().Active
			if changed := m.Observe(usage(r, step.percent)); changed != (before != step.want) {
				t.Errorf("%v at %d %%: changed %v", r, step.percent, changed)
			}
			if got := m.State().Active; got != step.want {
				t.Errorf("%v at %d %%: %v, want %v", r, step.percent, got, step.want)
			}
			s := m.State()
			reason, message := s.Short()
			if (reason != "") != step.want[LowPriority] || reason != "" && reason != r.reason() {
				t.Errorf("%v at %d %%: %s %s", r, step.percent, reason, message)
			}
			if strings.Contains(message, Connections.refused()) != step.want[Connections] {
				t.Errorf("%v at %d %%: %s", r, step.percent, message)
			}
		}
	}
}

func TestRefusalsAreCounted(t *testing.T) {
	m := new(Manager)
	if m.Refuses(LowPriority) || m.RefusesBody("", -1) {
		t.Error("it refuses without pressure")
	}
	m.Observe(usage(Memory, 90))
	for want, refused := range map[bool][]bool{
		true:  {m.Refuses(LowPriority), m.RefusesBody("", -1), m.RefusesBody("", AnonymousBody+1)},
		false: {m.Refuses(Connections), m.RefusesBody("", AnonymousBody), m.RefusesBody("acme", -1)},
	} {
		for i, got := range refused {
			if got != want {
				t.Errorf("case %d: %v, want %v", i, got, want)
			}
		}
	}
	if got := m.State().Refused; got != [NumActions]uint64{1, 2, 0} {
		t.Errorf("refused: %v", got)
	}
	var none *Manager
	if none.Refuses(Connections) || none.RefusesBody("", -1) {
		t.Error("a nil manager refuses")
	}
}

// TestWhatIsInForceFollowsFromThePressure: whatever the measurements are, an action is in force above its threshold, is not below
// the release, and later ones imply earlier ones.
func TestWhatIsInForceFollowsFromThePressure(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	m := new(Manager)
	for range 10_000 {
		var u Usage
		most := 0.0
		for r := range NumResources {
			u.Used[r], u.Limit[r] = random.Int64N(1200)-100, random.Int64N(3)*500
			if u.Limit[r] > 0 {
				most = max(most, float64(u.Used[r])/float64(u.Limit[r]))
			}
		}
		m.Observe(u)
		s := m.State()
		for a, active := range s.Active {
			if most >= Thresholds[a] && !active || most < Thresholds[a]-release && active {
				t.Fatalf("%+v: %+v", u, s)
			}
			if a > 0 && active && !s.Active[a-1] {
				t.Fatalf("%v is in force without %v", Action(a), Action(a-1))
			}
		}
	}
}

// TestAFullPortIsShown: while connections are turned away, and for a minute after.
func TestAFullPortIsShown(t *testing.T) {
	m := new(Manager)
	gateways := m.Port("gateways")
	m.Port("proxy").Shed() // what is shed for others is no shortage
	if m.Port("gateways") != gateways {
		t.Fatal("a port is counted twice")
	}
	full := func() bool { s := m.State(); reason, _ := s.Short(); return reason == "ConnectionsFull" }
	if m.Observe(Usage{}) || full() {
		t.Error("no connection was turned away, and a port is full")
	}
	gateways.TurnAway()
	if !m.Observe(Usage{}) || !full() {
		t.Error("a connection was turned away, and no port is full")
	}
	for range fullFor - 1 {
		if m.Observe(Usage{}); !full() {
			t.Fatal("a port is not full any more after less than a minute")
		}
	}
	if !m.Observe(Usage{}) || full() {
		t.Error("a port is still full after a minute")
	}
	s := m.State()
	want := []PortState{{Name: "gateways", TurnedAway: 1}, {Name: "proxy", Shed: 1}}
	if !slices.Equal(s.Ports, want) {
		t.Errorf("ports %v, want %v", s.Ports, want)
	}
	var none *Manager
	none.Port("proxy").TurnAway()
}
