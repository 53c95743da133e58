package iwarp

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// TestSource checks that a Dial comes from the configured address, each time, and that it says so when this
// host does not have the address.
func TestSource(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	peers := make(chan netip.AddrPort, 10)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			peers <- addrPort(c.RemoteAddr())
			c.Close()
		}
	}()
	for _, a := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.2"} {
		p := &Provider{opts: Options{Source: netip.MustParseAddr(a)}}
		nc, err := p.connect(context.Background(), ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		nc.Close()
		if got := (<-peers).Addr().String(); got != a {
			t.Errorf("the connection comes from %s, want %s", got, a)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p := &Provider{opts: Options{Source: netip.MustParseAddr("192.0.2.77")}}
	if _, err := p.connect(ctx, ln.Addr().String()); err == nil || !strings.Contains(err.Error(), "this host does not have the source address 192.0.2.77") {
		t.Errorf("an address of no host here: %v", err)
	}
	p = &Provider{opts: Options{Source: netip.MustParseAddr("::1")}}
	if _, err := p.connect(ctx, ln.Addr().String()); err == nil {
		t.Error("a source of another family is accepted")
	}
}
