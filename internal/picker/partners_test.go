package picker

import (
	"testing"
	"time"
)

func TestFailuresCountInARow(t *testing.T) {
	const x, y, z, none = 1, 2, 3, 0
	type ends struct {
		partner uint64
		well    bool
		after   time.Duration
	}
	fails := func(n int, partner uint64) (list []ends) {
		for range n {
			list = append(list, ends{partner: partner})
		}
		return list
	}
	well := func(partner uint64) []ends { return []ends{{partner: partner, well: true}} }
	late := func(list []ends) []ends {
		list[0].after = time.Minute
		return list
	}
	for name, tc := range map[string]struct {
		ends    [][]ends
		x, y, z bool // left out
	}{
		"with one partner":                    {[][]ends{fails(3, x)}, true, false, false},
		"with two partners":                   {[][]ends{fails(2, x), fails(1, y)}, true, true, true},
		"too few":                             {[][]ends{fails(2, x)}, false, false, false},
		"one has worked before":               {[][]ends{well(y), fails(2, x), fails(1, y)}, true, true, true},
		"one works between":                   {[][]ends{fails(2, x), well(y), fails(1, x)}, true, false, false},
		"another one has worked":              {[][]ends{fails(3, x), well(y), fails(1, y)}, true, false, false},
		"another one has worked, and several": {[][]ends{fails(3, x), well(y), fails(2, y), fails(2, z)}, true, false, false},
		"it has worked again":                 {[][]ends{fails(3, x), well(x), fails(2, x)}, false, false, false},
		"too few before another has worked":   {[][]ends{fails(2, x), well(y), fails(2, y)}, false, false, false},
		"another one, once the time is over":  {[][]ends{fails(3, x), well(y), late(fails(3, y))}, false, true, false},
		"one works, but there is no connector": {
			[][]ends{fails(3, x), well(y), fails(3, none)}, true, true, true,
		},
		"one works, and parameters were missing once": {[][]ends{fails(3, x), well(y), fails(1, none)}, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			var p partners
			now, period := time.Unix(1, 0), 10*time.Second
			for _, list := range tc.ends {
				for _, one := range list {
					if now = now.Add(one.after); one.well {
						p.succeed(one.partner)
					} else {
						p.fail(one.partner, now, period)
					}
				}
			}
			for partner, want := range map[uint64]bool{x: tc.x, y: tc.y, z: tc.z} {
				if got := p.leavesOut(partner, now); got != want {
					t.Errorf("partner %d: left out: %v", partner, got)
				}
			}
		})
	}
}
