//go:build lab

package lab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// testMadeUpHandles: the kernel's server takes handles for those of an export that it has not given out, with the device's number in place
// of the export's UUID. The bridge at port, whose rule denies changes of /export/archive, does not let them by.
func testMadeUpHandles(t *testing.T, g *guest, port int) {
	out := g.job(t, time.Minute, "stat -c 'archive %d %i' /export/archive; echo PASS")
	var dev, ino uint64
	if _, err := fmt.Sscanf(out, "archive %d %d", &dev, &ino); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	major, minor := uint32(dev>>8), uint32(dev&0xff)
	little := binary.LittleEndian.AppendUint32
	device := testkit.AppendWords([]byte{1, 0, 0, 0}, major<<16|minor)
	encoded := little([]byte{1, 0, 3, 0}, uint32(dev))
	handles := map[string][]byte{"device": little(device, uint32(ino)), "encoded device": little(encoded, uint32(ino))}
	calls := func(port int) (status func(procedure uint32, handle []byte) uint32) {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		return func(procedure uint32, handle []byte) uint32 {
			t.Helper()
			m := testkit.Words(procedure, 0, 2, 100003, 3, procedure, 1)   // AUTH_SYS
			m = testkit.AppendOpaque(m, testkit.Words(0, 0, 0, 0, 0))      // root
			m = testkit.AppendOpaque(testkit.AppendWords(m, 0, 0), handle) // no verifier
			if procedure == 2 {                                            // SETATTR of the mode
				m = testkit.AppendWords(m, 1, 0o755, 0, 0, 0, 0, 0, 0)
			}
			if err := testkit.WriteRecord(c, m); err != nil {
				t.Fatal(err)
			}
			r, err := testkit.ReadRecord(c)
			if err != nil || len(r) < 28 || !bytes.Equal(r[:24], testkit.Words(procedure, 1, 0, 0, 0, 0)) {
				t.Fatalf("%v, the Reply is %x", err, r)
			}
			return binary.BigEndian.Uint32(r[24:])
		}
	}
	server, bridge := calls(g.nfs), calls(port)
	const rofs = 30 // NFS3ERR_ROFS
	for kind, h := range handles {
		if s := server(1, h); s != 0 {
			t.Errorf("the server does not take a handle with the key %s: the status of GETATTR is %d", kind, s)
		}
		if s := bridge(2, h); s != rofs {
			t.Errorf("SETATTR with the key %s through the bridge: the status is %d, want %d", kind, s, rofs)
		}
	}
}
