package rdmaside

import "testing"

func TestFateString(t *testing.T) {
	for f, want := range map[Fate]string{NotSent: "not_sent", InLimbo: "in_limbo", Answered: "answered", 9: "unknown"} {
		if f.String() != want {
			t.Errorf("%d: %s, want %s", f, f, want)
		}
	}
	err := &CallError{XID: 0x10, Fate: InLimbo, Err: ErrDeadline}
	if want := "rdmaside: call 0x00000010 in_limbo: " + ErrDeadline.Error(); err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}
