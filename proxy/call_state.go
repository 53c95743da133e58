package proxy

import "fmt"

// A callState is where a call is, and so which goroutine owns it.
//
//	read --> queued --> dispatched --> replying --> settled
//	  |        ^  |      |   ^   |        ^
//	  |        |  |      v   |   +------->|
//	  |        |  |     waiting --------->|
//	  |        |  |      |                |
//	  |        +--|------+                |
//	  +-----------+---------------------->+
//
// A call that is read may also be settled at once: it is absorbed by one in flight, or its
// client is closed.
type callState uint8

const (
	callRead       callState = iota // the client's loop has it: front.begin
	callQueued                      // the pool has it until a credit is free, or too long: pool.Pool
	callDispatched                  // a connection to the upstream has it, and a credit for it
	callWaiting                     // it was not sent, or is to be sent again: a task or a timer has it, fate.go
	callReplying                    // it is on its way to its client's loop, which delivers the Reply or closes the client
	callSettled                     // it is counted and its memory given back
	callStates
)

var callStateNames = [callStates]string{"read", "queued", "dispatched", "waiting", "replying", "settled"}

func (s callState) String() string { return callStateNames[s] }

// callMoves are the states that may follow each state, a bit for each.
var callMoves = [callStates]uint8{
	callRead:       1<<callQueued | 1<<callReplying | 1<<callSettled,
	callQueued:     1<<callQueued | 1<<callDispatched | 1<<callReplying,
	callDispatched: 1<<callQueued | 1<<callWaiting | 1<<callReplying,
	callWaiting:    1<<callQueued | 1<<callDispatched | 1<<callWaiting | 1<<callReplying,
	callReplying:   1 << callSettled,
}

// setState moves c on. All changes of state come through here.
func (c *call) setState(to callState) {
	if callMoves[c.state]&(1<<to) == 0 {
		panic(fmt.Sprintf("BUG: proxy: a call that is %v becomes %v", c.state, to))
	}
	c.state = to
}
