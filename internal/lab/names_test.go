//go:build lab

package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
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

// learningBridge returns a guest that is ready and a bridge that learns names and has not started.
func learningBridge(t *testing.T) (g *guest, b *bridgeProcess) {
	t.Helper()
	needLab(t)
	g = newServer(t, packGuest(t))
	g.launch(t)
	b = newBridgeProcess(t, g)
	b.noProbes(t)
	b.configure(t, upstreamsKey, "names: {mode: on, sample: 100%}\n"+upstreamsKey)
	g.ready(t)
	return g, b
}

// TestLabNames: the hot files of a bridge are those that a kernel has read, with as many octets as it has read, also after names
// have changed. The removal at the end marks them.
func TestLabNames(t *testing.T) {
	g, b := learningBridge(t)
	b.start(t)
	far := farEnd{nfs: b.port, mount: b.port}
	for _, v := range []string{"3", "4.2"} {
		t.Run(v, func(t *testing.T) {
			out := g.job(t, 3*time.Minute, far.script(namesScript, v))
			if !strings.Contains(out, "reads 60") {
				t.Errorf("the client says %s", out)
			}
			files := b.hot(t).Files
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

// TestLabHot: six clients use three exports. The files and exports that a bridge shows are those that the clients' kernels have read,
// although names change meanwhile. A bridge that starts again counts from nothing, and knows the names that are looked up then.
func TestLabHot(t *testing.T) {
	g, b := learningBridge(t)
	g.job(t, time.Minute, "STEP=setup /lab/exports.sh") // one has a UUID: its fsid of NFSv3 is not that of NFSv4
	b.start(t)
	far := farEnd{nfs: b.port, mount: b.port}
	step := func(name string) string {
		return g.job(t, 3*time.Minute, far.script("STEP="+name+" /lab/hot.sh", "-"))
	}
	step("mount")
	out := step("work")
	n := b.hot(t)
	if n.Sample != 1 || n.Missed != 0 {
		t.Errorf("%v of the Calls were looked at, and %v missed", n.Sample, n.Missed)
	}
	testHotFiles(t, n.Files)
	testHotExports(t, out, n.Exports)
	b.wantNoErrors(t)
	b.stop(t)
	b.start(t)
	step("again")
	n = b.hot(t)
	slices.SortFunc(n.Files, mostRead)
	if len(n.Files) < 2 || n.Files[0].Read != 120*hotBlock || n.Files[1].Read != 40*hotBlock || len(n.Files) > 2 && n.Files[2].Read > 0 {
		t.Errorf("after a restart: %+v", n.Files)
	} else if open, named := n.Files[0], n.Files[1]; !strings.HasPrefix(open.Path, "handle ...") || open.Export != "unknown" && !strings.HasPrefix(open.Export, "fsid 0x8") ||
		!strings.HasPrefix(named.Path, "...") || !strings.HasSuffix(named.Path, "/read-80") || !strings.HasPrefix(named.Export, "fsid 0x0") {
		t.Errorf("after a restart, of a file that was open and of one that was looked up: %+v", n.Files[:2])
	}
	step("umount")
	b.wantNoErrors(t)
	b.stop(t)
}

// hotBlock is how many octets guest/hot.sh reads at a time.
const hotBlock = 4096

func mostRead(a, b hotFile) int { return cmp.Compare(b.Read, a.Read) }

// testHotFiles: the files that guest/hot.sh reads most are there, in the right order.
func testHotFiles(t *testing.T, files []hotFile) {
	slices.SortFunc(files, mostRead)
	for i, w := range []struct {
		path    string
		blocks  float64
		removed bool
	}{
		{"/export/hot/gone", 150, true},
		{"/export/hot/sub/read-110", 140, false}, // these two have changed names
		{"/export/archive/hot/sub/read-130", 130, false},
		{"/export/secret/hot/sub/read-120", 120, false},
		{"/export/hot/sub/read-140", 110, false},
		{"/export/archive/hot/sub/read-100", 100, false},
		{"/export/secret/hot/sub/read-90", 90, false},
		{"/export/hot/sub/read-80", 80, false},
		{"/export/archive/hot/sub/read-70", 70, false},
		{"/export/secret/hot/sub/read-60", 60, false},
	} {
		if i >= len(files) {
			t.Fatalf("%d files", len(files))
		}
		f := files[i]
		wrong := math.Abs(f.Read - w.blocks*hotBlock)
		if f.Path != w.path || f.Removed != w.removed || f.Calls == 0 || wrong > f.Read*f.Error/f.Calls {
			t.Errorf("number %d is %+v, want %+v with %v octets", i+1, f, w, w.blocks*hotBlock)
		}
	}
}

// testHotExports: the Calls and octets of each export are those that the clients say, within 2 %.
func testHotExports(t *testing.T, said string, exports []hotFile) {
	want := make(map[string]hotFile)
	for line := range strings.Lines(said) {
		var path string
		var calls, read, written float64
		if n, _ := fmt.Sscanf(line, "client %s %f %f %f", &path, &calls, &read, &written); n == 4 {
			w := want[path]
			want[path] = hotFile{Calls: w.Calls + calls, Read: w.Read + read, Written: w.Written + written}
		}
	}
	if len(want) != 3 || len(exports) != 3 {
		t.Errorf("the clients say %s, and the bridge %+v", said, exports)
	}
	for _, x := range exports {
		w := want[x.Export]
		t.Logf("%s: %.0f Calls of %.0f, %.0f octets read of %.0f, %.0f written of %.0f", x.Export, x.Calls, w.Calls, x.Read, w.Read, x.Written, w.Written)
		for got, want := range map[float64]float64{x.Calls: w.Calls, x.Read: w.Read, x.Written: w.Written} {
			if want == 0 || math.Abs(got-want) > want*0.02 {
				t.Errorf("export %s: %.0f, and the clients say %.0f", x.Export, got, want)
			}
		}
	}
}

// A hotFile is what the bridge says of a file or an export.
type hotFile struct {
	Path, Export                string
	Removed                     bool
	Calls, Error, Read, Written float64
}

// A hotView is what the bridge says of all.
type hotView struct {
	Sample, Missed float64
	Files, Exports []hotFile
}

// hot asks the bridge what is used most.
func (b *bridgeProcess) hot(t *testing.T) (n hotView) {
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
	if err := json.NewDecoder(r.Body).Decode(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
