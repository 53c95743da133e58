package observe

// A Result is what became of a Call, as its listener counts it, once for each Call.
type Result uint8

// The results.
const (
	ResultGone      Result = iota // the client's connection ended before the client had the Reply
	ResultReplied                 // the upstream's Reply was delivered
	ResultLocal                   // the bridge answered the Call itself
	ResultAbsorbed                // it repeats a Call in flight, which has a result of its own
	ResultAbandoned               // the client's connection was closed because of it
	ResultMalformed               // the message was no RPC Call
	Results
)

// String is the result as a label of rdmabridge_listener_calls_total.
func (r Result) String() string { return resultNames[r] }

var resultNames = [Results]string{"client_gone", "replied", "local", "absorbed", "abandoned", "malformed"}
