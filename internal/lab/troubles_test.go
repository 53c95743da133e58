//go:build lab

package lab

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A trouble is what makes a mount slow, and the code under which the bridge must name it.
type trouble struct {
	code string
	// begin makes it, until stop is called.
	begin func(t *testing.T, l *troubleLab) (stop func())
}

var troubles = []trouble{
	{"server_slow", slowDisk},
	{"credits_starved", flood},
	{"client_slow", slowReader},
	{"wire_lossy", lossyWire},
}

// TestLabTroubles: a slow disk, a starved pool, a slow client and a lossy wire are told apart.
//
//	clients of this test -- TCP --> rdmabridge -- iWARP --> the guest's knfsd -- a disk that can be slow
//
// The JSON of the status page must name the trouble that was made first, and none of the others, and so
// must `rdmabridge top`. With RDMABRIDGE_LAB_BLIND=DIR the test makes eight troubles in a random order, more or less bad, and
// only writes what top says to DIR/1.txt and so on, and to DIR/answers what they were, so that somebody can
// guess first.
func TestLabTroubles(t *testing.T) {
	needLab(t)
	l := newTroubleLab(t)
	if dir := os.Getenv("RDMABRIDGE_LAB_BLIND"); dir != "" {
		l.blind(t, dir)
		return
	}
	t.Run("none", func(t *testing.T) {
		d, top := l.look(t, &trouble{begin: nothingWrong})
		for _, p := range d.Problems {
			// Beside other guests, this one may really be slow.
			if p.Severity != "notice" && p.Code != "server_slow" {
				t.Errorf("nothing is wrong, and the bridge says %s: %s\n%s", p.Code, p.Text, top)
			}
		}
	})
	for i := range troubles {
		x := &troubles[i]
		t.Run(x.code, func(t *testing.T) {
			d, top := l.look(t, x)
			// Beside other guests, this one may really be slow, and what it sends late looks lost for a while.
			for range 2 {
				slow := slices.ContainsFunc(d.Problems, func(p statusProblem) bool { return p.Code == "server_slow" })
				if len(d.Problems) > 0 && d.Problems[0].Code == x.code && (!slow || x.code == "server_slow") {
					break
				}
				t.Logf("once more; the bridge says %+v\n%s", d.Problems, top)
				d, top = l.look(t, x)
			}
			if len(d.Problems) == 0 || d.Problems[0].Code != x.code {
				t.Errorf("the bridge says %+v", d.Problems)
			}
			for _, p := range d.Problems {
				for _, other := range troubles {
					if p.Code == other.code && p.Code != x.code {
						t.Errorf("it also says %s: %s", p.Code, p.Text)
					}
				}
			}
			// top breaks lines.
			if len(d.Problems) > 0 && !strings.Contains(strings.Join(strings.Fields(top), " "), strings.Join(strings.Fields(d.Problems[0].Text)[:5], " ")) {
				t.Errorf("top does not say: %s", d.Problems[0].Text)
			}
			t.Logf("%s", top)
		})
	}
}

// A troubleLab is a guest with a disk that can be slow, and a bridge before it.
type troubleLab struct {
	g            *guest
	b            *bridgeProcess
	control      string
	data, synced []byte // file handles: of 8 MiB in memory, and on the disk

	// How bad the troubles are.
	disk    int           // milliseconds of a write
	credits int           // of the starved pool
	octets  int           // that the slow client reads in 100 ms
	lost    time.Duration // of each 250 ms or so, in which nothing passes
}

func newTroubleLab(t *testing.T) *troubleLab {
	t.Helper()
	l := &troubleLab{disk: 150, credits: 1, octets: 6 << 10, lost: 20 * time.Millisecond}
	l.g = bootGuest(t)
	l.g.job(t, time.Minute, `/lab/slowdisk.sh 0 && head -c 8388608 /dev/zero > /export/data && head -c 1048576 /dev/zero > /export/slow/f &&
chmod 666 /export/data /export/slow/f && sync`)
	direct := dialRaw(t, l.g.nfs)
	defer direct.Close()
	l.data = direct.lookup(t, mountRoot(t, l.g.mount, "/export"), "data")
	l.synced = direct.lookup(t, mountRoot(t, l.g.mount, "/export/slow"), "f")
	return l
}

// look starts a bridge, makes the trouble x, and returns what the bridge says when it has noticed.
func (l *troubleLab) look(t *testing.T, x *trouble, views ...string) (d *statusJSON, top string) {
	t.Helper()
	p := freePorts(t, 2)
	dir := t.TempDir()
	l.control = filepath.Join(dir, "control.sock")
	pool := "connections: 2"
	if x.code == "credits_starved" {
		pool = fmt.Sprintf("connections: 1, credits: %d", l.credits)
	}
	l.b = newBridgeWith(t, p[0], p[1], fmt.Sprintf(`
listeners:
  - {name: front, address: "127.0.0.1:%d", transport: tcp, upstream: storage}
upstreams:
  - {name: storage, transport: rdma, provider: iwarp, endpoints: ["127.0.0.1:%d"], pool: {%s}}
memory: {budget: 256MiB}
admin: {address: 127.0.0.1:%d}
control: {path: %s}
log: {level: info, format: json}
`, p[0], l.g.rdma, pool, p[1], l.control))
	l.b.start(t)
	defer l.b.stop(t)
	stopLoad := l.load(t, 4)
	defer stopLoad()
	stop := x.begin(t, l)
	defer stop()
	begun := time.Now()
	for {
		time.Sleep(500 * time.Millisecond) // between two looks at the bridge, which looks at itself each few seconds
		d = l.status(t)
		waited := time.Since(begun)
		if x.code == "" && waited > 6*time.Second || waited > 25*time.Second {
			break
		}
		if x.code != "" && waited > 6*time.Second && len(d.Problems) > 0 && d.Problems[0].Severity != "notice" {
			break
		}
	}
	for _, view := range append([]string{"clients"}, views...) {
		top += string(command(t, 30*time.Second, bridgeBinary(t), "top", "--once", "--view", view, "--socket", l.control))
	}
	d = l.status(t)
	t.Logf("seen after %v", time.Since(begun).Round(time.Second))
	if len(d.Upstreams) > 0 && d.Upstreams[0].TCP != nil {
		t.Logf("TCP to the server: %s", d.Upstreams[0].TCP)
	}
	return d, top
}

// A statusJSON is what the lab reads of the JSON of the status page.
type statusJSON struct {
	Problems  []statusProblem
	Upstreams []struct{ TCP json.RawMessage }
}

type statusProblem struct{ Severity, Code, Text string }

// status returns what the bridge says of itself.
func (l *troubleLab) status(t *testing.T) *statusJSON {
	t.Helper()
	res, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/api/v1/status", l.b.admin))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	d := new(statusJSON)
	if err := json.NewDecoder(res.Body).Decode(d); err != nil {
		t.Fatal(err)
	}
	return d
}

// blind makes troubles that only DIR/answers knows.
func (l *troubleLab) blind(t *testing.T, dir string) {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("RDMABRIDGE_LAB_SEED"), 10, 64); err == nil {
		seed = s
	}
	dice := rand.New(rand.NewPCG(seed, 0))
	var answers bytes.Buffer
	for n := range 8 {
		x := &troubles[dice.IntN(len(troubles))]
		l.disk, l.credits, l.octets, l.lost = 60+dice.IntN(200), 1+dice.IntN(3), 2<<10+dice.IntN(16<<10), time.Duration(10+dice.IntN(30))*time.Millisecond
		_, top := l.look(t, x, "upstreams", "operations")
		fmt.Fprintf(&answers, "%d %s, disk %d ms, %d credits, %d octets in 100 ms, %v lost\n", n+1, x.code, l.disk, l.credits, l.octets, l.lost)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.txt", n+1)), []byte(top), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "answers"), answers.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// load uses the files from n connections until stop is called.
func (l *troubleLab) load(t *testing.T, n int) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", l.b.port))
			if err != nil {
				t.Errorf("the load: %v", err)
				return
			}
			defer context.AfterFunc(ctx, func() { c.Close() })()
			defer c.Close()
			for n := 0; ctx.Err() == nil; n++ {
				m := l.getattr()
				switch n % 4 {
				case 1:
					m = l.read(uint64(n%64)<<17, 64<<10)
				case 3:
					m = l.write(uint64(i*64+n%64)<<12, 4096)
				}
				if err := testkit.WriteRecord(c, m); err != nil {
					break
				}
				if _, err := testkit.ReadRecord(c); err != nil {
					break
				}
				select {
				case <-ctx.Done():
				case <-time.After(5 * time.Millisecond): // a client that thinks between its Calls
				}
			}
		})
	}
	return func() { cancel(); running.Wait() }
}

func (l *troubleLab) getattr() []byte { return nfsCall(freshXID(), 1, l.data) }

func (l *troubleLab) read(at uint64, n uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nfsCall(freshXID(), 6, l.data), at), n)
}

// write is a WRITE that the server answers when the data are on the disk.
func (l *troubleLab) write(at uint64, n int) []byte {
	b := binary.BigEndian.AppendUint64(nfsCall(freshXID(), 7, l.synced), at)
	b = testkit.AppendWords(b, uint32(n), 2)
	return testkit.AppendPattern(b, n, uint32(at))
}

func nothingWrong(*testing.T, *troubleLab) func() { return func() {} }

// slowDisk makes each write to the disk slow.
func slowDisk(t *testing.T, l *troubleLab) func() {
	t.Helper()
	l.g.job(t, time.Minute, fmt.Sprintf("/lab/slowdisk.sh %d", l.disk))
	return func() { l.g.job(t, time.Minute, "/lab/slowdisk.sh 0") }
}

// flood sends GETATTRs from sixteen connections, each eight at a time.
func flood(t *testing.T, l *troubleLab) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range 16 {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", l.b.port))
		if err != nil {
			t.Fatal(err)
		}
		context.AfterFunc(ctx, func() { c.Close() })
		for range 8 {
			if err := testkit.WriteRecord(c, l.getattr()); err != nil {
				t.Fatal(err)
			}
		}
		running.Go(func() {
			for {
				if _, err := testkit.ReadRecord(c); err != nil {
					return
				}
				if err := testkit.WriteRecord(c, l.getattr()); err != nil {
					return
				}
			}
		})
	}
	return func() { cancel(); running.Wait() }
}

// slowReader has a client ask for 8 MiB and read little of them.
func slowReader(t *testing.T, l *troubleLab) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 32<<10) })
	}}
	c, err := d.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", l.b.port))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 32 {
		if err := testkit.WriteRecord(c, l.read(uint64(i%32)<<18, 256<<10)); err != nil {
			t.Fatal(err)
		}
	}
	var running sync.WaitGroup
	running.Go(func() {
		defer c.Close()
		for ctx.Err() == nil {
			if _, err := io.CopyN(io.Discard, c, int64(l.octets)); err != nil {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond): // how slowly the client reads
			}
		}
	})
	return func() { cancel(); running.Wait() }
}

// lossyWire loses everything between the bridge and the server for a moment, again and again. The host's kernel
// need not have netem.
func lossyWire(t *testing.T, l *troubleLab) func() {
	t.Helper()
	cutPorts(t, l.g.rdma)() // once here, where it may fail
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			heal := cutPorts(t, l.g.rdma)
			time.Sleep(l.lost) // how long each loss lasts
			heal()
			select {
			case <-ctx.Done():
			case <-time.After(250 * time.Millisecond): // how long the wire is good
			}
		}
	})
	return func() { cancel(); running.Wait() }
}
