//go:build lab

package lab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A greedyWay is a way to a server on which a client asks for more than the bridge carries.
type greedyWay struct {
	b        *bridgeProcess
	listener string
	port     int
	carries  int // octets of a READ that the bridge carries and the server returns at once
}

const (
	greedyUnderWay = 4           // READs at once
	greedyReads    = 200         // at least, in all
	greedyRounds   = 50          // of each neighbour
	greedyFor      = time.Minute // with RDMABRIDGE_LAB_FULL=1
	greedyFile     = 9 << 20     // octets of the file that is read: more than any READ asks for
	neighbours     = 4
)

// greedyCounts are what the greedy client asks for in turn. knfsd, which stops at 1 MiB, returns less than either. The
// demo's server, which stops at 4 MiB, returns the second in full.
var greedyCounts = [...]uint32{8 << 20, 1122264}

// testNeighboursOfKnfsd is testNeighbours with a directory of the guest.
func testNeighboursOfKnfsd(t *testing.T, g *guest, w greedyWay) {
	name := "neighbours-" + w.listener
	at := "/export/" + name
	content := testkit.Pattern(greedyFile, w.port)
	if err := os.WriteFile(filepath.Join(g.dir, name), content, 0o644); err != nil {
		t.Fatal(err)
	}
	g.job(t, time.Minute, fmt.Sprintf("mkdir -m 777 %[1]s && mv /host/%[2]s %[1]s/file", at, name))
	dir := mountRoot(t, w.port, at)
	testNeighbours(t, w, dir, dialRaw(t, w.port).lookup(t, dir, "file"), content)
	// All directories of the neighbours are removed.
	g.job(t, time.Minute, fmt.Sprintf("rm %[1]s/file && rmdir %[1]s", at))
}

// testNeighboursOfDemo is testNeighbours with a file that it writes itself, as much at once as READs return.
func testNeighboursOfDemo(t *testing.T, w greedyWay) {
	c, root := dialRaw(t, w.port), mountRoot(t, w.port, "/")
	create := testkit.AppendWords(appendString(nfsCall(freshXID(), 8, root), "neighbours-"+w.listener), 0)
	c.call(t, append(create, noAttributes...))
	file := c.lookup(t, root, "neighbours-"+w.listener)
	content := testkit.Pattern(greedyFile, w.port)
	for at := 0; at < greedyFile; at += w.carries {
		data := content[at:min(at+w.carries, greedyFile)]
		m := testkit.AppendWords(nfsCall(freshXID(), 7, file), 0, uint32(at), uint32(len(data)), 2)
		r := c.call(t, testkit.AppendOpaque(m, data))
		if n := len(r); binary.BigEndian.Uint32(r) != 0 || binary.BigEndian.Uint32(r[n-16:]) != uint32(len(data)) {
			t.Fatalf("WRITE of %d octets at %d: % x", len(data), at, r)
		}
	}
	testNeighbours(t, w, root, file, content)
}

// testNeighbours has one client ask for more of a file than the bridge carries, again and again and several times at
// once, until its neighbours are done. All its READs are answered, with as much as the bridge carries. The neighbours,
// which share the connections to the server with it, make directories in dir and remove them. All their Calls are
// answered, none of their connections closes, and no connection to the server ends.
func testNeighbours(t *testing.T, w greedyWay, dir, file, content []byte) {
	disconnects := func() float64 { return w.b.metric(t, "upstream_disconnects_total{") }
	before, begun := disconnects(), time.Now()
	long := func() bool { return labFull() && time.Since(begun) < greedyFor }

	greedy := &greedyClient{rawClient: dialRaw(t, w.port), file: file, content: content, carries: w.carries}
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- greedy.run(func(asked int) bool {
			select {
			case <-done:
				return asked < greedyReads
			default:
				return true
			}
		})
	}()
	var rounds [neighbours]int
	var all sync.WaitGroup
	for i := range rounds {
		c := dialRaw(t, w.port)
		all.Go(func() {
			for rounds[i] < greedyRounds || long() {
				if err := c.round(dir, fmt.Sprintf("neighbour-%d", i)); err != nil {
					t.Errorf("neighbour %d, after %d rounds: %v", i, rounds[i], err)
					return
				}
				rounds[i]++
			}
		})
	}
	all.Wait()
	took := time.Since(begun)
	close(done)
	if err := <-ended; err != nil {
		t.Errorf("the greedy client, after %d Replies: %v", greedy.answered, err)
	}
	t.Logf("%v rounds of the neighbours in %v; %d READs", rounds, took.Round(time.Millisecond), greedy.answered)
	if n := disconnects() - before; n != 0 {
		t.Errorf("%.0f connections to servers ended", n)
	}
	w.b.wantQuiet(t)
}

// round makes a directory, after a look at the one in which it will be, and removes it.
func (c *rawClient) round(dir []byte, name string) error {
	mkdir := append(appendString(nfsCall(freshXID(), 9, dir), name), noAttributes...)
	for _, m := range [][]byte{nfsCall(freshXID(), 1, dir), mkdir, appendString(nfsCall(freshXID(), 13, dir), name)} {
		if err := testkit.WriteRecord(c, m); err != nil {
			return err
		}
		reply, err := c.next()
		if err != nil {
			return err
		}
		r, err := resultOf(reply)
		if err != nil {
			return err
		}
		if !bytes.Equal(reply[:4], m[:4]) {
			return fmt.Errorf("a Reply with XID %x to a Call with %x", reply[:4], m[:4])
		}
		if s := binary.BigEndian.Uint32(r); s != 0 {
			return fmt.Errorf("procedure %d: status %d", binary.BigEndian.Uint32(m[20:]), s)
		}
	}
	return nil
}

// A greedyClient has several READs of file under way, each for more than carries.
type greedyClient struct {
	*rawClient
	file, content     []byte
	carries, answered int
}

// run makes READs while more returns true, and waits for their Replies. more gets the number of READs so far.
func (c *greedyClient) run(more func(asked int) bool) error {
	pending := make(map[uint32]uint32) // what a READ asks for, by its XID
	for asked := 0; ; {
		for len(pending) < greedyUnderWay && more(asked) {
			xid, count := freshXID(), greedyCounts[asked%len(greedyCounts)]
			pending[xid] = count
			asked++
			if err := testkit.WriteRecord(c, testkit.AppendWords(nfsCall(xid, 6, c.file), 0, 0, count)); err != nil {
				return err
			}
		}
		if len(pending) == 0 {
			return nil
		}
		reply, err := c.next()
		if err != nil {
			return err
		}
		r, err := resultOf(reply)
		if err != nil {
			return err
		}
		xid := binary.BigEndian.Uint32(reply)
		count, ok := pending[xid]
		if !ok {
			return fmt.Errorf("a Reply with XID %x to no Call", xid)
		}
		delete(pending, xid)
		if err := c.check(r, min(int(count), c.carries)); err != nil {
			return fmt.Errorf("READ of %d: %w", count, err)
		}
		c.answered++
	}
}

// check returns an error unless r, the results of a READ, has the first n octets of the file.
func (c *greedyClient) check(r []byte, n int) error {
	// After status and attributes: count, eof, and the data with their length and roundup.
	const head = 4 + 88 + 12
	if s := binary.BigEndian.Uint32(r); s != 0 || len(r) != head+(n+3)&^3 {
		return fmt.Errorf("status %d, %d octets of results, want %d of data", s, len(r), n)
	}
	if !bytes.Equal(r[head:head+n], c.content[:n]) {
		return errors.New("wrong data")
	}
	return nil
}

// operations returns how many Calls of an operation have come to the listener while f ran.
func (w greedyWay) operations(t *testing.T, name string, f func()) float64 {
	t.Helper()
	prefix := fmt.Sprintf("operation_calls_total{listener=%q,operation=%q", w.listener, name)
	before, _ := w.b.series(t, prefix)
	f()
	return w.b.metric(t, prefix) - before
}
