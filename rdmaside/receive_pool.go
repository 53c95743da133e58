package rdmaside

import (
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
)

// A ReceivePool is the memory that the Receives of many connections share, and
// the rule by which they do. A Receive that was granted to an idle Requester
// cannot be taken back, so what is generous to one is lost to the others:
//
//	used       a connection may have
//	to 1/2     if it is used, as much as it is configured to have
//	to 3/4     if it used all it had, its share; what has more keeps that
//	to 7/8     the same; what has more than its share is lowered to it
//	beyond     what it has, or less; the rest is for newcomers
//
// A share is 3/4 of all, divided by the connections, of which one alone counts as
// two. Newcomers begin with a quarter of one, never with more than a few, and with
// a single credit when what they need is to be taken from others first: thousands
// that are idle do not have the memory that busy ones need. One Responder or several
// may use a pool. It is safe for concurrent use.
type ReceivePool struct {
	account *regmem.Account
	limit   int64

	conns atomic.Int64
	used  atomic.Int64 // octets of blocks
}

// NewReceivePool makes a pool of all of a, which nothing else should use.
func NewReceivePool(a *regmem.Account) *ReceivePool {
	return &ReceivePool{account: a, limit: a.Limit()}
}

// Limit is how many octets there are.
func (p *ReceivePool) Limit() int64 { return p.limit }

// Used is how many octets Receives take, posted or held by a Call.
func (p *ReceivePool) Used() int64 { return p.used.Load() }

// Connections is how many share the pool.
func (p *ReceivePool) Connections() int { return int(p.conns.Load()) }

func (p *ReceivePool) lease(n int) (*regmem.Lease, error) {
	l, err := p.account.Lease(n)
	if err == nil {
		p.used.Add(int64(l.Cap()))
	}
	return l, err
}

func (p *ReceivePool) returned(l *regmem.Lease) { p.used.Add(-int64(l.Cap())) }

// fits reports whether n blocks can be had at all.
func (p *ReceivePool) fits(n, block int) bool { return p.used.Load()+int64(n)*int64(block) <= p.limit }

// share is how many blocks each connection may have, whatever the others do.
func (p *ReceivePool) share(block int) int {
	return int(p.limit / 4 * 3 / max(2, p.conns.Load()) / int64(block))
}

// first is how many blocks a newcomer begins with.
func (p *ReceivePool) first(block int) int {
	if p.tight() {
		return 0
	}
	return p.share(block) / 4
}

// allow is how many blocks a connection that has n and wants more may have. needed
// says that it used all.
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

// tight reports whether what has more than its share is to be lowered to it.
func (p *ReceivePool) tight() bool { return p.used.Load() > p.limit/4*3 }
