package loglimit

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

func TestSeldom(t *testing.T) {
	var s Seldom
	now := time.Unix(1000, 0)
	allow := func(after time.Duration, want bool, suppressed uint64) {
		t.Helper()
		if ok, n := s.Allow(now.Add(after)); ok != want || n != suppressed {
			t.Errorf("after %v: %v, %d suppressed; want %v, %d", after, ok, n, want, suppressed)
		}
	}
	allow(0, true, 0)
	allow(1, false, 0)
	allow(Again-1, false, 0)
	allow(Again, true, 2)
	allow(Again+1, false, 0)
	s.Reset()
	allow(Again+2, true, 1)
}

// The last line says the state in which the thing is, however fast it changed.
func TestFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Flap
		var said []int
		var when []time.Duration
		var left uint64
		start := time.Now()
		change := func(i int) {
			f.Change(func(suppressed uint64) {
				said, when, left = append(said, i), append(when, time.Since(start)), left+suppressed
			})
		}
		for i := range 100 { // in 70 s
			change(i)
			time.Sleep(700 * time.Millisecond)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(said) != FlapBurst+3 || said[len(said)-1] != 99 || int(left)+len(said) != 100 {
			t.Errorf("said %v at %v, %d left out", said, when, left)
		}
		for i := FlapBurst + 1; i < len(when); i++ {
			if d := when[i] - when[i-1]; d < Again {
				t.Errorf("lines %v apart, want %v", d, Again)
			}
		}
		said = nil
		change(100)
		f.Stop()
		for i := range 10 {
			change(i)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(said) != FlapBurst {
			t.Errorf("%d lines with those after Stop, want %d", len(said), FlapBurst)
		}
	})
}

func TestLine(t *testing.T) {
	var b lines
	log := zerolog.New(&b)
	var l Limit
	for range 12 {
		l.Line(&log, zerolog.WarnLevel, "x").Msg("m")
	}
	var s Seldom
	for range 2 {
		s.Line(&log, zerolog.InfoLevel, "y").Msg("n")
	}
	s.Reset()
	s.Line(&log, zerolog.InfoLevel, "y").Msg("n")
	want := append(slices.Repeat(lines{`{"level":"warn","event":"x","message":"m"}` + "\n"}, Burst),
		`{"level":"info","event":"y","message":"n"}`+"\n", `{"level":"info","event":"y","suppressed":1,"message":"n"}`+"\n")
	if !slices.Equal(b, want) {
		t.Errorf("lines %q, want %q", b, want)
	}
}

type lines []string

func (l *lines) Write(p []byte) (int, error) {
	*l = append(*l, string(p))
	return len(p), nil
}
