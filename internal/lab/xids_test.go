//go:build lab

package lab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"
)

// testXIDs: eight clients use the same XIDs at the same time, with AUTH_SYS and with Kerberos,
// over two connections to the server. Each gets the Replies to its own Calls.
//
// With AUTH_SYS the bridge chooses different XIDs. XIDs of RPCSEC_GSS are signed, so the bridge
// sends the Calls over different connections, one after the other if each connection has a
// Call with that XID. No Call is refused, and none waits forever.
func testXIDs(t *testing.T, g *guest) {
	b := newBridgeProcess(t, g)
	b.noProbes(t)
	b.configure(t, "connections: 4,", "connections: 2,")
	b.start(t)
	g.job(t, time.Minute, "/lab/disk.sh && /lab/krb5.sh start")
	defer g.job(t, time.Minute, "/lab/krb5.sh stop")
	const collisions = `upstream_xid_collisions_total{upstream="storage"}`
	type flavor struct {
		sec    string
		rounds int
	}
	sys, krb5, krb5i := flavor{"sys", 200}, flavor{"krb5", 80}, flavor{"krb5i", 40}
	for _, flavor := range some([]flavor{sys, krb5, krb5i}, sys, krb5i) {
		t.Run(flavor.sec, func(t *testing.T) {
			before := b.metric(t, collisions)
			t.Log(g.job(t, 3*time.Minute, fmt.Sprintf("SEC=%s ROUNDS=%d /lab/xids.sh bridge.lab %d %d", flavor.sec, flavor.rounds, b.port, b.port)))
			n := b.metric(t, collisions) - before
			t.Logf("%.0f collisions on connections to the server", n)
			// Six of the eight Calls of a round find both connections taken, if they come
			// together. The last round's do.
			if gss := flavor.sec != "sys"; gss && n < 6 {
				t.Error("too few collisions: this tests nothing")
			} else if !gss && n != 0 {
				t.Error("XIDs that the bridge chose collided")
			}
			b.wantQuiet(t)
			b.wantNothingLost(t)
		})
	}
	t.Run("held", func(t *testing.T) {
		testXIDsHeld(t, g, b)
		b.wantQuiet(t)
	})
	b.stop(t)
}

// wantNothingLost fails if the bridge did not answer a Call.
func (b *bridgeProcess) wantNothingLost(t *testing.T) {
	t.Helper()
	for _, name := range []string{
		`listener_calls_total{listener="nfs",result="abandoned"}`,
		`upstream_calls_total{outcome="error",upstream="storage"}`,
		`upstream_calls_total{outcome="lost",upstream="storage"}`,
	} {
		if n := b.metric(t, name); n != 0 {
			t.Errorf("%s is %.0f", name, n)
		}
	}
}

// testXIDsHeld: eight clients send a READ with the same XID to a server that is stopped. Here
// it is certain that all eight are at the server at once. Each client gets its own data.
func testXIDsHeld(t *testing.T, g *guest, b *bridgeProcess) {
	const clients, size = 8, 70000
	g.job(t, time.Minute, fmt.Sprintf("mkdir /export/xids && cd /export/xids && for i in $(seq 0 %d); do yes file$i | head -c $((%d + i)) > f$i; done", clients-1, size))
	root := mountRoot(t, b.port, "/export/xids")
	xid := freshXID()
	var cs [clients]*rawClient
	var files [clients][]byte
	for i := range cs {
		cs[i] = dialRaw(t, b.port)
		files[i] = cs[i].lookup(t, root, fmt.Sprintf("f%d", i))
	}
	g.standStill(t, func() {
		for i, c := range cs {
			m := nfsCall(xid, 6, files[i])
			m = binary.BigEndian.AppendUint64(m, uint64(i))
			c.send(t, binary.BigEndian.AppendUint32(m, size))
		}
		waitFor(t, 20*time.Second, "each client's READ at the server", func() bool {
			return b.metric(t, `upstream_credits_used{upstream="storage"}`) == clients
		})
	})
	for i, c := range cs {
		r := c.receive(t)
		if got := binary.BigEndian.Uint32(r); got != xid {
			t.Errorf("client %d: XID %#x, want %#x", i, got, xid)
		}
		// After status and attributes: count, eof, and the data with their length.
		body := result(t, r)
		want := []byte(strings.Repeat(fmt.Sprintf("file%d\n", i), size))[i : i+size]
		if len(body) < 4+88+12 || !bytes.Equal(body[4+88+12:], want) {
			t.Errorf("client %d: %d octets, of which the first are %q", i, len(body), head(body[min(len(body), 4+88+12):], 2))
		}
	}
	g.job(t, time.Minute, "rm -r /export/xids")
}
