package cli

import "testing"

func TestRoff(t *testing.T) {
	for in, want := range map[string]string{".x": `\&.x`, "'x": `\&'x`, `a\b`: `a\eb`, "--x": `\-\-x`} {
		if got := roff(in); got != want {
			t.Errorf("roff(%q) = %q, want %q", in, got, want)
		}
	}
	got := string(appendText(nil, "one\ntwo\n\n    code\n\nthree"))
	if want := "one\ntwo\n.PP\n.nf\n    code\n.fi\n.PP\nthree\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
