package rpcbind

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// askTimeout bounds a question to another host.
const askTimeout = 3 * time.Second

// Ask asks the rpcbind at address, host:port of another host, for the TCP port of a version of a program. The port is 0
// if the program is not registered. Over IPv4 it asks by GETPORT of version 2, which every rpcbind has, and over IPv6
// by GETADDR of version 3, because Linux has no version 2 there.
func Ask(ctx context.Context, address string, program, version uint32) (port uint16, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return AskOn(ctx, c, "tcp", program, version)
}

// AskOn asks as Ask does, on a TCP connection to the rpcbind, for the port of a transport: tcp or udp.
func AskOn(ctx context.Context, c net.Conn, transport string, program, version uint32) (port uint16, err error) {
	deadline := time.Now().Add(askTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	_ = c.SetDeadline(deadline) // Read would say so
	protocol := uint32(unix.IPPROTO_TCP)
	if transport == "udp" {
		protocol = unix.IPPROTO_UDP
	}
	server, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return 0, err
	}
	const xid = 1
	getAddr := !server.Addr().Unmap().Is4()
	m := []byte{0x80, 0, 0, 0} // the record mark; its length is set below
	if getAddr {
		m = xdr.AppendWords(m, xid, oncrpc.TypeCall, oncrpc.RPCVersion, oncrpc.ProgramRPCBind, 3, 3, 0, 0, 0, 0, program, version)
		m = xdr.AppendWords(xdr.AppendOpaque(m, []byte(transport+"6")), 0, 0) // without an address and an owner
	} else {
		m = xdr.AppendWords(m, xid, oncrpc.TypeCall, oncrpc.RPCVersion, oncrpc.ProgramRPCBind, 2, 3, 0, 0, 0, 0, program, version, protocol, 0)
	}
	m[3] = byte(len(m) - 4)
	if _, err := c.Write(m); err != nil {
		return 0, err
	}
	var mark [4]byte
	if _, err := io.ReadFull(c, mark[:]); err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(mark[:]) &^ (1 << 31)
	if mark[0]&0x80 == 0 || n > maxMessage {
		return 0, errors.New("the answer is none of rpcbind")
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		return 0, err
	}
	return askedPort(b, getAddr)
}

// askedPort returns the port that the Reply m has, to GETADDR or to GETPORT.
func askedPort(m []byte, getAddr bool) (uint16, error) {
	var r oncrpc.Reply
	if err := oncrpc.ParseReply(m, &r); err != nil {
		return 0, err
	}
	if !r.Succeeded() {
		return 0, errors.New("rpcbind refuses the question")
	}
	results := xdr.NewCursor(m, r.Results)
	if !getAddr {
		port := results.Uint32()
		if !results.OK() || port > 65535 {
			return 0, fmt.Errorf("rpcbind answers with port %d", port)
		}
		return uint16(port), nil
	}
	pos, n := results.Opaque()
	if results.OK() && n == 0 {
		return 0, nil
	}
	a, ok := parseUaddr(m[pos : pos+n])
	if !results.OK() || !ok {
		return 0, errors.New("rpcbind answers with an address that is none")
	}
	return a.Port(), nil
}
