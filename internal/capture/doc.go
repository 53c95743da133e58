// Package capture reads captures of tcpdump and finds the RPC messages in them:
// RPC over TCP, RFC 5531 Section 11, and RPC-over-RDMA on iWARP, RFC 8166 on RFC
// 5040 to 5044.
//
// # Operation
//
// [Read] reads a whole file, pcap or pcapng. It walks packets ([packetReader]), finds
// the TCP segments in frames ([packet.tcp]) and puts them in order ([Conn]). Then
// [Capture.Messages] cuts the streams into messages ([Message]). A capture is rarely
// complete: it begins in the middle of a connection, and packets are cut or lost. The
// package returns every message that it finds and counts the octets that are missing.
//
// # Ownership
//
// All results refer into the file that Read was given, so the caller must not change it.
// The package copies octets only when a message lies in several packets. Numbers in the
// file are used as positions, never as sizes to allocate, so memory stays within a
// small multiple of the file.
//
// # Why no library
//
// All readers in Go stream: they copy packets, and do not keep the packet that an octet
// came in. A file in memory needs no streaming, and reading the formats takes little
// code.
package capture
