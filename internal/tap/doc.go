// Package tap captures the RPC messages that a running proxy carries, and writes them in pcapng so that
// Wireshark and tshark decode them.
//
// # Operation
//
// A [Hub] is the [observe.Tap] of a proxy while there are captures. Each capture has a ring for each loop
// ([ring]). The loop copies the messages that the capture wants into its ring; what does not fit, it
// counts and forgets. One goroutine for each capture merges the rings by time ([capture.run]), holds
// messages back until it knows what became of their Calls, if the capture asks for that ([holder]), and
// writes them as TCP segments ([writer]).
//
// # Bounds
//
// The rings of a capture have [Options].Buffer octets together, and messages that are held back as many
// again. The tables of Calls and connections have a bound each. A reader that does not read blocks only
// the goroutine of its capture.
package tap
