package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/tlstest"
)

// A silentConn is a client in a handshake that reads nothing of it.
type silentConn struct {
	net.Conn
	closed chan struct{}
}

func (c silentConn) Read([]byte) (int, error) {
	<-c.closed
	return 0, net.ErrClosed
}

// TestReloadTLSBudget: the limits of TLS handshakes apply at the start, and change with a reload.
func TestReloadTLSBudget(t *testing.T) {
	s := startEchoServer(t, "one!")
	dir := t.TempDir()
	p := tlstest.NewCA(t, "servers").Issue(t, tlstest.Subject{Name: "server", Names: []string{"localhost"}})
	cert, key := tlstest.Write(t, dir, "server.pem", p.Cert), tlstest.Write(t, dir, "server.key", p.Key)
	config := func(handshakes int) string {
		return fmt.Sprintf(`
listeners: [{name: nfs, address: '127.0.0.1:0', upstream: server, tls: {mode: required, certificate: %s, key: %s}}]
upstreams: [{name: server, transport: tcp, endpoints: ['%s']}]
admin: {address: 127.0.0.1:0}
reload: {watch: none}
tls: {handshakes: %d, waiting: 5}
`, cert, key, s.addr, handshakes)
	}
	x := startReload(t, config(1))
	closed := make(chan struct{})
	begin := func() {
		t.Helper()
		c, err := net.Dial("tcp", x.b.proxy.Addr("nfs"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if err := testkit.WriteRecord(c, oncrpc.AppendTLSProbe(nil, 7, oncrpc.ProgramNFS, 3)); err != nil {
			t.Fatal(err)
		}
		if _, err := testkit.ReadRecord(c); err != nil {
			t.Fatal(err)
		}
		go tls.Client(silentConn{c, closed}, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"sunrpc"}}).Handshake()
	}
	defer close(closed)
	begin()
	begin()
	const waited = `rdmabridge_tls_handshake_waits_total{side="listeners"} 1`
	testkit.Eventually(t, "the second handshake waits", func() bool { return x.has(waited) })
	x.reload(config(3), loaded)
	begin()
	begin()
	const running = `rdmabridge_tls_running_handshakes{side="listeners"} 3`
	testkit.Eventually(t, "three handshakes are under way", func() bool { return x.has(running) })
	x.stop()
}
