package observe

// A Phase is a part of the time of a Call: status.Phases.
type Phase uint8

// The phases, in their order.
const (
	PhaseAdmission Phase = iota
	PhaseCredit
	PhaseServer
	PhaseClient
	Phases
)

// phaseNames are the phases as labels of metrics.
var phaseNames = [Phases]string{"admission", "credit", "server", "client"}

// Times say when a Call got how far, on the clock of the loops, in nanoseconds; 0 for not yet. The pass of the
// loop in which it happened counts.
type Times struct {
	Began   int64 // when the Call was read, or could have been read if the bridge had not made its client wait
	Asked   int64 // when it was given to the pool of its upstream
	Sent    int64 // when a connection sent it for the first time
	Replied int64 // when its Reply had come, or was made
}

// Divide sets d to the phases of a Call whose client had the Reply at settled. They add up to its time. Loops
// look at the clock once in a pass, so that a time may lie before the one that came before it.
func (t *Times) Divide(settled int64, d *[Phases]uint64) {
	replied := t.Replied
	if replied == 0 {
		replied = settled
	}
	sent := t.Sent
	if sent == 0 {
		sent = replied
	}
	asked := t.Asked
	if asked == 0 {
		asked = sent
	}
	asked = max(asked, t.Began)
	sent = max(sent, asked)
	replied = max(replied, sent)
	d[PhaseAdmission] = uint64(asked - t.Began)
	d[PhaseCredit] = uint64(sent - asked)
	d[PhaseServer] = uint64(replied - sent)
	d[PhaseClient] = uint64(max(settled, replied) - replied)
}
