package proxy

import "testing"

// TestCallMoves: every call can be settled from wherever it is, a settled one stays settled,
// none is read twice, and setState panics at a move that is not in the table.
func TestCallMoves(t *testing.T) {
	reaches := uint8(1 << callSettled) // the states from which a call can be settled
	for range callStates {
		for s := range callStates {
			if callMoves[s]&reaches != 0 {
				reaches |= 1 << s
			}
		}
	}
	for s := range callStates {
		if reaches&(1<<s) == 0 {
			t.Errorf("a call that is %v is never settled", s)
		}
		if callMoves[s]&(1<<callRead) != 0 {
			t.Errorf("a call that is %v is read again", s)
		}
		for to := range callStates {
			legal := callMoves[s]&(1<<to) != 0
			if panics := movePanics(s, to); panics == legal {
				t.Errorf("%v to %v: legal is %v, panics is %v", s, to, legal, panics)
			}
		}
	}
	if callMoves[callSettled] != 0 {
		t.Error("a settled call moves on")
	}
}

// movePanics reports whether setState panics when a call moves between the two states.
func movePanics(from, to callState) (panics bool) {
	defer func() { panics = recover() != nil }()
	c := call{perCall: perCall{state: from}}
	c.setState(to)
	return false
}
