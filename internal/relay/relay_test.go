package relay

import (
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

// TestOnlyPickersOfThePoolMakeTickets: a ticket is taken as it was signed, by one of the seeds, and for a minute.
func TestOnlyPickersOfThePoolMakeTickets(t *testing.T) {
	now, ours, other := time.Unix(1_800_000_000, 5), seed(t, "a"), seed(t, "b")
	want := Ticket{Address: "10.0.0.1:8000", Within: 1500 * time.Millisecond}
	good := want.Sign(ours, now)
	six := (&Ticket{Address: "[fd00::1]:8000"}).Sign(ours, now)
	named := (&Ticket{Address: "metadata.internal:80"}).Sign(ours, now)
	parts := strings.Split(good, " ")
	with := func(i int, text string) string {
		changed := append([]string(nil), parts...)
		changed[i] = text
		return strings.Join(changed, " ")
	}
	for name, tc := range map[string]struct {
		header string
		at     time.Time
		seeds  []kvblock.Seed
		want   error
	}{
		"as signed":                      {good, now, []kvblock.Seed{ours}, nil},
		"by the second of two seeds":     {good, now, []kvblock.Seed{other, ours}, nil},
		"for a minute":                   {good, now.Add(MaxAge), []kvblock.Seed{ours}, nil},
		"before the clock of the pod":    {good, now.Add(-maxAhead), []kvblock.Seed{ours}, nil},
		"IPv6":                           {six, now, []kvblock.Seed{ours}, nil},
		"no longer":                      {good, now.Add(MaxAge + 2*time.Second), []kvblock.Seed{ours}, ErrAge},
		"of the future":                  {good, now.Add(-maxAhead - 2*time.Second), []kvblock.Seed{ours}, ErrAge},
		"of another pool":                {good, now, []kvblock.Seed{other}, ErrSigned},
		"while no picker is known":       {good, now, nil, ErrSigned},
		"with another address":           {with(1, "10.0.0.2:8000"), now, []kvblock.Seed{ours}, ErrSigned},
		"with another time":              {with(2, "1800000001"), now, []kvblock.Seed{ours}, ErrSigned},
		"with another bound":             {with(3, "0"), now, []kvblock.Seed{ours}, ErrSigned},
		"with no signature":              {strings.Join(parts[:4], " ") + " ", now, []kvblock.Seed{ours}, ErrSigned},
		"with half of one":               {good[:len(good)-11], now, []kvblock.Seed{ours}, ErrSigned},
		"an address, as for llm-d's":     {"10.0.0.1:8000", now, []kvblock.Seed{ours}, ErrForm},
		"empty":                          {"", now, []kvblock.Seed{ours}, ErrForm},
		"two, joined by a proxy":         {good + "," + good, now, []kvblock.Seed{ours}, ErrSigned},
		"long":                           {strings.Repeat("1", 1<<20) + " x", now, []kvblock.Seed{ours}, ErrForm},
		"a name, even from a picker":     {named, now, []kvblock.Seed{ours}, ErrForm},
		"a space more, inside the MAC":   {strings.Join(parts[:4], " ") + "  " + parts[4], now, []kvblock.Seed{ours}, ErrSigned},
		"another version, from a picker": {"2" + good[1:], now, []kvblock.Seed{ours}, ErrSigned},
	} {
		got, err := Open(tc.header, tc.at, tc.seeds...)
		if err != tc.want { //nolint:errorlint // they are not wrapped
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
		if err == nil && name != "IPv6" && got != want {
			t.Errorf("%s: %+v", name, got)
		}
		if err != nil && got != (Ticket{}) {
			t.Errorf("%s: %+v beside an error", name, got)
		}
	}
}

func TestReportsAreReadAsWritten(t *testing.T) {
	for text, want := range map[string]Report{
		"handed_over;prompt=500;cached=16;since=27.125": {Outcome: HandedOver, Prompt: 500, Cached: 16, Since: 27125 * time.Microsecond},
		"handed_over;prompt=500;since=0.001":            {Outcome: HandedOver, Prompt: 500, Cached: -1, Since: time.Microsecond},
		"prefill_failed;cause=late":                     {Outcome: PrefillFailed, Cause: CauseLate, Prompt: -1, Cached: -1},
		"no_parameters;owed=1;prompt=7;cached=0":        {Outcome: NoParameters, Owed: true, Prompt: 7, Cached: 0},
		"refused":                                       {Outcome: Refused, Prompt: -1, Cached: -1},
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
	f.Add((&Ticket{Address: "10.0.0.1:1"}).Sign(ours, now))
	f.Add("handed_over;prompt=500;cached=16;since=27.125")
	f.Fuzz(func(t *testing.T, text string) {
		if ticket, err := Open(text, now, ours); err == nil && ticket.Sign(ours, now) != text {
			t.Errorf("%q opens as %+v", text, ticket)
		}
		if r, ok := ReadReport(text); ok {
			if again, ok := ReadReport(r.String()); !ok || again.Prompt != r.Prompt || again.Cached != r.Cached || again.Outcome != r.Outcome {
				t.Errorf("%q is read %+v, and then %+v", text, r, again)
			}
		}
	})
}
