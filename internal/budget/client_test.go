package budget

import "testing"

// TestAClientIsOneOwner: whichever of its addresses it uses.
func TestAClientIsOneOwner(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.1:80":              "10.0.0.1",
		"[::ffff:10.0.0.1]:80":     "10.0.0.1",
		"[2001:db8:0:1::1]:80":     "2001:db8:0:1::/64",
		"[2001:db8:0:1:ffff::2]:9": "2001:db8:0:1::/64",
		"[2001:db8:0:2::1]:80":     "2001:db8:0:2::/64",
		"[fe80::1%eth0]:80":        "fe80::/64",
		"[64:ff9b::a00:1]:80":      "10.0.0.1",
		"10.0.0.1":                 "10.0.0.1",
		"2001:db8:0:1::1":          "2001:db8:0:1::/64",
		"@":                        "@",
		"pipe":                     "pipe",
		"":                         "",
	} {
		if got := Client(address); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}
