package inferencepool

import "testing"

// TestClientsFollowToPickersThatServe: in every state, and by every way through the states.
func TestClientsFollowToPickersThatServe(t *testing.T) {
	for name, tc := range map[string]struct {
		at                 standing
		reporters, clients string
	}{
		"nothing to do":                           {standing{"f", "f", "f", false, true, true, true}, "f", "f"},
		"the target does not serve yet":           {standing{"f", "", "", false, true, false, true}, "", ""},
		"first the reporters":                     {standing{"f", "", "", false, true, true, true}, "f", ""},
		"the caches are not known":                {standing{"f", "f", "", false, true, true, false}, "f", ""},
		"then the clients":                        {standing{"f", "f", "", false, true, true, true}, "f", "f"},
		"back, before the clients have gone":      {standing{"", "f", "", false, true, true, true}, "", ""},
		"back, after they have":                   {standing{"", "f", "f", false, true, true, true}, "", "f"},
		"the target went on the way":              {standing{"f", "f", "", false, true, false, false}, "f", ""},
		"what was before is gone":                 {standing{"f", "", "", true, true, false, false}, "f", "f"},
		"it is gone, and the target cannot serve": {standing{"f", "", "", true, false, false, false}, "", ""},
		"from fleet to fleet":                     {standing{"g", "f", "f", false, true, true, false}, "g", "f"},
	} {
		if reporters, clients := tc.at.next(); reporters != tc.reporters || clients != tc.clients {
			t.Errorf("%s: reporters go to %q and clients to %q, want %q and %q", name, reporters, clients, tc.reporters, tc.clients)
		}
	}
	for _, target := range []string{"", "f"} {
		for bits := range 1 << 5 {
			on := func(bit int) bool { return bits&(1<<bit) != 0 }
			at := standing{target: target, gone: false, fit: true, serves: on(0), known: on(1)}
			if on(2) {
				at.reporters = "f"
			}
			if on(3) {
				at.clients = "f"
			}
			reporters, clients := at.next()
			if clients != at.clients && (!at.serves || clients != target || reporters != target) {
				t.Errorf("%+v: clients go to %q, reporters to %q", at, clients, reporters)
			}
			at.serves, at.known = true, true
			for range 2 {
				at.reporters, at.clients = at.next()
			}
			if at.reporters != target || at.clients != target {
				t.Errorf("two steps end at %+v", at)
			}
		}
	}
}
