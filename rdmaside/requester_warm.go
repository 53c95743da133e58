package rdmaside

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// warmBatch is how many Calls' memory is read at once. That of the last is still in the cache when its turn comes.
const warmBatch = 8

// warms reports whether the memory of Calls is read before their Replies are handled.
func (r *Requester) warms() bool {
	return r.opts.Warm != nil && r.state == up && r.opts.Cold()
}

// warm reads the memory of the Calls that cs answers.
func (r *Requester) warm(cs []fabric.Completion) {
	for i := range cs {
		b := cs[i].Data
		if len(b) < rpcrdma.PlainLen {
			continue // it is not the answer to a Call, or did not come in place
		}
		if pc := r.pending(binary.BigEndian.Uint32(b)); pc != nil && pc.call != nil {
			r.warmth += r.opts.Warm(pc.call)
		}
	}
}
