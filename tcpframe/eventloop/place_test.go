package eventloop

import (
	"testing"
)

// TestPlace: a client gets the loop that its listener prefers, until that one has many more sockets than another.
func TestPlace(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		conns     [3]int32
		preferred int // -1: none
		want      int
	}{
		{"nobody prefers one", [3]int32{5, 2, 3}, -1, 1},
		{"some more", [3]int32{6, 2, 3}, 0, 0},
		{"many more", [3]int32{7, 2, 3}, 0, 1},
		{"a quarter more of many", [3]int32{1254, 1000, 1001}, 0, 0},
		{"more than a quarter", [3]int32{1255, 1000, 1001}, 0, 1},
		{"the least loaded one", [3]int32{9, 9, 1}, 2, 2},
	} {
		e := &Group{loops: []*Loop{{}, {}, {}}}
		for i, l := range e.loops {
			l.conns.Store(tt.conns[i])
		}
		var preferred *Loop
		if tt.preferred >= 0 {
			preferred = e.loops[tt.preferred]
		}
		if got := e.Place(preferred); got != e.loops[tt.want] {
			t.Errorf("%s: not loop %d", tt.name, tt.want)
		}
	}
}
