// Package ask calls RPC programs of other hosts over TCP, one Call after the other. It is for what the bridge asks on its own
// account, beside the road of its clients' Calls.
package ask

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// A Conn is a TCP connection to one program. It is for one goroutine.
type Conn struct {
	conn net.Conn
	xid  uint32
	most int
}

// On returns a Conn that uses c and accepts Replies of at most so many octets. The caller closes c.
func On(c net.Conn, most int) *Conn { return &Conn{c, rand.Uint32(), most} }

// A Credential is that of a Call, by flavor and body.
type Credential struct {
	Flavor uint32
	Body   []byte
}

// Root returns the AUTH_SYS credential of user 0 at a host.
func Root(host string) Credential {
	return Credential{oncrpc.FlavorSys, xdr.AppendWords(xdr.AppendOpaque(xdr.AppendUint32(nil, 0), []byte(host)), 0, 0, 0)}
}

// AppendCall appends the header of a Call, without a verifier: RFC 5531 Section 9.
func AppendCall(b []byte, xid, program, version, procedure uint32, who Credential) []byte {
	b = xdr.AppendWords(b, xid, oncrpc.TypeCall, oncrpc.RPCVersion, program, version, procedure, who.Flavor)
	return xdr.AppendWords(xdr.AppendOpaque(b, who.Body), oncrpc.FlavorNone, 0)
}

// Call calls a procedure and returns a cursor over its results, in m. The deadline of ctx bounds it; ctx must have
// one. After an error the connection is of no use.
func (c *Conn) Call(ctx context.Context, program, version, procedure uint32, who Credential, args []byte) (m []byte, results xdr.Cursor, err error) {
	deadline, _ := ctx.Deadline()
	_ = c.conn.SetDeadline(deadline) // Read would say so
	defer context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Now()) })()
	c.xid++
	if _, err = c.conn.Write(Record(append(AppendCall(nil, c.xid, program, version, procedure, who), args...))); err != nil {
		return nil, results, err
	}
	m, err = ReadRecord(c.conn, c.most, func(octets int) error {
		if octets == 0 {
			return errors.New("an empty fragment is not possible here")
		}
		return nil
	})
	if err != nil {
		return nil, results, err
	}
	var r oncrpc.Reply
	switch err = oncrpc.ParseReply(m, &r); {
	case err != nil:
	case !oncrpc.IsReply(m, c.xid):
		err = errors.New("the Reply is to another Call")
	case !r.Succeeded():
		err = fmt.Errorf("program %d, version %d, procedure %d is refused", program, version, procedure)
	}
	if err != nil {
		return nil, results, err
	}
	return m, xdr.NewCursor(m, r.Results), nil
}
