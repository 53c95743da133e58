package pool

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/quota"
)

// A farm is a server with a few threads, which takes Calls in the order they came, and hosts that
// have a pool for each connection, all under one Quota. It runs in a bubble, in steps.
type farm struct {
	t       *testing.T
	q       *quota.Quota
	threads int
	queue   []sentCall // Calls that the server has, in order
	hosts   []*farmHost
}

// A farmHost always has depth Calls under way on each of its connections.
type farmHost struct {
	pools    []*Pool
	dialers  []*fakeDialer
	flows    []*Flow
	hangs    bool // the server never answers it, and its Calls take no thread
	quits    bool // it sends no further Call
	answered int
	by       []int // answered, by connection
}

func newFarm(t *testing.T, threads, limit int, always bool) *farm {
	q := quota.New(2)
	q.Set(limit, always)
	return &farm{t: t, q: q, threads: threads}
}

// join adds a host of a weight with so many connections and Calls on each.
func (f *farm) join(weight, connections, depth int, hangs bool) *farmHost {
	h, share := &farmHost{hangs: hangs, by: make([]int, connections)}, f.q.Host()
	share.SetWeight(weight)
	for i := range connections {
		d := &fakeDialer{grant: 128}
		p, _ := newPool(f.t, Options{Connections: 1, First: i % 2, Quota: share, QueueWait: time.Hour}, d)
		h.pools, h.dialers, h.flows = append(h.pools, p), append(h.dialers, d), append(h.flows, &Flow{})
	}
	f.hosts = append(f.hosts, h)
	for i := range connections {
		for range depth {
			submit(f.t, h.pools[i], h.flows[i], 200, i%2)
		}
	}
	return h
}

// step has the server take what was sent and answer as many as it has threads.
func (f *farm) step() {
	for _, h := range f.hosts {
		for i, d := range h.dialers {
			for _, e := range d.members[0].take() {
				e.Owner = i
				if !h.hangs {
					f.queue = append(f.queue, sentCall{d.members[0], e, time.Now()})
				}
			}
		}
	}
	n := min(f.threads, len(f.queue))
	done := f.queue[:n]
	f.queue = f.queue[n:]
	for _, s := range done {
		for _, h := range f.hosts {
			i := s.e.Owner.(int)
			if i >= len(h.dialers) || h.dialers[i].members[0] != s.m {
				continue
			}
			h.answered++
			h.by[i]++
			s.e.Answered()
			s.m.seat.Done(s.e, i%2)
			if h.quits {
				continue
			}
			submit(f.t, h.pools[i], h.flows[i], 200, i%2)
		}
	}
	time.Sleep(crowdStep)
	synctest.Wait()
}

// run runs n steps and returns how many Calls of each host were answered in them.
func (f *farm) run(n int) (had []int) {
	for _, h := range f.hosts {
		h.answered = 0
		clear(h.by)
	}
	for range n {
		f.step()
	}
	for _, h := range f.hosts {
		had = append(had, h.answered)
	}
	return had
}

// out is how many Calls of h are outstanding.
func (h *farmHost) out() (n int) {
	for _, p := range h.pools {
		n += p.Stats().Outstanding
	}
	return n
}

// TestQuota: a host with many connections and Calls has all of them outstanding while it is alone.
// Beside another one it leaves that its share, at once and for good, and its own connections take
// turns.
func TestQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t, 8, 16, false)
		hog := f.join(1, 40, 16, false)
		f.run(20)
		if got := hog.out(); got != 640 {
			t.Errorf("a host that is alone has %d Calls outstanding, want all 640", got)
		}
		f.join(1, 1, 1, false)
		f.run(100) // the server answers what it has
		if had := f.run(100); had[1] < 30 || had[0] < 700 {
			t.Errorf("in 100 steps of 8 Calls the two hosts were answered %v times; the one with one Call at a time waits for the other", had)
		}
		if got := hog.out(); got > 18 {
			t.Errorf("beside another host, a host has %d Calls outstanding of 16 in all", got)
		}
		least, most := hog.by[0], 0
		for _, n := range hog.by {
			least, most = min(least, n), max(most, n)
		}
		if least < most-3 {
			t.Errorf("the connections of one host were answered from %d to %d times", least, most)
		}
	})
}

// TestQuotaWeights: hosts that want more than their share have Calls answered by weight, and a host
// that wants less leaves the rest to them.
func TestQuotaWeights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t, 8, 66, false)
		f.join(1, 8, 16, false)
		f.join(2, 3, 64, false)
		f.join(7, 10, 16, false)
		f.join(20, 1, 6, false)
		f.run(300)
		had := f.run(1000)
		shares := []float64{float64(had[0]), float64(had[1]) / 2, float64(had[2]) / 7}
		if j := jain(shares); j < 0.97 {
			t.Errorf("hosts of weight 1, 2 and 7 were answered %v times; Jain's index is %.3f", had, j)
		}
		if had[3] < 600 {
			t.Errorf("a host with 6 Calls of a share of 44 was answered %d times of 8000", had[3])
		}
	})
}

// TestQuotaOfCallsThatHang: hosts whose Calls hang hold no more than their share, and one Call that is
// not old. The others have theirs.
func TestQuotaOfCallsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t, 8, 64, true)
		stuck := f.join(1, 40, 16, true)
		f.run(10)
		if got := stuck.out(); got > 70 { // its loops do not know at once what the others have
			t.Errorf("%d Calls are outstanding of at most 64", got)
		}
		f.join(1, 4, 2, false)
		more := f.join(1, 10, 16, true)
		f.run(500)
		if got := more.out(); got > 34 {
			t.Errorf("a host whose Calls hang has %d of 64 Calls outstanding beside two others", got)
		}
		if had := f.run(100); had[1] < 390 {
			t.Errorf("beside hosts whose Calls hang, one with 8 Calls was answered %d times in 100 steps", had[1])
		}
	})
}

// quotaRests is after how long at most a Quota has forgotten a host without Calls.
const quotaRests = 20 * time.Second

// TestQuotaEnds: a host that has gone does not bind the one that is left, and nothing is left over.
func TestQuotaEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t, 8, 16, false)
		hog := f.join(1, 10, 16, false)
		small := f.join(1, 1, 1, false)
		f.run(100)
		if got := hog.out(); got > 18 {
			t.Fatalf("%d Calls are outstanding of 16", got)
		}
		small.quits = true
		f.run(int(quotaRests / crowdStep))
		if got := hog.out(); got != 160 {
			t.Errorf("a host that is alone again has %d Calls outstanding, want all 160", got)
		}
		hog.quits = true
		f.run(30)
		time.Sleep(quotaRests)
		f.q.Set(8, true)
		for i := range 16 {
			submit(f.t, hog.pools[i%2], hog.flows[i%2], 200, i%2)
		}
		time.Sleep(time.Second)
		if got := hog.out(); got < 7 || got > 8 {
			t.Errorf("of a host whose Calls have ended %d are outstanding of 8 that it may have", got)
		}
	})
}
