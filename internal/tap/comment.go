package tap

import (
	"fmt"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// A comment is a list of words key=value. The first is "rdmabridge". explain reads call, leg, xid,
// client_xid and result, and the durations; the others are for people.

// transport names the transport of a connection.
func transport(c *observe.TapConn) string {
	if c.RDMA {
		return "rdma"
	}
	return "tcp"
}

// connectionComment says which connection this is.
func connectionComment(c *observe.TapConn) string {
	name := "upstream"
	if c.Leg == observe.TapClients {
		name = "listener"
	}
	return fmt.Sprintf("rdmabridge connection=%d leg=%s %s=%s transport=%s local=%s peer=%s", c.ID, legName(c.Leg), name, c.Name, transport(c), c.Local, c.Peer)
}

// callComment says of a message of f what the wire does not show.
func callComment(e *event, f *followed) string {
	var b strings.Builder
	fmt.Fprintf(&b, "rdmabridge call=%x leg=%s", e.call, legName(e.conn.Leg))
	name := "upstream"
	if e.conn.Leg == observe.TapClients {
		name = "listener"
	}
	fmt.Fprintf(&b, " %s=%s transport=%s", name, e.conn.Name, transport(e.conn))
	switch {
	case !e.reply && !e.out:
	case !e.reply:
		fmt.Fprintf(&b, " client_xid=%#x", f.clientXID)
		if f.sends > 1 {
			fmt.Fprintf(&b, " sent_again=%d", f.sends-1)
		}
		fmt.Fprintf(&b, " waited=%s", round(e.at.Sub(f.read)))
		if e.rdma.Known {
			b.WriteString(shape(&e.rdma))
		}
		fmt.Fprintf(&b, " outstanding=%d credits=%d", e.outstanding, e.granted)
	case !e.out:
		fmt.Fprintf(&b, " client_xid=%#x server=%s outstanding=%d credits=%d", f.clientXID, round(e.at.Sub(f.sent)), e.outstanding, e.granted)
	default:
		if f.sends > 0 {
			fmt.Fprintf(&b, " upstream_xid=%#x", f.upstreamXID)
		}
		if f.upstream {
			fmt.Fprintf(&b, " waited=%s server=%s back=%s", round(f.sent.Sub(f.read)), round(f.replied.Sub(f.sent)), round(e.at.Sub(f.replied)))
		} else {
			b.WriteString(" answered_by=bridge")
		}
		fmt.Fprintf(&b, " took=%s", round(e.at.Sub(f.read)))
	}
	if cut := e.length - len(e.octets); cut > 0 {
		fmt.Fprintf(&b, " cut=%d", cut)
	}
	return b.String()
}

// shape says how a Call and its Reply travel over RDMA.
func shape(r *observe.TapRDMA) string {
	s := " call_by=inline"
	switch r.Shape.Call {
	case ulb.CallReadChunk:
		s = fmt.Sprintf(" call_by=read_chunk(position=%d,octets=%d)", r.Position, r.Length)
	case ulb.CallLong:
		s = fmt.Sprintf(" call_by=long_call(octets=%d)", r.Length)
	}
	switch r.Shape.Reply {
	case ulb.ReplyInline:
		return s + " reply_by=inline"
	case ulb.ReplyWriteChunk:
		return s + fmt.Sprintf(" reply_by=write_chunk(octets=%d)", r.Shape.Capacity)
	}
	n, _ := r.Shape.Segments()
	return s + fmt.Sprintf(" reply_by=reply_chunk(octets=%d,segments=%d)", r.Shape.Capacity, n)
}

// reverseComment says of a message of the reverse direction what the wire does not show.
func reverseComment(e *event) string {
	name := "upstream"
	if e.conn.Leg == observe.TapClients {
		name = "listener"
	}
	return fmt.Sprintf("rdmabridge reverse leg=%s %s=%s transport=%s", legName(e.conn.Leg), name, e.conn.Name, transport(e.conn))
}

// round rounds d to microseconds.
func round(d time.Duration) time.Duration { return max(0, d.Round(time.Microsecond)) }

// describe says what the capture has, for the comment of the file.
func (o *Options) describe() string {
	var b strings.Builder
	b.WriteString("Messages that rdmabridge carried, re-framed as RPC over TCP: the addresses are those of the connections, the TCP headers are made up.")
	if !o.Payload {
		b.WriteString(" Data of READ and WRITE are cut.")
	}
	if o.Snap > 0 {
		fmt.Fprintf(&b, " No more than %d octets of a message are captured.", o.Snap)
	}
	return b.String()
}
