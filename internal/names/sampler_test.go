package names

import (
	"math"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// TestSampleFollowsLoad: at few Calls all are looked at, and at many no more than a budget, also when they come all at
// once. What is counted is right within the error in each case.
func TestSampleFollowsLoad(t *testing.T) {
	for _, v := range []struct {
		name    string
		rates   []int // Calls in each period
		most    int   // looked at in a period
		atLeast int
	}{
		{"few", []int{80, useBudget - 1, 100, useBudget - 1}, useBudget - 1, 180 + 2*(useBudget-1)},
		{"many", []int{20_000, 20_000, 20_000, 20_000, 20_000}, 6 * useBudget, 4 * useBudget},
		{"all at once", []int{0, 0, 100_000, 0, 0, 50, 50}, 2000, 100},
		{"more and less", []int{1000, 50_000, 10, 10, 10, 10, 10}, 1500, 250},
	} {
		s := newSamplers(0)
		count, variance, calls, looked := 0.0, 0.0, 0, 0
		last := 0
		for i, rate := range v.rates {
			last = 0
			for n := range rate {
				now := int64(i)*period + int64(n)*period/int64(rate) // a clock may begin with 0
				calls++
				if yes, _ := s.looks(now, &ulb.Operation{Program: oncrpc.ProgramNFS, Version: 3, Name: "READ"}); yes {
					last++
					count += s.weight
					variance += s.weight * (s.weight - 1)
				}
			}
			if looked += last; last > v.most {
				t.Errorf("%s: %d of %d Calls of a period are looked at", v.name, last, rate)
			}
		}
		if looked < v.atLeast {
			t.Errorf("%s: %d of %d Calls are looked at", v.name, looked, calls)
		}
		// Five times the standard deviation.
		if math.Abs(count-float64(calls)) > 5*math.Sqrt(variance) {
			t.Errorf("%s: counted %v +- %v, want %d", v.name, count, 2*math.Sqrt(variance), calls)
		}
		if w := s.uses.weight; v.rates[len(v.rates)-1] < useBudget/5 && w != 1 {
			t.Errorf("%s: a Call still stands for %v", v.name, w)
		}
	}
}

// TestSampleOfNames: changes of names are all looked at, and Calls that tell names up to a larger budget; the others are
// counted. A part that is set holds for the Calls that only use a file.
func TestSampleOfNames(t *testing.T) {
	looked := func(part float64, program, version uint32, name string, n int) (looked, left int) {
		s := newSamplers(part)
		for i := range n {
			yes, told := s.looks(period+int64(i), &ulb.Operation{Program: program, Version: version, Name: name})
			switch {
			case yes:
				looked++
			case told:
				left++
			}
		}
		return looked, left
	}
	const nfs, n = oncrpc.ProgramNFS, 100_000
	for _, name := range []string{"RENAME", "REMOVE", "CREATE"} {
		if got, _ := looked(0, nfs, 3, name, n); got != n {
			t.Errorf("%d of %d %s are looked at", got, n, name)
		}
	}
	for _, name := range []string{"LOOKUP", "OPEN", "READDIRPLUS"} {
		if got, left := looked(0, nfs, 4, name, n); got < nameBudget || got > 6*nameBudget || got+left != n {
			t.Errorf("%d %s are looked at, and %d left out, of %d", got, name, left, n)
		}
		if got, _ := looked(0.01, nfs, 4, name, n); got != n {
			t.Errorf("of %d %s %d are looked at", n, name, got)
		}
	}
	if got, left := looked(0.1, nfs, 3, "READ", n); got < 9000 || got > 11_000 || left != 0 {
		t.Errorf("%d of %d READs are looked at, and %d left out", got, n, left)
	}
	for _, o := range []ulb.Operation{
		{Program: nfs, Version: 3, Name: "NULL"},
		{Program: nfs, Version: 2, Name: "READ"},
		{Program: oncrpc.ProgramMount, Version: 3, Name: "UMNT"},
		{Program: oncrpc.ProgramNLM, Version: 4, Name: "LOCK"},
	} {
		if got, left := looked(1, o.Program, o.Version, o.Name, 1); got+left != 0 {
			t.Errorf("%+v is looked at", o)
		}
	}
}
