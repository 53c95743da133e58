package observe

import "testing"

// TestDivide: the phases of a Call add up to its time, also when the clocks of two loops disagree by a pass.
func TestDivide(t *testing.T) {
	for _, tt := range []struct {
		times   Times
		settled int64
		want    [Phases]uint64
	}{
		{Times{10, 20, 40, 80}, 160, [Phases]uint64{10, 20, 40, 80}},
		{Times{10, 0, 0, 10}, 15, [Phases]uint64{0, 0, 0, 5}}, // the bridge answered it
		{Times{10, 20, 15, 30}, 40, [Phases]uint64{10, 0, 10, 10}},
		{Times{10, 20, 30, 25}, 28, [Phases]uint64{10, 10, 0, 0}},
	} {
		var d [Phases]uint64
		if tt.times.Divide(tt.settled, &d); d != tt.want {
			t.Errorf("%+v until %d: %v, want %v", tt.times, tt.settled, d, tt.want)
		}
	}
}
