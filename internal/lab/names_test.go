//go:build lab

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// namesScript makes files in a directory of a name of its own, renames and removes some, and reads the others as often as their
// names say. It looks up each again, since a client that has made a file knows it.
const namesScript = `sh -c '. /lab/lib.sh
do_mount
d=/mnt/names-$vers
mkdir $d $d/sub
random 65536 > $d/was
mv $d/was $d/sub/read-40
random 65536 > $d/read-20
random 65536 > $d/gone
rm $d/gone
random 65536 > $d/gone
ln $d/gone $d/link
rm $d/gone
cold
for n in 40 20; do
	f=$(find /mnt/names-$vers -name read-$n)
	for i in $(seq $n); do dd if=$f of=/dev/null bs=4k count=1 iflag=direct 2> /dev/null || die read; done
done
echo reads $(ops READ)
rm -r $d
do_umount' sh`

// TestLabNames: the hot files of a bridge are those that a kernel has read, with as many octets as it has read, also after names
// have changed. The removal at the end marks them.
func TestLabNames(t *testing.T) {
	needLab(t)
	g := newServer(t, packGuest(t))
	g.launch(t)
	b := newBridgeProcess(t, g)
	b.noProbes(t)
	b.configure(t, upstreamsKey, "names: {mode: on}\n"+upstreamsKey)
	g.ready(t)
	b.start(t)
	far := farEnd{nfs: b.port, mount: b.port}
	for _, v := range []string{"3", "4.2"} {
		t.Run(v, func(t *testing.T) {
			out := g.job(t, 3*time.Minute, far.script(namesScript, v))
			if !strings.Contains(out, "reads 60") {
				t.Errorf("the client says %s", out)
			}
			files := b.hotFiles(t)
			for name, reads := range map[string]float64{"sub/read-40": 40, "read-20": 20} {
				path := fmt.Sprintf("names-%s/%s", v, name)
				found := false
				for _, f := range files {
					if strings.HasPrefix(f.Path, "/") && strings.HasSuffix(f.Path, "/"+path) {
						found = true
						if f.Read != reads*4096 || !f.Removed || !strings.HasPrefix(f.Export, "/") {
							t.Errorf("%s: %+v, want %v octets read", path, f, reads*4096)
						}
					}
				}
				if !found {
					t.Errorf("%s is not there: %+v", path, files)
				}
			}
		})
	}
	b.wantQuiet(t)
	b.stop(t)
}

// A hotFile is what the bridge says of a file.
type hotFile struct {
	Path, Export         string
	Removed              bool
	Calls, Read, Written float64
}

// hotFiles asks the bridge which files are used most.
func (b *bridgeProcess) hotFiles(t *testing.T) []hotFile {
	t.Helper()
	var d net.Dialer
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return d.DialContext(ctx, "unix", b.socket)
	}}}
	defer c.CloseIdleConnections()
	r, err := c.Get("http://bridge/api/v1/names?minutes=10&rows=1000")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var n struct{ Files []hotFile }
	if err := json.NewDecoder(r.Body).Decode(&n); err != nil {
		t.Fatal(err)
	}
	return n.Files
}
