package bench

import (
	"math"
	"testing"
)

func TestQuartiles(t *testing.T) {
	for _, tc := range []struct {
		x    []float64
		want Quartiles
		text string
	}{
		{nil, Quartiles{}, "-"},
		{[]float64{2}, Quartiles{2, 2, 2, 1}, "2.00 [2.00-2.00]"},
		{[]float64{3, 1}, Quartiles{1.5, 2, 2.5, 2}, "2.00 [1.50-2.50]"},
		{[]float64{5, 1, 4, 2, 3}, Quartiles{2, 3, 4, 5}, "3.00 [2.00-4.00]"},
		{[]float64{9, 1, 2, 3, 4, 5, 6, 7, 8}, Quartiles{3, 5, 7, 9}, "5.00 [3.00-7.00]"},
	} {
		if got := quartiles(tc.x); got != tc.want || got.String() != tc.text {
			t.Errorf("quartiles %+v, %q; want %+v, %q", got, got, tc.want, tc.text)
		}
	}
}

// Ratios are computed within a round, so they do not change when the machine is half as
// fast in every other round.
func TestRatios(t *testing.T) {
	result := func(rate float64, cpu *CPU) *Result { return &Result{CallsPerSecond: rate, CPU: cpu} }
	c := &Comparison{Baseline: 1, Results: [][]*Result{
		{result(150, &CPU{PerCall: 2}), result(75, nil), nil, result(300, &CPU{PerCall: 3})},
		{result(100, &CPU{PerCall: 1}), result(50, &CPU{PerCall: 1}), result(1, nil), result(200, &CPU{})},
	}}
	if got, want := c.Ratios(0, metric("calls/s")), (Quartiles{1.5, 1.5, 1.5, 3}); got != want {
		t.Errorf("calls/s: %+v, want %+v", got, want)
	}
	if got, want := c.Ratios(0, metric("CPU/call")), (Quartiles{2, 2, 2, 1}); got != want {
		t.Errorf("CPU/call: %+v, want %+v: rounds without CPU times, or where the baseline used none, do not count", got, want)
	}
	if got := c.Figures(1, metric("calls/s")); got.Median != 75 || got.N != 4 {
		t.Errorf("figures %+v", got)
	}
	if got := c.Ratios(1, metric("calls/s")); math.Abs(got.Median-1) > 1e-9 {
		t.Errorf("the baseline against itself: %+v", got)
	}
}

// Each round runs every target once, and every target is the first of some round.
func TestTurns(t *testing.T) {
	for n := 1; n <= 6; n++ {
		first := make(map[int]int)
		after := make(map[[2]int]int)
		for round := range 4 * n {
			seen := make(map[int]bool)
			for k := range n {
				i := turn(round, k, n)
				if i < 0 || i >= n || seen[i] {
					t.Fatalf("%d targets, round %d: target %d again", n, round, i)
				}
				seen[i] = true
				if k == 0 {
					first[i]++
				} else {
					after[[2]int{turn(round, k-1, n), i}]++
				}
			}
		}
		for i := range n {
			if first[i] != 4 {
				t.Errorf("%d targets, %d rounds: target %d comes first %d times", n, 4*n, i, first[i])
			}
			if n > 1 && after[[2]int{i, (i + 1) % n}] != after[[2]int{(i + 1) % n, i}] {
				t.Errorf("%d targets: %d and its neighbour are not seen in both orders equally: %v", n, i, after)
			}
		}
	}
}
