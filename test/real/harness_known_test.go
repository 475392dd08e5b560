package real

import "testing"

// TestKnownFaultsAreFoundByName: a name matches itself, with or without the mark of faults that show at times.
func TestKnownFaultsAreFoundByName(t *testing.T) {
	saved := knownText
	defer func() { knownText = saved }()
	knownText = "# A comment\nTestA/b  7: reason\nTestA/c?\tat times\n"
	for name, want := range map[string]struct {
		reason string
		always bool
	}{"TestA/b": {"7: reason", true}, "TestA/c": {"at times", false}, "TestA": {"", false}, "#": {"A comment", true}} {
		if reason, always := known(name); reason != want.reason || always != want.always {
			t.Errorf("%s: %q, %v", name, reason, always)
		}
	}
}
