package nlmtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// A Style is what a Client does as a system does it.
type Style struct {
	Version uint32 // of NLM
	Network string // "tcp" or "udp"
	Async   bool   // LOCK_MSG and not LOCK
	Cookie  int    // octets
	Daemon  bool   // oh names the lock daemon and not the owner
}

// The Styles of systems, see the package's comment. Any of them may be changed.
var (
	Linux   = Style{Version: 4, Network: "tcp", Cookie: 4}
	FreeBSD = Style{Version: 4, Network: "udp", Cookie: 4}
	MacOS   = Style{Version: 4, Network: "udp", Async: true, Cookie: 8, Daemon: true}
)

// A Client is a host that locks files of a server that it knows by one address, and its status monitor. Its methods
// are safe for concurrent use.
type Client struct {
	*Host
	Name   string
	Style  Style
	Server netip.Addr // what it has mounted

	cookies atomic.Uint64

	mu      sync.Mutex // guards the fields below; a leaf
	state   uint32     // odd, as statd counts
	waits   map[wait]chan struct{}
	answers map[string]chan Results // of _MSG, by cookie
	seen    uint32                  // the last state of the server that it was told
	notices chan uint32
	grants  int
	ctx     context.Context
	cancel  context.CancelFunc
	work    *sync.WaitGroup
}

// A wait is by what a client knows the LOCK that a GRANTED means.
type wait struct {
	fh             string
	svid           uint32
	offset, length uint64
}

// NewClient starts a Client that has mounted server.
func NewClient(addr netip.Addr, rpcbind uint16, name string, style Style, server netip.Addr) (*Client, error) {
	c := &Client{Name: name, Style: style, Server: server, state: 1, notices: make(chan uint32, 1000)}
	c.Host = newHost(addr, rpcbind, c.answer)
	c.begin()
	return c, c.Start()
}

func (c *Client) begin() {
	c.waits = make(map[wait]chan struct{})
	c.answers = make(map[string]chan Results)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.work = new(sync.WaitGroup)
}

// Stop ends the Client without a word, as a crash does. What waits for answers fails.
func (c *Client) Stop() {
	c.mu.Lock()
	c.cancel()
	work := c.work
	c.mu.Unlock()
	work.Wait()
	c.Host.Stop()
}

// Restart starts the Client after Stop, as Reboot does. It returns when the server's status monitor has answered its notice.
func (c *Client) Restart(ctx context.Context) error {
	if err := c.Reboot(); err != nil {
		return err
	}
	c.Renotify(ctx)
	return ctx.Err()
}

// Reboot starts the Client after Stop, with a new state number and other ports, and without a notice.
func (c *Client) Reboot() error {
	c.mu.Lock()
	c.begin()
	c.state += 2
	c.mu.Unlock()
	return c.Start()
}

// Renotify sends the notice of the last restart until it is answered.
func (c *Client) Renotify(ctx context.Context) {
	c.mu.Lock()
	n := Notice{c.Name, c.state}
	c.mu.Unlock()
	c.notify(ctx, c.Server, n)
}

// Notices has the new state numbers of the server that the Client was told.
func (c *Client) Notices() <-chan uint32 { return c.notices }

// Grants returns how many GRANTED the Client has accepted.
func (c *Client) Grants() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.grants
}

func (c *Client) answer(x *Call) ([]byte, bool) {
	switch {
	case x.Program == ProgramNSM && x.Procedure == SMNotify:
		n, ok := ParseNotice(x.Args)
		if !ok {
			return nil, false
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		// statd knows the server by the address that lockd gave it, and the kernel knows the last state.
		if (n.Name == c.Server.String() || x.From == c.Server) && n.State != c.seen {
			c.seen = n.State
			select {
			case c.notices <- n.State:
			default:
			}
		}
		return []byte{}, true
	case x.Program != ProgramNLM:
		return nil, false
	case x.Procedure > Granted+ToMsg && x.Procedure < Granted+ToRes:
		if r, ok := ParseResults(x.Args, x.Version, x.Procedure-ToRes); ok {
			c.mu.Lock()
			answer := c.answers[string(r.Cookie)]
			c.mu.Unlock()
			if answer != nil {
				select {
				case answer <- r:
				default:
				}
			}
		}
		return []byte{}, true
	case x.Procedure != Granted && x.Procedure != Granted+ToMsg:
		return nil, false
	}
	a, ok := ParseArgs(x.Args, x.Version, Granted)
	if !ok {
		return nil, false
	}
	r := Results{Cookie: bytes.Clone(a.Cookie), Stat: c.granted(x.From, &a)}
	if x.Procedure == Granted {
		return r.Append(nil, x.Version, Granted), true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx := c.ctx
	c.work.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if to, err := c.Ask(ctx, x.From, x.network(), ProgramNLM, x.Version); err == nil {
			_, _ = c.Call(ctx, x.network(), to, ProgramNLM, x.Version, Granted+ToRes, r.Append(nil, x.Version, Granted))
		}
	})
	return []byte{}, true
}

// granted looks for the LOCK that a GRANTED means.
func (c *Client) granted(from netip.Addr, a *Args) Stat {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := wait{string(a.FH), a.SVID, a.Offset, a.Length}
	w := c.waits[k]
	if w == nil || from != c.Server || string(a.OH) != string(c.oh(a.SVID)) {
		return StatDenied
	}
	delete(c.waits, k)
	close(w)
	c.grants++
	return StatGranted
}

func (c *Client) oh(svid uint32) []byte {
	if c.Style.Daemon {
		b := binary.LittleEndian.AppendUint64(nil, uint64(len(c.Name)))
		return binary.LittleEndian.AppendUint64(b, 1764400000)
	}
	return fmt.Appendf(nil, "%d@%s", svid, c.Name)
}

// Expect registers a LOCK that may be answered with LCK_BLOCKED, before it is sent. The channel is closed by GRANTED.
func (c *Client) Expect(a Args) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := wait{string(a.FH), a.SVID, a.Offset, a.Length}
	w := c.waits[k]
	if w == nil {
		w = make(chan struct{})
		c.waits[k] = w
	}
	return w
}

// Forget withdraws Expect.
func (c *Client) Forget(a Args) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waits, wait{string(a.FH), a.SVID, a.Offset, a.Length})
}

// Do calls a procedure at the server, in the Client's style. It fills in what does not depend on the lock. It asks
// again while the answer is LCK_DENIED_GRACE_PERIOD, but for a LOCK with reclaim, which Linux gives up then.
func (c *Client) Do(ctx context.Context, procedure uint32, a Args) (Results, error) {
	for {
		r, err := c.Once(ctx, procedure, a)
		if err != nil || r.Stat != StatGrace || a.Reclaim {
			return r, err
		}
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Once is Do for one answer.
func (c *Client) Once(ctx context.Context, procedure uint32, a Args) (Results, error) {
	c.mu.Lock()
	a.Caller, a.State = c.Name, c.state
	a.OH = c.oh(a.SVID)
	a.Cookie = binary.BigEndian.AppendUint64(nil, c.cookies.Add(1))
	a.Cookie = a.Cookie[8-c.Style.Cookie:]
	answer := make(chan Results, 1)
	c.answers[string(a.Cookie)] = answer
	ends := c.ctx
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.answers, string(a.Cookie))
		c.mu.Unlock()
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ends, cancel)()

	st := c.Style
	to, err := c.Ask(ctx, c.Server, st.Network, ProgramNLM, st.Version)
	if err != nil {
		return Results{}, err
	}
	if !st.Async || procedure >= Share {
		b, err := c.Call(ctx, st.Network, to, ProgramNLM, st.Version, procedure, a.Append(nil, st.Version, procedure))
		if err != nil || procedure == FreeAll {
			return Results{}, err
		}
		r, ok := ParseResults(b, st.Version, procedure)
		if !ok || !bytes.Equal(r.Cookie, a.Cookie) {
			return r, fmt.Errorf("nlmtest: the results of procedure %d are %x", procedure, b)
		}
		return r, nil
	}
	for {
		m := a.Append(nil, st.Version, procedure+ToMsg)
		if st.Network == "udp" {
			err = c.Send(to, ProgramNLM, st.Version, procedure+ToMsg, m)
		} else {
			_, err = c.Call(ctx, st.Network, to, ProgramNLM, st.Version, procedure+ToMsg, m)
		}
		if err != nil {
			return Results{}, err
		}
		select {
		case r := <-answer:
			return r, nil
		case <-ctx.Done():
			return Results{}, ctx.Err()
		case <-time.After(resend):
		}
	}
}
