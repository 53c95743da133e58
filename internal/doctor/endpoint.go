package doctor

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A Target is an endpoint of an upstream, and how the bridge would connect to it.
type Target struct {
	Upstream, Address string // the address is host:port
	Programs          []Program

	RDMA     bool
	Provider fabric.Provider // nil for TCP
	Name     string          // of the provider

	Credits, CallInline, ReplyInline int // of an RDMA upstream

	Source    netip.Addr // of a TCP upstream; the zero Addr lets the kernel choose
	Low, High uint16     // its range of source ports; 0: any
	TLS       *TLS       // of a TCP upstream; nil for none

	Connect time.Duration // bounds setting up the connection
	Call    time.Duration // bounds a Call
}

// A Program is an RPC program in a version.
type Program struct {
	Number  uint32 `json:"program"`
	Version uint32 `json:"version"`
	Name    string `json:"name"` // "" if it has none
}

// An Endpoint is what Prober.Ask found at a Target.
type Endpoint struct {
	Upstream  string `json:"upstream"`
	Address   string `json:"address"`
	Transport string `json:"transport"` // tcp or rdma
	Provider  string `json:"provider,omitempty"`

	Connected bool            `json:"connected"`
	Local     string          `json:"local,omitempty"`
	Peer      string          `json:"peer,omitempty"`
	TLS       bool            `json:"tls"`
	Setup     float64         `json:"setup_ms"` // how long connecting took
	Answers   []ProgramAnswer `json:"answers"`

	// Of a connection over RDMA.
	PrivateData *PrivateData `json:"private_data"` // nil if the peer sent none of RFC 8797
	CallInline  int          `json:"call_inline,omitempty"`
	ReplyInline int          `json:"reply_inline,omitempty"`
	Credits     int          `json:"credits,omitempty"` // in effect: granted, and no more than asked for
}

// A ProgramAnswer is the Reply to a NULL Call.
type ProgramAnswer struct {
	Program
	Answer string  `json:"answer"` // such as success, or program unavailable
	Time   float64 `json:"ms"`
}

// PrivateData is the peer's private data of RFC 8797.
type PrivateData struct {
	Hex                string `json:"hex"`
	RemoteInvalidation bool   `json:"remote_invalidation"`
	SendSize           int    `json:"send_size"`
	ReceiveSize        int    `json:"receive_size"`
}

// privateData finds the private data of RFC 8797 in what the peer sent; nil if there is none.
func privateData(b []byte) *PrivateData {
	p, ok := rpcrdma.FindPrivateData(b)
	if !ok {
		return nil
	}
	// RoCE and InfiniBand fill the rest of the longest private data with zeros.
	b = b[:min(xdr.Roundup(len(bytes.TrimRight(b, "\x00"))), len(b), 64)]
	return &PrivateData{hex.EncodeToString(b), p.RemoteInvalidation, p.SendSize, p.RecvSize}
}

// newEndpoint returns what is known of a Target before it is asked.
func newEndpoint(t *Target) Endpoint {
	e := Endpoint{Upstream: t.Upstream, Address: t.Address, Transport: "tcp", Answers: []ProgramAnswer{}}
	if t.RDMA {
		e.Transport, e.Provider = "rdma", t.Name
	}
	return e
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
