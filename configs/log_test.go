package configs

import (
	"errors"
	"strings"
	"testing"
)

func TestFraction(t *testing.T) {
	for s, want := range map[string]string{"1%": "1%", "0.01": "1%", "1": "100%", "100%": "100%", "0.1%": "0.1%", "5e-05": "0.005%"} {
		if f, err := parseFraction(s); err != nil || f.String() != want {
			t.Errorf("%s: %s, %v; want %s", s, f, err, want)
		}
	}
	for _, s := range []string{"", "0", "-1%", "101%", "1.1", "x", "NaN", "Inf", "none"} {
		if f, err := parseFraction(s); err == nil {
			t.Errorf("%q is %v", s, f)
		}
	}
}

// A build that cannot trace says so, with the line, and only if the file asks for traces.
func TestTracingNotBuilt(t *testing.T) {
	k := testKnown()
	k.Tracing = func() error { return errors.New("this build has no tracing") }
	if _, err := Load([]byte(minimal), k); err != nil {
		t.Error(err)
	}
	_, err := Load([]byte(minimal+"\ntracing:\n  endpoint: http://127.0.0.1:4318\n"), k)
	if err == nil || !strings.Contains(err.Error(), "tracing.endpoint: this build has no tracing; write none, or remove this setting") {
		t.Errorf("err = %v", err)
	}
}
