package proxy

// A callState says how far a call has got, and so which goroutine owns it.
//
//	read -----> queued -----> dispatched -----> replying -----> settled
//	              ^             |     ^            ^
//	              |<------------+     |            |
//	              |             v     |            |
//	              +------------ waiting -----------+
//
// Some short cuts are not drawn. A call that is read or queued becomes replying when the bridge
// answers it itself or gives it up. A call that is read is settled at once when it repeats a
// call of the same TCP connection, or when its client's connection is closed because of it or has
// ended. A call may also be queued several times on end, as it may wait several times. A call
// that is read may be held, and is queued or replying after that; and a call of a GSS context may
// be held again instead of being queued again.
type callState uint8

const (
	callRead       callState = iota // its client's loop has it: front.begin, rdmaClient.wait
	callQueued                      // its loop's batch or a pool has it, until a credit is free or it has waited too long
	callDispatched                  // the loop of a connection to the upstream has it, and it has a credit
	callWaiting                     // it is to be sent again, and a task or a timer has it: fate.go
	callHeld                        // another call goes first: one that it repeats (identify.go), or of its GSS context (gss_order.go)
	callReplying                    // its client's loop has it or will have it: front.deliver
	callSettled                     // it has been counted, and its memory released
	callStates
)

var callStateNames = [callStates]string{"read", "queued", "dispatched", "waiting", "held", "replying", "settled"}

func (s callState) String() string { return callStateNames[s] }

// callMoves are the states that may follow each state, a bit for each.
var callMoves = [8]uint8{
	callRead:       1<<callQueued | 1<<callHeld | 1<<callReplying | 1<<callSettled,
	callQueued:     1<<callQueued | 1<<callDispatched | 1<<callReplying,
	callDispatched: 1<<callQueued | 1<<callWaiting | 1<<callHeld | 1<<callReplying,
	callWaiting:    1<<callHeld | 1<<callQueued | 1<<callDispatched | 1<<callWaiting | 1<<callReplying,
	callHeld:       1<<callQueued | 1<<callReplying,
	callReplying:   1 << callSettled,
}
