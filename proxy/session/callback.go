package session

// The back channel
//
// A reverse Call, which a server sends on the connection of a pinned lane, is for the client that has the
// lane. It goes to a client on TCP as a record, or to one over RDMA within the credits that the
// client grants (RFC 8167). The Reply goes back to the connection that the Call came on, and
// is dropped when that has ended: another connection would not know the Call. All of this
// happens on one loop, the client's. reverse.go has the rules for connections that clients
// share.
//
// XIDs stay as they are, because a client that speaks to one server has one name space for
// reverse Calls. Two servers may send one client the same XID. Over RDMA the second Call is
// refused; over TCP the Replies tell which Call they answer.
//
// A Call that the client does not answer costs the client and the server no more than an
// entry in a list. The proxy answers SYSTEM_ERR to a Call that it cannot bring to the client.
// It drops a Call for a client that is going away: the server will see its connection end and
// knows what to do then, while an error would make it give up the session.

// MaxCallBackOctets bounds the reverse Calls that wait to be written to one client.
const MaxCallBackOctets = 1 << 20

// An owed counts the reverse Calls that wait for room in a client's connection. It belongs to the
// client's loop.
type owed struct{ calls, octets int }

// send sends the client the plain RPC Call m, which came on the connection from. It keeps m until it
// calls done.Release. It reports false when most Calls wait for the client already, or when the
// client has no room for the Call. Then m remains the caller's.
func (o *owed) send(to Peer, m []byte, done Releaser, from Reverser, most int) bool {
	if o.calls >= most || o.octets+len(m) > MaxCallBackOctets {
		return false // the client does not read
	}
	c := &callback{o, done, len(m)}
	o.calls++
	o.octets += c.octets
	if !to.CallBack(m, c, from) {
		c.forget()
		return false
	}
	return true
}

// A callback is a reverse Call that waits for room in the client's connection.
type callback struct {
	owed   *owed
	done   Releaser
	octets int
}

// Release is called when the client's connection has written the Call.
func (c *callback) Release() {
	c.forget()
	c.done.Release()
}

func (c *callback) forget() {
	c.owed.calls--
	c.owed.octets -= c.octets
}
