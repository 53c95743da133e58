// Package ages counts what happened in the last two ages.
package ages

import "time"

// Ageing is how long an age lasts. A Call counts as old when the second age after the one in
// which it was dispatched begins: after one to two seconds.
const Ageing = time.Second

// A Count adds up what was added in the present age and in the one before, such as Calls that were
// dispatched. Older Calls are no longer counted. So no Call has to be looked at when it becomes
// old.
type Count[N int | int32] struct {
	age           uint32 // the present age when the counts were last right
	present, last N
}

// at brings the counts to the age now.
func (a *Count[N]) at(now uint32) {
	switch now - a.age {
	case 0:
		return
	case 1:
		a.present, a.last = 0, a.present
	default:
		a.present, a.last = 0, 0
	}
	a.age = now
}

// Add counts n from now on.
func (a *Count[N]) Add(now uint32, n N) {
	a.at(now)
	a.present += n
}

// Drop ends the count of n that were added in the age then.
func (a *Count[N]) Drop(now, then uint32, n N) {
	a.at(now)
	switch now - then {
	case 0:
		a.present -= n
	case 1:
		a.last -= n
	}
}

// Young is what was added in the last two ages and not dropped.
func (a *Count[N]) Young(now uint32) int {
	a.at(now)
	return int(a.present + a.last)
}
