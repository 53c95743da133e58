package proxy_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// startHAProxy starts HAProxy with a configuration. It listens soon: dialHAProxy waits for that.
func startHAProxy(t *testing.T, config string) {
	t.Helper()
	program, err := exec.LookPath("haproxy")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("haproxy is not installed: make install")
		}
		t.Skip("haproxy is not installed: make install")
	}
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	head := "global\n  maxconn 200\ndefaults\n  mode tcp\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n"
	if err := os.WriteFile(file, []byte(head+config), 0o600); err != nil {
		t.Fatal(err)
	}
	var out testkit.Log
	cmd := exec.Command(program, "-db", "-f", file)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
}

// dialHAProxy connects from 127.0.1.host as soon as the other side listens. It makes no other connection, which
// would be given to one of the bridges, too.
func dialHAProxy(t *testing.T, host byte, addr string) (c *proxytest.Client) {
	t.Helper()
	testkit.Eventually(t, "a connection to "+addr, func() (ok bool) {
		var err error
		c, err = proxytest.DialClientFrom(net.IPv4(127, 0, 1, host), addr)
		return err == nil
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// haproxyBridge is a bridge that HAProxy, at 127.0.0.1, has clients for.
func haproxyBridge(t *testing.T, upstream settings.UpstreamOptions) (*proxytest.Harness, *proxy.Proxy) {
	h := proxytest.NewHarness(t, budget)
	return h, h.Proxy([]settings.ListenerOptions{{
		Name: "nfs", Address: "127.0.0.1:0", Upstream: upstream.Name,
		Proxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	}}, []settings.UpstreamOptions{upstream})
}

// clientsOf lists the addresses of the clients that have come through a proxy. 127.0.0.1 is not among them: it
// is a bridge itself.
func clientsOf(p *proxy.Proxy) (hosts []string) {
	for _, c := range p.Status(status.Query{Clients: 100}).Clients.List {
		if a := netip.MustParseAddrPort(c.Address).Addr().String(); c.Proxy != "" && a != "127.0.0.1" {
			hosts = append(hosts, a)
		}
	}
	slices.Sort(hosts)
	return hosts
}

// TestHAProxy: HAProxy in front of two bridges tells them who the clients are. When one of them stops
// listening, HAProxy notices by its own checks, and the other gets the clients. HAProxy's header of
// version 1 is refused.
func TestHAProxy(t *testing.T) {
	s := proxytest.NewHarness(t, budget).TCPServer(proxytest.Behaviour{})
	storage := settings.UpstreamOptions{Name: "storage", Endpoints: []string{s.Addr()}, SlowStart: 1024}
	ha, a := haproxyBridge(t, storage)
	hb, b := haproxyBridge(t, storage)
	front, old := testkit.FreeAddr(t), testkit.FreeAddr(t)
	startHAProxy(t, fmt.Sprintf(`
listen nfs
  bind %s
  balance roundrobin
  server a %s send-proxy-v2 proxy-v2-options crc32c check check-send-proxy inter 100ms fall 2
  server b %s send-proxy-v2 proxy-v2-options crc32c check check-send-proxy inter 100ms fall 2
listen old
  bind %s
  server a %s send-proxy
`, front, a.Addr("nfs"), b.Addr("nfs"), old, a.Addr("nfs")))

	for i := range byte(6) {
		check(t, dialHAProxy(t, i+1, front), proxytest.GetattrCall(uint32(i)+1))
	}
	hostsA, hostsB := clientsOf(a), clientsOf(b)
	all := slices.Concat(hostsA, hostsB)
	slices.Sort(all)
	if want := "127.0.1.1 127.0.1.2 127.0.1.3 127.0.1.4 127.0.1.5 127.0.1.6"; strings.Join(all, " ") != want || len(hostsA) != 3 {
		t.Errorf("the bridges see %v and %v", hostsA, hostsB)
	}
	for _, h := range []*proxytest.Harness{ha, hb} {
		h.Eventually("HAProxy has looked whether the bridge is there", func() bool {
			return metric(h, `listener_proxy_connections_total{address="proxy",listener="nfs"}`) > 0
		})
	}

	if _, err := dialHAProxy(t, 7, old).Call(proxytest.GetattrCall(7)); err == nil {
		t.Error("a header of version 1 is accepted")
	}
	if n := metric(ha, `listener_refused_connections_total{listener="nfs",reason="proxy_v1"}`); n < 1 {
		t.Errorf("%d connections refused for version 1", n)
	}

	a.StopAccepting()
	hb.Eventually("new clients are those of the other bridge", func() bool {
		before := len(clientsOf(b))
		for i := range byte(2) {
			c := dialHAProxy(t, 20+i, front)
			if _, err := c.Call(proxytest.GetattrCall(uint32(i) + 20)); err != nil {
				return false
			}
		}
		return len(clientsOf(b)) == before+2
	})
}

// TestHAProxyBehind: a bridge tells HAProxy, its upstream, who the clients are, and HAProxy tells the next
// bridge.
func TestHAProxyBehind(t *testing.T) {
	s := proxytest.NewHarness(t, budget).TCPServer(proxytest.Behaviour{})
	_, far := haproxyBridge(t, settings.UpstreamOptions{Name: "storage", Endpoints: []string{s.Addr()}})
	between := testkit.FreeAddr(t)
	startHAProxy(t, fmt.Sprintf(`
listen nfs
  bind %s accept-proxy
  server far %s send-proxy-v2-ssl-cn
`, between, far.Addr("nfs")))
	h := proxytest.NewHarness(t, budget)
	near := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "haproxy"}},
		[]settings.UpstreamOptions{{Name: "haproxy", Endpoints: []string{between}, Mode: settings.ModePinned, NamesClients: true}})
	for i := range byte(3) {
		check(t, dialHAProxy(t, i+1, near.Addr("nfs")), proxytest.GetattrCall(uint32(i)+1))
	}
	if hosts := clientsOf(far); strings.Join(hosts, " ") != "127.0.1.1 127.0.1.2 127.0.1.3" {
		t.Errorf("the far bridge sees %v", hosts)
	}
}
