//go:build lab

package lab

import (
	"fmt"
	"testing"
	"time"
)

// testTrunking has two bridges, at two addresses, before one server. guest/trunking.sh says what Linux
// does then. In the end a third bridge takes the address of the first, as when an address moves from a
// host that has died.
func testTrunking(t *testing.T, g *guest) {
	const a, b, port = "192.0.2.1", "192.0.2.2", 2049
	for _, address := range []string{a, b} {
		command(t, 10*time.Second, "ip", "address", "replace", address+"/32", "dev", "lo")
	}
	bridge := func(identity, address string) *bridgeProcess {
		admin := freePorts(t, 1)[0]
		return newBridgeWith(t, port, admin, fmt.Sprintf(`
identity: %s
listeners:
  - {name: nfs, address: "%s:%d", transport: tcp, upstream: storage}
upstreams:
  - {name: storage, transport: rdma, provider: iwarp, endpoints: ["127.0.0.1:%d"], pool: {connections: %d}}
memory: {budget: 64MiB}
admin: {address: 127.0.0.1:%d}
log: {level: info, format: json}
`, identity, address, port, g.rdma, sessionsConnections, admin))
	}
	step := func(name string) {
		t.Log(g.job(t, 3*time.Minute, fmt.Sprintf("STEP=%s /lab/trunking.sh %s %s %d", name, a, b, port)))
	}
	first, second, third := bridge("the first", a), bridge("the second", b), bridge("the third", a)
	first.start(t)
	second.start(t)
	step("mount")
	first.wantQuiet(t)
	first.kill(t)
	third.start(t)
	step("check")
	for _, b := range []*bridgeProcess{second, third} {
		b.wantNoErrors(t)
		b.stop(t)
	}
}
