//go:build lab

package lab

import (
	"testing"
	"time"
)

// testKerberos: files work with Kerberos, and the server identifies users by their tickets.
// With RPCSEC_GSS the data of READ and WRITE may travel in chunks if only the header of a
// message is signed. A message that is signed or encrypted whole has to travel whole.
func testKerberos(t *testing.T, g *guest, b *bridgeProcess, far farEnd) {
	g.job(t, time.Minute, "/lab/krb5.sh start")
	defer g.job(t, time.Minute, "/lab/krb5.sh stop")
	far.host = "bridge.lab" // the server's principal is nfs/bridge.lab
	for sec, selection := range map[string]string{"krb5": "4.2", "krb5i": "3", "krb5p": "4.2"} {
		for _, v := range some([]string{"3", "4.2"}, selection) {
			t.Run(sec+"/"+v, func(t *testing.T) {
				before := b.shapes(t)
				g.job(t, 2*time.Minute, far.script("SEC="+sec+" /lab/users.sh", v))
				g.job(t, 4*time.Minute, far.script("SEC="+sec+" LOCKS=no NAMES=300 SIZES='0 1 3 4095 4096 65537 1048577' /lab/files.sh", v))
				b.wantQuiet(t)
				if b == nil {
					return
				}
				got := b.shapes(t).since(before)
				t.Logf("%+v", got)
				reduced, whole := got.readChunks > 0 && got.writeChunks > 0, got.longCalls > 0 && got.replyChunks > 0
				switch {
				case sec == "krb5" && !reduced:
					t.Errorf("%+v, want data in Read and Write chunks", got)
				case sec != "krb5" && (got.readChunks != 0 || got.writeChunks != 0 || !whole):
					t.Errorf("%+v, want every message whole, large ones in Position Zero Read chunks and Reply chunks", got)
				}
			})
		}
	}
}
