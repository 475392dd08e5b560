package relay

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

func seed(t testing.TB, text string) kvblock.Seed {
	t.Helper()
	s, err := kvblock.NewSeed([]byte(strings.Repeat(text, kvblock.MinSeedBytes)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestOnlyPickersOfThePoolMakeTickets: a ticket is taken as it was signed, by one of the seeds, by one of its pods, and for a minute.
func TestOnlyPickersOfThePoolMakeTickets(t *testing.T) {
	now, ours, other := time.Unix(1_800_000_000, 5), seed(t, "a"), seed(t, "b")
	here, there := TagOf("pod-uid-1"), TagOf("pod-uid-2")
	want := Ticket{Address: "10.0.0.1:8000", Pods: []string{there, here}, Within: 1500 * time.Millisecond, ID: 1 << 63}
	good := want.Sign(now, ours)
	sign := func(change func(*Ticket), seeds ...kvblock.Seed) string {
		t := want
		change(&t)
		return t.Sign(now, seeds...)
	}
	six := sign(func(t *Ticket) { t.Address = "[fd00::1]:8000" }, ours)
	named := sign(func(t *Ticket) { t.Address = "metadata.internal:80" }, ours)
	both := sign(func(*Ticket) {}, other, ours)
	parts := strings.Split(good, " ")
	const last = 6
	with := func(i int, text string) string {
		changed := append([]string(nil), parts...)
		changed[i] = text
		return strings.Join(changed, " ")
	}
	unsigned := strings.Join(parts[:last], " ")
	for name, tc := range map[string]struct {
		header string
		at     time.Time
		seeds  []kvblock.Seed
		want   error
	}{
		"as signed":                      {good, now, []kvblock.Seed{ours}, nil},
		"by the second of two seeds":     {good, now, []kvblock.Seed{other, ours}, nil},
		"with two, the first is known":   {both, now, []kvblock.Seed{other}, nil},
		"with two, the second is known":  {both, now, []kvblock.Seed{ours}, nil},
		"with two, neither is known":     {both, now, []kvblock.Seed{seed(t, "c")}, ErrSigned},
		"for a minute":                   {good, now.Add(MaxAge), []kvblock.Seed{ours}, nil},
		"before the clock of the pod":    {good, now.Add(-maxAhead), []kvblock.Seed{ours}, nil},
		"IPv6":                           {six, now, []kvblock.Seed{ours}, nil},
		"no longer":                      {good, now.Add(MaxAge + 2*time.Second), []kvblock.Seed{ours}, ErrAge},
		"of the future":                  {good, now.Add(-maxAhead - 2*time.Second), []kvblock.Seed{ours}, ErrAge},
		"for other pods":                 {sign(func(t *Ticket) { t.Pods = []string{there} }, ours), now, []kvblock.Seed{ours}, ErrPod},
		"for no pod":                     {sign(func(t *Ticket) { t.Pods = nil }, ours), now, []kvblock.Seed{ours}, ErrPod},
		"of another pool":                {good, now, []kvblock.Seed{other}, ErrSigned},
		"while no picker is known":       {good, now, nil, ErrSigned},
		"with another address":           {with(1, "10.0.0.2:8000"), now, []kvblock.Seed{ours}, ErrSigned},
		"with another pod":               {with(2, here), now, []kvblock.Seed{ours}, ErrSigned},
		"with another time":              {with(3, "1800000001"), now, []kvblock.Seed{ours}, ErrSigned},
		"with another bound":             {with(4, "0"), now, []kvblock.Seed{ours}, ErrSigned},
		"with another id":                {with(5, "0"), now, []kvblock.Seed{ours}, ErrSigned},
		"with no signature":              {unsigned + " ", now, []kvblock.Seed{ours}, ErrSigned},
		"with no signature, twice":       {unsigned + " ,", now, []kvblock.Seed{ours}, ErrSigned},
		"with half of one":               {good[:len(good)-11], now, []kvblock.Seed{ours}, ErrSigned},
		"an address, as for llm-d's":     {"10.0.0.1:8000", now, []kvblock.Seed{ours}, ErrForm},
		"empty":                          {"", now, []kvblock.Seed{ours}, ErrForm},
		"two, joined by a proxy":         {good + ", " + good, now, []kvblock.Seed{ours}, ErrSigned},
		"two, joined without a space":    {good + "," + good, now, []kvblock.Seed{ours}, ErrSigned},
		"long":                           {strings.Repeat("1", 1<<20) + " x", now, []kvblock.Seed{ours}, ErrForm},
		"a name, even from a picker":     {named, now, []kvblock.Seed{ours}, ErrForm},
		"a space more, inside the MAC":   {unsigned + "  " + parts[last], now, []kvblock.Seed{ours}, ErrSigned},
		"another version, from a picker": {"1" + good[1:], now, []kvblock.Seed{ours}, ErrSigned},
	} {
		got, err := Open(tc.header, here, tc.at, tc.seeds...)
		if err != tc.want { //nolint:errorlint // they are not wrapped
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
		if err == nil && name != "IPv6" && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v", name, got)
		}
		if err != nil && !reflect.DeepEqual(got, Ticket{}) {
			t.Errorf("%s: %+v beside an error", name, got)
		}
	}
}

// TestTicketsForManyPodsAreRead: a request has up to eight targets, and the root of keys is rotated.
func TestTicketsForManyPodsAreRead(t *testing.T) {
	now, ours, other := time.Unix(1_800_000_000, 5), seed(t, "a"), seed(t, "b")
	want := Ticket{Address: "[fd00:1111:2222:3333:4444:5555:6666:7777]:65535", Within: maxWithin, ID: 1<<64 - 1}
	for i := range 8 {
		want.Pods = append(want.Pods, TagOf(strings.Repeat("x", i)))
	}
	if got, err := Open(want.Sign(now, other, ours), want.Pods[7], now, ours); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestReportsAreReadAsWritten(t *testing.T) {
	for text, want := range map[string]Report{
		"handed_over;prompt=500;cached=16;since=27.125": {Outcome: HandedOver, Prompt: 500, Cached: 16, Since: 27125 * time.Microsecond},
		"handed_over;prompt=500;since=0.001":            {Outcome: HandedOver, Prompt: 500, Cached: -1, Since: time.Microsecond},
		"prefill_failed;cause=late":                     {Outcome: PrefillFailed, Cause: CauseLate, Prompt: -1, Cached: -1},
		"no_parameters;owed=1;prompt=7;cached=0":        {Outcome: NoParameters, Owed: true, Prompt: 7, Cached: 0},
		"refused":                                       {Outcome: Refused, Prompt: -1, Cached: -1},
		"refused;cause=ticket":                          {Outcome: Refused, Cause: CauseTicket, Prompt: -1, Cached: -1},
	} {
		if got := want.String(); got != text {
			t.Errorf("%+v is written %q, want %q", want, got, text)
		}
		if got, ok := ReadReport(text); !ok || got != want {
			t.Errorf("%q is read %+v, %t", text, got, ok)
		}
	}
	for _, text := range []string{
		"", "x", "handed_over;prompt=-1", "handed_over;cached=5", "handed_over;prompt=4;cached=5", "handed_over;prompt=9999999999",
		"handed_over;since=-1", "handed_over;since=NaN", "handed_over;since=+Inf", "handed_over;since=1e30", "prefill_failed;cause=",
		"prefill_failed;cause=magic", "no_parameters;owed=2", "refused;x=" + strings.Repeat("y", maxReport), "handed_over, handed_over",
	} {
		if got, ok := ReadReport(text); ok {
			t.Errorf("%q is read %+v", text, got)
		}
	}
	if got, ok := ReadReport("handed_over;of_a_later_release=1;prompt=3"); !ok || got.Prompt != 3 {
		t.Errorf("a later release's is read %+v, %t", got, ok)
	}
}

func FuzzHeaders(f *testing.F) {
	ours, now := seed(f, "a"), time.Unix(1_800_000_000, 0)
	tag := TagOf("pod-uid-1")
	f.Add((&Ticket{Address: "10.0.0.1:1", Pods: []string{tag}, ID: 7}).Sign(now, ours))
	f.Add("handed_over;prompt=500;cached=16;since=27.125")
	f.Fuzz(func(t *testing.T, text string) {
		if ticket, err := Open(text, tag, now, ours); err == nil && ticket.Sign(now, ours) != text {
			t.Errorf("%q opens as %+v", text, ticket)
		}
		if r, ok := ReadReport(text); ok {
			if again, ok := ReadReport(r.String()); !ok || again.Prompt != r.Prompt || again.Cached != r.Cached || again.Outcome != r.Outcome {
				t.Errorf("%q is read %+v, and then %+v", text, r, again)
			}
		}
	})
}
