package ulb

import "github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"

// A Path is what the way between a client and its server carries.
type Path struct {
	Limits

	// Call is the most octets of a Call, RPC header included: limits.record of the client's listener.
	Call uint32
}

// Path returns the Path of clients whose Calls may have so many octets.
func (reg *Registry) Path(call int) Path {
	return Path{Limits: reg.limits, Call: uint32(min(max(call, 0), maxCall))}
}

// callHeadroom is the room in a Call beside the data of a WRITE, for what replyHeadroom is for.
const callHeadroom = 8 << 10

// Write returns the most data octets of one WRITE, in whole pages where a Call may have some.
func (p *Path) Write() uint32 {
	return max((max(p.Call, callHeadroom)-callHeadroom)&^(4<<10-1), p.Call/4)
}

// A Part is a set of the parts of a Call that may have numbers beyond what a Path carries.
type Part uint8

// The parts.
const (
	Arguments Part = 1 << iota // they ask for more than Limits allow, or make a session
	Results                    // they say how much the server takes and returns at once
)

// A Lowerer is a Binding that knows numbers of octets for which less will do. A client may ask for more than a
// Path carries, and a server may say that it takes and returns more. The Lowerer lowers such numbers in plain
// messages, in place, to what the Path carries, so that no Reply and no Call gets too long. It changes nothing
// else and does not allocate. The methods report whether they have changed something.
type Lowerer interface {
	// LowerArguments lowers numbers in c, whose Analysis has Arguments in Lower.
	LowerArguments(c *oncrpc.Call, p *Path) (changed bool)

	// LowerResults lowers numbers in the plain RPC Reply to a Call of procedure proc whose Analysis has
	// Results in Lower. A Reply of several parts stays as it is.
	LowerResults(proc uint32, reply []byte, p *Path) (changed bool)
}
