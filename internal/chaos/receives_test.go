package chaos

import "github.com/rdmabridge/rdmabridge/rdmaside/fabric"

// A receives posts the Receives of a connection and posts each again after its message
// was copied. The connection's loop owns it.
type receives struct {
	conn fabric.Conn
	bufs [][]byte
}

// post posts n Receives of size octets to conn.
func (r *receives) post(conn fabric.Conn, n, size int) error {
	r.conn, r.bufs = conn, make([][]byte, n)
	for i := range r.bufs {
		r.bufs[i] = make([]byte, size)
		if err := conn.PostReceive(uint64(i), r.bufs[i]); err != nil {
			return err
		}
	}
	return nil
}

// again returns a copy of the message of p, an OpReceive without error, and posts its
// Receive again. The copy is good whatever the error.
func (r *receives) again(p *fabric.Completion) ([]byte, error) {
	b := r.bufs[p.ID]
	m := append([]byte(nil), b[:p.Bytes]...)
	return m, r.conn.PostReceive(p.ID, b)
}
