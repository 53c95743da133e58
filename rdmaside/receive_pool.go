package rdmaside

import (
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
)

// A ReceivePool is the memory that the Receives of many connections share, and
// the rule by which they share it. A Responder cannot withdraw a Receive that
// it granted to an idle Requester, so each Receive of one connection reduces
// the memory of the others. The rule depends on how much of the memory is in
// use:
//
//	in use     a connection may have
//	to 1/2     all that it is configured to have, if it uses it, and Receives
//	           for Calls beyond its grant: responder_excess.go
//	to 3/4     its share, if it used all it had; one that has more keeps it
//	to 7/8     the same; one that has more than its share is lowered to it, and
//	           gives up its Receives for Calls beyond its grant
//	beyond     what it has, or less; the rest is for new connections
//
// A share is 3/4 of the memory divided by the number of connections, where a
// single connection counts as two. A new connection begins with a quarter of a
// share, but never with more than a few Receives. It begins with a single credit
// when other connections have to give up Receives first: thousands of idle
// connections then do not occupy the memory that busy ones need. Several
// Responders may use one pool. It is safe for concurrent use.
type ReceivePool struct {
	account *regmem.Account
	limit   int64 // octets of the pool

	conns atomic.Int64 // connections that share the pool
	used  atomic.Int64 // octets, counted in whole blocks
}

// NewReceivePool returns a pool of all the memory of a. Nothing else should use
// a.
func NewReceivePool(a *regmem.Account) *ReceivePool {
	return &ReceivePool{account: a, limit: a.Limit()}
}

func (p *ReceivePool) lease(n int) (*regmem.Lease, error) {
	l, err := p.account.Lease(n)
	if err == nil {
		p.used.Add(int64(l.Size()))
	}
	return l, err
}

func (p *ReceivePool) returned(l *regmem.Lease) { p.used.Add(-int64(l.Size())) }

// fits reports whether the pool has room for n more blocks.
func (p *ReceivePool) fits(n, block int) bool { return p.used.Load()+int64(n)*int64(block) <= p.limit }

// plenty reports whether there is memory for another block that no connection needs now.
func (p *ReceivePool) plenty(block int) bool { return p.used.Load()+int64(block) <= p.limit/2 }

// share returns how many blocks each connection may have, whatever the others do.
func (p *ReceivePool) share(block int) int {
	return int(p.limit / 4 * 3 / max(2, p.conns.Load()) / int64(block))
}

// first returns how many blocks a new connection begins with.
func (p *ReceivePool) first(block int) int {
	if p.tight() {
		return 0
	}
	return p.share(block) / 4
}

// allow returns how many blocks a connection that has n and wants more may
// have. needed says that the connection used all it has.
func (p *ReceivePool) allow(n, want, block int, needed bool) int {
	used := p.used.Load()
	switch {
	case used+int64(want-n)*int64(block) <= p.limit/2:
		return want
	case !needed:
		return n
	}
	left := (p.limit/8*7 - used) / int64(block)
	return max(n, min(want, p.share(block), n+int(left)))
}

// tight reports whether a connection that has more than its share must go down
// to its share.
func (p *ReceivePool) tight() bool { return p.used.Load() > p.limit/4*3 }
