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
// This is safe for four reasons. A destination is always memory that the peer may
// write at that moment and that the ULP may not read yet. The ULP may read it after a
// delivery: a Receive's or a Read's completion, or a Send after Writes. The qp
// delivers nothing before it has found the CRC of the completing FPDU good, and
// delivers FPDUs in order, so that every earlier CRC was good too. And it delivers
// what is due before it writes over octets that were written before.
//
// On a mismatch the connection ends with Terminate 2/0/02: every Receive and Read is
// flushed, every handle is invalidated, and the ULP does not read the buffers of that
// connection. The qp reports a faulty header only after the header's CRC was found
// good, so that a damaged octet is reported as damage and not as an attack.
//
// # Memory that the peer may reach
//
// Each connection has its own table of STags, which is its protection domain. An
// STag is 32 random bits and its Tagged Offsets start at a random page, so a
// peer learns nothing about the addresses of this process. Read sinks are not in the
// table: only the Response to that Read reaches them. After Invalidate has returned
// no octet moves through the STag, not even the rest of an FPDU half received or
// half sent.
//
// # Security
//
// iWARP has no authentication, and a CRC does not protect against an attacker (RFC
// 5042 Section 5). Run it on a trusted network segment, or inside IPsec (RFC 7146) or
// WireGuard. This package bounds the harm that a connected peer can do. The tests of
// security_test.go and its siblings check each bound by number.
//
// # Divergences
//
//   - Payload is placed before its CRC is checked (above). RFC 5044 Section 6.
//   - Segments of a message must arrive in order and without gaps, and tagged
//     messages one after the other. RFC 5041 Section 5.2 lets a Data Sink place
//     segments in any order. No known implementation sends another order over one TCP
//     stream, and Linux siw terminates a connection that does.
//   - The peer's FIN ends the connection, even if messages to the peer still wait, as
//     with siw. RFC 5040 Section 6.2 leaves the rest of a graceful close to TCP.
//   - A Write without the right to write is answered with 1/1/00, as if the STag
//     were unknown: DDP has no code for rights.
//   - An MPA responder whose first inbound FPDU is faulty sends a Terminate, although
//     RFC 5044 Section 7.1.2 lets it send nothing before a good FPDU: an Initiator
//     that sends FPDUs has completed start-up.
//   - This side sends Markers when the peer asks for them, and never asks for them.
//   - This side does not speak MPA revision 0, nor RDMAP and DDP version 0 of
//     the RDMA Consortium.
//
// # Errors
//
// A peer that breaks a protocol rule loses its connection: it is sent an RDMAP
// Terminate, and Handler.Closed gets a *terminateError. Other connections are not
// affected. An error of the socket, such as a reset, reaches Handler.Closed wrapped.
package iwarp
