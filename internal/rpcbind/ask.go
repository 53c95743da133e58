package rpcbind

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ask"
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
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	protocol := uint32(unix.IPPROTO_TCP)
	if transport == "udp" {
		protocol = unix.IPPROTO_UDP
	}
	server, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return 0, err
	}
	getAddr := !server.Addr().Unmap().Is4()
	asked, args := uint32(2), xdr.AppendWords(nil, program, version, protocol, 0)
	if getAddr {
		asked = 3
		args = xdr.AppendWords(nil, program, version)
		args = xdr.AppendWords(xdr.AppendOpaque(args, []byte(transport+"6")), 0, 0) // without an address and an owner
	}
	m, results, err := ask.On(c, maxMessage).Call(ctx, oncrpc.ProgramRPCBind, asked, 3, ask.Credential{}, args)
	if err != nil {
		return 0, err
	}
	return askedPort(m, results, getAddr)
}

// askedPort returns the port that the results in m have, to GETADDR or to GETPORT.
func askedPort(m []byte, results xdr.Cursor, getAddr bool) (uint16, error) {
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
