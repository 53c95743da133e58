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

// TestUnwritten: of the Calls that a connection to a TCP upstream has copied, those are unwritten that came after the
// ones that the kernel has, also when the numbers begin anew.
func TestUnwritten(t *testing.T) {
	for _, wrote := range []uint32{0, 7, 1<<32 - 3, 1<<32 - 1} {
		m := tcpConn{wrote: wrote}
		for n := range uint32(4) {
			before, after := sentTCP{copied: true, number: wrote - n}, sentTCP{copied: true, number: wrote + n + 1}
			if before.unwritten(m.wrote) || !after.unwritten(m.wrote) {
				t.Errorf("%d are written: copy %d is unwritten: %v; copy %d: %v", wrote, before.number, before.unwritten(wrote), after.number, after.unwritten(wrote))
			}
		}
		if m.Copied(2, false); m.wrote != wrote {
			t.Error("copies that were not written count as written")
		}
		if m.Copied(2, true); m.wrote != wrote+2 {
			t.Error("copies that were written do not count")
		}
	}
	if lent := (sentTCP{number: 9}); lent.unwritten(0) {
		t.Error("a message that was lent, and released, is unwritten")
	}
	if lent := (sentTCP{writing: true}); !lent.unwritten(9) {
		t.Error("a message that was lent, and not released, is written")
	}
}
