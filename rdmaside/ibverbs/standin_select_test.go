//go:build ibverbs

package ibverbs

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// onStandInHost makes sysfs and the addresses of this host those of the stand-in.
func onStandInHost(t *testing.T, addrs ...string) {
	if standIn == nil {
		t.Skip("the tests run on a device")
	}
	class, list := sysClass, hostAddrs
	t.Cleanup(func() { sysClass, hostAddrs = class, list })
	v4 := func(n string) string { return "0000:0000:0000:0000:0000:ffff:7f00:000" + n }
	sysClass = writeClass(t, map[string][]string{
		"standin0/1": {v4("1"), "0000:0000:0000:0000:0000:0000:0000:0001"},
		"standin1/1": {v4("2"), "fd00:0000:0000:0000:0000:0000:0000:0002"},
		"standin1/2": {v4("3"), "fd00:0000:0000:0000:0000:0000:0000:0003"},
	})
	hostAddrs = func() (out []hostAddr, err error) {
		for _, a := range addrs {
			p := netip.MustParsePrefix(a)
			out = append(out, hostAddr{p.Addr(), p})
		}
		return out, nil
	}
}

// dialSelected dials with a Provider of its own. done ends the connection.
func dialSelected(t *testing.T, o Options, addr string) (c *conn, done func(), err error) {
	t.Helper()
	o.DialTimeout, o.AcceptTimeout = patience, patience
	p, err := New(o)
	if err != nil {
		return nil, nil, err
	}
	loop := fabrictest.NewLoop()
	own := newRecorder()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	got, err := p.Dial(ctx, loop, addr, fabric.ConnOptions{Sends: 4, Receives: 4}, own)
	if err != nil {
		loop.Stop()
		return nil, nil, err
	}
	return got.(*conn), func() {
		loop.Do(func() { got.Close(nil) })
		waitClosed(t, own, "")
		loop.Stop()
	}, nil
}

// testDialFrom checks that a Dial to an address comes from a device, a port and an address, or that its error
// says want.
func testDialFrom(t *testing.T, o Options, to, device string, port int, from, want string) {
	t.Helper()
	leaks := watchLeaks()
	et := newEventTest(t, to+":0")
	c, done, err := dialSelected(t, o, et.l.Addr().String())
	if mustSay(t, err, want); err == nil {
		_, p := idContext(c.id.handle)
		if c.d.dev.name != device || p != port || c.info.Local.Addr().String() != from {
			t.Errorf("the connection is from %s, port %d, %v", c.d.dev.name, p, c.info.Local)
		}
		done()
		<-(<-et.otherc).closedc
	}
	et.close()
	leaks(t)
}

// TestSelectDial checks from which device, port and address a Dial connects, and that it says so when
// there is none.
func TestSelectDial(t *testing.T) {
	addrs := []string{
		"127.0.0.4/8", "127.0.0.1/8", "127.0.0.2/8", "127.0.0.3/32", // the first is at no device
		"::1/128", "fd00::2/64", "fd00::3/64", "fe80::1/64",
	}
	ip := netip.MustParseAddr
	for _, tt := range []struct {
		name   string
		s      Selector
		addrs  []string
		listen string
		device string
		port   int
		from   string
		want   string // in the error
	}{
		{"the route decides", Selector{}, addrs, "127.0.0.2", "standin0", 1, "127.0.0.1", ""},
		{"the first device", Selector{Device: "standin0"}, addrs, "127.0.0.2", "standin0", 1, "127.0.0.1", ""},
		{"another device", Selector{Device: "standin1"}, addrs, "127.0.0.1", "standin1", 1, "127.0.0.2", ""},
		{"another port", Selector{Device: "standin1", Port: 2}, addrs, "127.0.0.1", "standin1", 2, "127.0.0.3", ""},
		{"a port of any device", Selector{Port: 2}, addrs, "127.0.0.1", "standin1", 2, "127.0.0.3", ""},
		{"a GID", Selector{GID: ip("::ffff:127.0.0.2")}, addrs, "127.0.0.1", "standin1", 1, "127.0.0.2", ""},
		{"IPv6", Selector{Device: "standin1"}, addrs, "[fd00::3]", "standin1", 1, "fd00::2", ""},
		{"IPv6, a GID", Selector{GID: ip("fd00::3")}, addrs, "[fd00::2]", "standin1", 2, "fd00::3", ""},
		{"a near address first", Selector{Device: "standin1"}, []string{"127.0.0.3/32", "127.0.0.2/8"}, "127.0.0.1", "standin1", 1, "127.0.0.2", ""},
		{"no address", Selector{Device: "standin1"}, addrs[:2], "127.0.0.1", "", 0, "", "no IPv4 address of this host is at device standin1"},
		{"no IPv6 address", Selector{Device: "standin1", Port: 2}, addrs[:6], "[fd00::2]", "", 0, "", "no IPv6 address of this host is at device standin1, port 2"},
		{"no such device", Selector{Device: "standin2"}, addrs, "127.0.0.1", "", 0, "", "there is no RDMA device standin2"},
		{"no such port", Selector{Device: "standin0", Port: 2}, addrs, "127.0.0.1", "", 0, "", "there is no port 2"},
		{"no such GID", Selector{Device: "standin0", GID: ip("fd00::2")}, addrs, "127.0.0.1", "", 0, "", "no port has the GID fd00::2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onStandInHost(t, tt.addrs...)
			testDialFrom(t, Options{Select: tt.s}, tt.listen, tt.device, tt.port, tt.from, tt.want)
		})
	}
}

// TestSource checks that a Dial comes from the configured address, on the device that has it, and that
// it says what is wrong with an address that it cannot come from.
func TestSource(t *testing.T) {
	for _, tt := range []struct {
		name, source string
		s            Selector
		to           string
		device       string
		port         int
		want         string // in the error
	}{
		{"of the first device", "127.0.0.1", Selector{}, "127.0.0.2", "standin0", 1, ""},
		{"of the second device", "127.0.0.2", Selector{}, "127.0.0.1", "standin1", 1, ""},
		{"of its other port", "127.0.0.3", Selector{}, "127.0.0.1", "standin1", 2, ""},
		{"IPv6", "fd00::3", Selector{}, "[fd00::2]", "standin1", 2, ""},
		{"as the selector has it", "127.0.0.3", Selector{Device: "standin1"}, "127.0.0.1", "standin1", 2, ""},
		{"not as the selector has it", "127.0.0.1", Selector{Device: "standin1"}, "127.0.0.2", "", 0, "device standin0, port 1"},
		{"at no device", "127.0.0.4", Selector{}, "127.0.0.1", "", 0, "127.0.0.4"},
		{"of another family", "fd00::3", Selector{}, "127.0.0.1", "", 0, "the source address fd00::3 is of another family"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onStandInHost(t, "127.0.0.1/8")
			o := Options{Select: tt.s, Source: netip.MustParseAddr(tt.source)}
			testDialFrom(t, o, tt.to, tt.device, tt.port, tt.source, tt.want)
		})
	}
}

// TestSelectNoLoopback checks that a Dial of another host does not come from a loopback address.
func TestSelectNoLoopback(t *testing.T) {
	onStandInHost(t, "127.0.0.1/8", "::1/128")
	for _, to := range []string{"10.1.0.5:20049", "[fd00::5]:20049"} {
		_, _, err := dialSelected(t, Options{Select: Selector{Device: "standin0"}}, to)
		mustSay(t, err, "address of this host is at device standin0")
	}
}

// TestSelectListen checks that a listener at another device's address fails, and that one at all
// addresses refuses connections on other devices.
func TestSelectListen(t *testing.T) {
	onStandInHost(t, "127.0.0.1/8", "127.0.0.2/8", "127.0.0.3/8")
	leaks := watchLeaks()
	listen := func(o Options, addr string) (fabric.Listener, chan string, error) {
		o.DialTimeout, o.AcceptTimeout = patience, patience
		p, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		refusedc := make(chan string, 8)
		l, err := p.Listen(addr, fabric.ListenOptions{
			MaxConnections: -1, MaxStarting: -1, MaxStartingPerAddr: -1,
			Refused: func(_ netip.AddrPort, reason string, err error) { refusedc <- reason + ": " + err.Error() },
		}, func(in fabric.Incoming) { refusedc <- "passed on"; _ = in.Reject(nil) })
		return l, refusedc, err
	}
	second := Selector{Device: "standin1", Port: 2}
	for addr, want := range map[string]string{
		"127.0.0.1:0": "the address is at device standin0, port 1, GID ::ffff:127.0.0.1, and device standin1, port 2 is configured",
		"127.0.0.2:0": "the address is at device standin1, port 1",
		"127.0.0.3:0": "",
		"127.0.0.4:0": "cannot assign requested address",
	} {
		l, _, err := listen(Options{Select: second}, addr)
		if mustSay(t, err, want); err == nil {
			l.Close()
		}
		if err := Check(Options{Select: second}, addr); err != nil || want != "" {
			mustSay(t, err, want)
		}
	}
	l, refusedc, err := listen(Options{Select: second}, "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(l.Addr().String(), ":")
	for host, want := range map[string]string{
		"127.0.0.1:": "device: ibverbs: connection from 127.0.0.1:",
		"127.0.0.2:": "device: ibverbs: connection from 127.0.0.1:",
		"127.0.0.3:": "passed on",
	} {
		if _, _, err := dialSelected(t, Options{}, host+port); err == nil || !strings.Contains(err.Error(), "rejected") {
			t.Errorf("Dial of %s: %v", host, err)
		}
		if got := <-refusedc; !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
	l.Close()
	leaks(t)
}

// TestTrafficClass checks that a Dial sets the type of service before the address is resolved, and that
// a listener has none of its own where it would not count.
func TestTrafficClass(t *testing.T) {
	onStandInHost(t)
	leaks := watchLeaks()
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		et := newEventTest(t, addr)
		for _, tos := range []uint8{104, 0, 255} {
			c, done, err := dialSelected(t, Options{TOS: tos}, et.l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			if got := standIn.tos.Load(); got != uint32(tos) {
				t.Errorf("the connection %v has type of service %d, want %d", c.info.Local, got, tos)
			}
			done()
			<-(<-et.otherc).closedc
		}
		et.close()
	}
	for addr, want := range map[string]string{"127.0.0.1:0": "has no traffic class of its own", "0.0.0.0:0": ""} {
		mustSay(t, Check(Options{TOS: 104}, addr), want)
		p, err := New(Options{DialTimeout: patience, AcceptTimeout: patience, TOS: 104})
		if err != nil {
			t.Fatal(err)
		}
		l, err := p.Listen(addr, fabric.ListenOptions{MaxConnections: -1, MaxStarting: -1, MaxStartingPerAddr: -1}, func(fabric.Incoming) {})
		if mustSay(t, err, want); err == nil {
			l.Close()
			if got := standIn.listenTOS.Load(); got != 104 {
				t.Errorf("the listener at %s has type of service %d", addr, got)
			}
		}
	}
	leaks(t)
}
