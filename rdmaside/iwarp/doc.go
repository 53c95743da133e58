// Package iwarp is a fabric provider that speaks iWARP in user space: RDMAP
// (RFC 5040) over DDP (RFC 5041) over MPA (RFC 5044, RFC 6581) over an ordinary
// TCP socket. It needs no adapter, no kernel module and no privilege, and talks
// to Linux siw and to iWARP adapters.
//
// # Operation
//
// A qp is the protocol engine: octets in, completions out, and a list of slices
// to write. It does no I/O and reads no clock. A conn drives one qp from a
// loop.SocketLoop, and start-up, the exchange of MPA Request and Reply, is
// blocking code on the goroutine that dials or accepts, so that a loop never
// waits for a stranger.
//
//	Received -> qp.input -> placement, completions
//	Post*    -> work queue -> qp.output -> one Writev per batch -> completions
//
// # Placement before the CRC
//
// RFC 5044 Section 6 wants an FPDU verified before DDP sees it. Here a segment's
// header is checked in full, and then its payload goes to its destination as it
// arrives, with the CRC computed on the way; an FPDU of 64 KiB is never buffered.
// What makes that safe: a destination is only ever memory that the peer may write
// at that moment and that the ULP may not read yet. It becomes readable with a
// delivery (a Receive's or a Read's completion, or a Send after Writes), nothing
// is delivered before the CRC of the FPDU that completes it was found good, and
// FPDUs are delivered in order, so that every earlier CRC was good too. On a
// mismatch the connection ends with Terminate 2/0/02: every Receive and Read is
// flushed, every handle dies, and the buffers of a dead connection are never
// read. A header that is refused is refused after its CRC was found good, so that
// a damaged octet is reported as damage and not as an attack.
//
// # Memory that the peer may reach
//
// Each connection has its own table of STags, which is its protection domain. An
// STag is 32 random bits and its Tagged Offsets start at a random page, so a
// peer learns nothing about addresses here. Read sinks are not in the table at
// all: only the Response to that Read reaches them. After Invalidate has returned
// no octet moves through the STag, not even the rest of an FPDU half received or
// half sent.
//
// # Security
//
// iWARP authenticates nobody, and a CRC is no protection against an attacker (RFC
// 5042 Section 5): run it on a segment that is trusted, or inside IPsec (RFC 7146)
// or WireGuard. What a peer that got that far can do is bounded here, and tested
// by number in security_test.go.
//
// # Divergences
//
//   - Payload is placed before its CRC is checked (above). RFC 5044 Section 6.
//   - Segments of a message must arrive in order and without gaps, and tagged
//     messages one after the other. RFC 5041 Section 5.2 lets a Data Sink place any
//     order; over one TCP stream nobody produces another, and Linux siw refuses it.
//   - The peer's FIN is the end of the connection, even if replies to it wait: what
//     siw does too. RFC 5040 Section 6.2 leaves the rest of a graceful close to TCP.
//   - A Write without the right to write is answered with 1/1/00, as if the STag
//     were unknown: DDP has no code for rights.
//   - An MPA responder whose first inbound FPDU is faulty says so in a Terminate,
//     although RFC 5044 Section 7.1.2 lets it send nothing before a good one: an
//     Initiator that sends FPDUs is past start-up.
//   - Markers are sent when asked for and never asked for.
//   - MPA revision 0 and RDMAP and DDP version 0, those of the RDMA Consortium, are
//     refused.
//
// # Errors
//
// What the peer did wrong ends its connection with an RDMAP Terminate and a
// *TerminateError in Handler.Closed, and costs nobody else anything. What fails
// below, such as a reset, is handed up as it is.
package iwarp
