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
// Results refer into copies of the packets that pcapgo makes, which nobody changes. The package copies
// octets again only when a message lies in several packets. Numbers in the file are used as positions,
// never as sizes to allocate, so memory stays within a small multiple of the file.
//
// # Libraries
//
// pcapgo reads the formats of files. The headers of frames, IP and TCP are read here, because captures
// cut them anywhere and have packets that are longer than IP allows, before segmentation offload: the
// layers of gopacket take neither from IPv6. iWARP and RPC are read here, too.
//
// gopacket's reassembly keeps a page of 2 KB for each early segment, even of one octet, without a bound by default. It
// counts a cut packet as short as it was captured, and drops what precedes the first packet or follows a FIN.
package capture
