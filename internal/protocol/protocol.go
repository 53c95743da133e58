// Package protocol recognises by its first octets what a peer speaks that was meant to speak something else.
package protocol

import (
	"encoding/binary"
	"strings"
)

// The protocols that Of recognises for which there is something to do: another port, or another transport.
const (
	RPC  = "ONC RPC over TCP"
	MPA  = "RDMA over iWARP (MPA)"
	TLS  = "TLS"
	HTTP = "HTTP"

	PROXY = "the PROXY protocol" // what a load balancer sends first
)

// Of returns the protocol in which b is the beginning of what a server sends, or "" if it is none that is known.
// b may be of any length.
func Of(b []byte) string {
	for _, p := range []struct{ begins, name string }{
		{"MPA ", MPA}, {"HTTP", HTTP}, {"SSH-", "SSH"}, {"\r\n\r\n", PROXY}, {"PROX", PROXY},
	} {
		if strings.HasPrefix(string(b), p.begins) {
			return p.name
		}
	}
	switch {
	case len(b) >= 3 && (b[0] == 0x15 || b[0] == 0x16) && b[1] == 3 && b[2] <= 4: // an alert, or a handshake, of SSL 3.0 to TLS 1.3
		return TLS
	case len(b) >= 12 && b[0]&0x80 != 0 && binary.BigEndian.Uint32(b[8:]) <= 1: // RFC 5531: the last fragment of a CALL, or of a REPLY
		return RPC
	}
	return ""
}
