// Package capture reads captures of tcpdump and finds the RPC messages in them:
// RPC over TCP, RFC 5531 Section 11, and RPC-over-RDMA on iWARP, RFC 8166 on RFC
// 5040 to 5044.
//
// # Operation
//
// [Read] takes a whole file, pcap or pcapng. It walks packets ([packetReader]), takes
// TCP segments out of frames ([packet.tcp]), puts them in order ([Conn]), and cuts
// the streams into messages ([Message]). A capture is rarely complete: it begins in
// the middle of a connection, packets are cut or lost. Whatever can be found is
// returned, with what is missing counted.
//
// # Ownership
//
// Everything refers into the file that Read was given, which must not be changed.
// Octets are copied only when a message lies in several packets. Numbers in the
// file say where to look and never how much to allocate: memory stays within a
// small multiple of the file.
//
// # Why no library
//
// Readers that stream, and every one in Go does, copy packets, and forget which
// octet came in which packet. A file that is in memory needs neither, and what is
// left of the formats is small.
package capture
