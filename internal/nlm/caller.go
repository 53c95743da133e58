package nlm

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ask"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

const (
	portAge     = 5 * time.Minute // for which a client's port is not asked again
	maxPorts    = 4096            // that are remembered
	firstRepeat = time.Second     // of a datagram; each further one takes twice as long
	voidTimeout = 2 * time.Second // for the Reply to a procedure that is answered by a Call
)

// A service is a version of a program at a client.
type service struct {
	host             netip.Addr
	transport        string
	program, version uint32
}

// A port is where a service listens.
type port struct {
	number uint16
	until  time.Time
}

func transport(udp bool) string {
	if udp {
		return "udp"
	}
	return "tcp"
}

// callClient calls a procedure of a client, from the address that the client knows the bridge by, and returns the Reply.
// The Reply to a procedure without results says no more than that it has arrived, and some clients send none.
func (s *Server) callClient(ctx context.Context, p place, v service, procedure uint32, args []byte, results bool) (r oncrpc.Reply, err error) {
	v.host = p.client
	for range 2 {
		number, fresh, e := s.portOf(ctx, p, v)
		if e != nil {
			return r, errors.Join(err, e)
		}
		if r, err = s.callAt(ctx, p, v, number, procedure, args, results); err == nil || errors.Is(ctx.Err(), context.Canceled) {
			return r, err
		}
		s.mu.Lock()
		delete(s.ports, v)
		s.mu.Unlock()
		if fresh {
			break
		}
	}
	return r, err
}

// portOf returns the port of a client's service; fresh is true if its rpcbind has just been asked.
func (s *Server) portOf(ctx context.Context, p place, v service) (number uint16, fresh bool, err error) {
	s.mu.Lock()
	known, ok := s.ports[v]
	s.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.number, false, nil
	}
	if number, err = s.ask(ctx, p.local, p.client, v.transport, v.program, v.version); err != nil {
		return 0, true, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ports) >= maxPorts {
		clear(s.ports)
	}
	s.ports[v] = port{number, time.Now().Add(portAge)}
	return number, true, nil
}

// root is the credential of the Server's own Calls.
func (s *Server) root() credential {
	c := ask.Root(s.o.Name)
	return credential{c.Flavor, c.Body}
}

// callAt sends one Call over a connection of its own.
func (s *Server) callAt(ctx context.Context, p place, v service, number uint16, procedure uint32, args []byte, results bool) (r oncrpc.Reply, err error) {
	c, err := s.dial(ctx, v.transport, p.local, netip.AddrPortFrom(p.client, number), false)
	if err != nil {
		return r, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })()
	xid := s.xid.Add(1)
	m := append(appendCall(nil, xid, v.program, v.version, procedure, s.root()), args...)
	if !results {
		_ = c.SetDeadline(time.Now().Add(voidTimeout))
	}
	var b []byte
	if v.transport == "udp" {
		b, err = exchange(ctx, c, xid, m, results)
	} else if _, err = c.Write(ask.Record(m)); err == nil {
		b, err = readRecord(c, func() {})
	}
	var timeout net.Error
	if !results && errors.As(err, &timeout) && timeout.Timeout() && ctx.Err() == nil {
		return r, nil
	}
	if err == nil {
		err = oncrpc.ParseReply(b, &r)
	}
	if err == nil && !r.Succeeded() {
		err = errors.New("the client refuses the procedure")
	}
	return r, err
}

// exchange sends the datagram m until its Reply comes.
func exchange(ctx context.Context, c net.Conn, xid uint32, m []byte, results bool) ([]byte, error) {
	buf := make([]byte, maxDatagram)
	for wait := firstRepeat; ; wait *= 2 {
		if _, err := c.Write(m); err != nil {
			return nil, err
		}
		if results {
			_ = c.SetReadDeadline(time.Now().Add(wait))
		}
		if err := ctx.Err(); err != nil { // its end may have set a deadline before this one
			return nil, err
		}
		for {
			n, err := c.Read(buf)
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() && results && ctx.Err() == nil {
				break
			}
			if err != nil {
				return nil, err
			}
			if oncrpc.IsReply(buf[:n], xid) {
				return buf[:n], nil
			}
		}
	}
}
