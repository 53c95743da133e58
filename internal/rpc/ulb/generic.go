package ulb

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// Generic is the binding of every program without one: nothing is eligible and nothing
// is bounded.
var Generic Binding = generic{}

type generic struct{}

// Analyse knows nothing.
func (generic) Analyse(*oncrpc.Call, *Limits, *Analysis) {}

// ResultItem finds nothing.
func (generic) ResultItem(uint32, []byte, int, bool) (pos, length uint32, ok bool, err error) {
	return 0, 0, false, nil
}

// ResultItems finds nothing.
func (generic) ResultItems(uint32, []byte, int, []Splice) (int, error) { return 0, nil }

// ArgItem trusts the Requester that the item at pos is eligible, and requires only room
// for a length word before it. The Requester and the server may have a binding that says
// so; the Call is rebuilt in the same way by every binding.
func (generic) ArgItem(c *oncrpc.Call, pos uint32) (length uint32, ok bool) {
	if !c.Reducible() || pos%4 != 0 || uint64(pos) < uint64(c.Args)+4 || uint64(pos) > uint64(len(c.Message)) {
		return 0, false
	}
	return binary.BigEndian.Uint32(c.Message[pos-4:]), true
}

// ArgItems does what ArgItem does, for several items in a plain Call.
func (generic) ArgItems(c *oncrpc.Call, positions []uint32) bool {
	for _, pos := range positions {
		if _, ok := Generic.ArgItem(c, pos); !ok {
			return false
		}
	}
	return true
}
