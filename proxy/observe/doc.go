// Package observe answers: what has happened, and how is it told?
//
// # Operation
//
// A Call carries a [Progress], and its client connection a [Client]. A Progress has the Times of the Call, its Result
// and, with a Reply, its Class, which [ClassOf] reads from the first octets of the Reply. A Call begins as one of an
// [Operation], a row of its loop's [Table]. When it is settled, the loop's [Tally] writes it down, and counts it with
// others at the end of the pass: in the series of the operation and of the upstream, for the client and for its tenant.
// An [Observer] sees a [CallRecord] of each Call that is over, and a [Tap] the messages of the Calls that it wants, on
// each loop through a [LoopTap]. An [Asker] asks the loops for a status document, to which a [ClientReport] of each
// client goes.
//
// # Ownership
//
// A Progress belongs to whoever owns the Call. A Client, a Table with its rows, a Tally and a LoopTap belong to a loop.
// [Operations] has the rows of all loops and a lock, which a Call takes when it is the first of its kind.
// Nothing is allocated for a Call.
//
// # Errors
//
// There are none: a Reply that cannot be read is of the class [ClassMalformed].
package observe
