package spelling

import "testing"

func TestDistance(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "ab", 2}, {"ab", "ab", 0}, {"ab", "ba", 2}, {"kitten", "sitting", 3}, {"standalon", "standalone", 1}} {
		if got, back := distance(tc.a, tc.b), distance(tc.b, tc.a); got != tc.want || back != tc.want {
			t.Errorf("distance of %q and %q is %d and %d, want %d", tc.a, tc.b, got, back, tc.want)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"selector", "template", "VLLM", "SGLang"}
	for wrong, want := range map[string]string{
		"selecter": "selector", "selectors": "selector", "vllm": "VLLM", "sglang": "SGLang", "gpu": "", "": "", "x": "", "templat": "template",
	} {
		if got := Nearest(wrong, known); got != want {
			t.Errorf("%q: nearest is %q, want %q", wrong, got, want)
		}
	}
}
