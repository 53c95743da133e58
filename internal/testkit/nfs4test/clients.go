package nfs4test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// ClientsOptions configure Clients.
type ClientsOptions struct {
	Target  string            // host:port of the bridge or server
	Loops   []loop.SocketLoop // clients are spread over them
	Prefix  string            // of each co_ownerid, so that several Clients have different ones
	Minor   uint32            // 1 or 2; 0: 2
	Slots   uint32            // of each session; 0: 16
	Machine bool              // SP4_MACH_CRED: the server refuses connections that are not bound
	Renew   time.Duration     // after which an idle client renews its lease; 0: 60 s, as Linux does; negative: never
	Retry   time.Duration     // before a connection that failed is tried again, and after NFS4ERR_DELAY; 0: 100 ms
	Think   time.Duration     // between the Reply to a COMPOUND of a Load and the next in its slot
	Dialers int               // connections being made at once; 0: 32
	// From returns the address that client i connects from. nil: the kernel's choice.
	From func(i int) netip.Addr
}

// Clients are NFSv4.1 clients. Their methods are safe for concurrent use.
type Clients struct {
	o   ClientsOptions
	all []*Client

	dials chan *Client
	ctx   context.Context
	stop  context.CancelFunc
	wg    sync.WaitGroup

	// Counters.
	Replies   atomic.Int64 // to COMPOUNDs of Loads and to renewals
	Connects  atomic.Int64 // connections made
	Lost      atomic.Int64 // connections that ended, but not by Reconnect or Close
	Resent    atomic.Int64 // COMPOUNDs sent again on another connection
	Delays    atomic.Int64 // SEQUENCEs answered NFS4ERR_DELAY
	Uncached  atomic.Int64 // COMPOUNDs answered NFS4ERR_RETRY_UNCACHED_REP
	Binds     atomic.Int64 // BIND_CONN_TO_SESSIONs that succeeded
	Resets    atomic.Int64 // sessions destroyed because of a fault of the back channel
	Sessions  atomic.Int64 // sessions created
	Callbacks atomic.Int64 // CB_RECALLs that came to their client
	Strange   atomic.Int64 // callbacks that came to a client that has no such session
	up        atomic.Int64 // clients whose session is usable

	mu       sync.Mutex // guards the rest; a leaf
	recalled map[uint64][]int
	failures []error
	failed   int
}

// NewClients returns n clients that are not connected yet.
func NewClients(n int, o ClientsOptions) *Clients {
	o.Minor = cmp.Or(o.Minor, 2)
	o.Slots = cmp.Or(o.Slots, 16)
	o.Renew = cmp.Or(o.Renew, 60*time.Second)
	o.Retry = cmp.Or(o.Retry, 100*time.Millisecond)
	o.Dialers = cmp.Or(o.Dialers, 32)
	cs := &Clients{o: o, recalled: make(map[uint64][]int), dials: make(chan *Client, n)}
	cs.ctx, cs.stop = context.WithCancel(context.Background())
	for i := range n {
		cs.all = append(cs.all, newClient(cs, i))
	}
	for range min(o.Dialers, n) {
		cs.wg.Go(cs.dialer)
	}
	return cs
}

// Start makes all clients connect and create their sessions.
func (cs *Clients) Start() {
	for _, c := range cs.all {
		c.post(c.connect)
	}
}

// Len returns how many clients there are.
func (cs *Clients) Len() int { return len(cs.all) }

// Up returns how many clients have a session and a connection.
func (cs *Clients) Up() int { return int(cs.up.Load()) }

// Owner returns the co_ownerid of client i.
func (cs *Clients) Owner(i int) string { return cs.all[i].owner }

// Reconnect makes client i close its connection and connect again, with its Calls under way.
func (cs *Clients) Reconnect(i int) {
	c := cs.all[i]
	c.post(func() {
		if c.sock != nil {
			c.mine = true
			c.sock.Abort()
		}
	})
}

// Silence makes client i leave callbacks unanswered, or answer them again, from when it returns.
func (cs *Clients) Silence(i int, silent bool) {
	c := cs.all[i]
	done := make(chan struct{})
	c.post(func() {
		c.silent = silent
		close(done)
	})
	<-done
}

// Renew makes client i send a SEQUENCE, as it does when its lease is about to end.
func (cs *Clients) Renew(i int) {
	c := cs.all[i]
	c.post(c.renew)
}

// Renewed returns how many SEQUENCEs of client i for its lease have been answered.
func (cs *Clients) Renewed(i int) int { return int(cs.all[i].renewed.Load()) }

// Recalled returns the clients to which the callback with this token came.
func (cs *Clients) Recalled(token uint64) []int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.recalled[token]
}

// Err returns what went wrong so far: Replies that are not those of their Calls, sessions that the
// server lost.
func (cs *Clients) Err() error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.failed > len(cs.failures) {
		return errors.Join(append(cs.failures, fmt.Errorf("nfs4test: %d failures in all", cs.failed))...)
	}
	return errors.Join(cs.failures...)
}

// Counts describes the counters.
func (cs *Clients) Counts() string {
	return fmt.Sprintf("%d of %d up; %d connections made, %d lost, %d sessions created, %d reset, %d bound; %d Replies, %d resent, %d delayed, %d uncached; %d callbacks, %d strange",
		cs.up.Load(), len(cs.all), cs.Connects.Load(), cs.Lost.Load(), cs.Sessions.Load(), cs.Resets.Load(), cs.Binds.Load(),
		cs.Replies.Load(), cs.Resent.Load(), cs.Delays.Load(), cs.Uncached.Load(), cs.Callbacks.Load(), cs.Strange.Load())
}

const maxFailures = 10 // that are kept

func (cs *Clients) fail(err error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.failed++
	if len(cs.failures) < maxFailures {
		cs.failures = append(cs.failures, err)
	}
}

func (cs *Clients) recall(token uint64, i int) {
	cs.Callbacks.Add(1)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.recalled[token] = append(cs.recalled[token], i)
}

// dialer makes connections, one after the other.
func (cs *Clients) dialer() {
	for {
		var c *Client
		select {
		case c = <-cs.dials:
		case <-cs.ctx.Done():
			return
		}
		var d net.Dialer
		if cs.o.From != nil {
			d.LocalAddr = &net.TCPAddr{IP: cs.o.From(c.index).AsSlice()}
		}
		nc, err := d.DialContext(cs.ctx, "tcp", cs.o.Target)
		if err == nil {
			err = c.on.Attach(nc, &stream{c: c})
		}
		if err != nil {
			c.post(func() {
				c.dialling = false
				c.later(cs.o.Retry, c.connect)
			})
		}
	}
}

// Close ends all connections and waits until they have ended.
func (cs *Clients) Close() {
	cs.stop()
	cs.wg.Wait()
	var over sync.WaitGroup
	over.Add(len(cs.all))
	for _, c := range cs.all {
		c.post(func() { c.close(over.Done) })
	}
	over.Wait()
}
