package rdmaside

import (
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/rdmaside/regmem"
)

// A ReceivePool is the memory that the Receives of many connections share, and
// the rule by which they do. A Receive that was granted to an idle Requester
// cannot be taken back, so what is generous to one is lost to the others:
//
//	used       a connection that is used may have
//	to 1/2     as much as it is configured to have
//	to 5/8     its share, but keeps what it has
//	to 3/4     its share; what has more is lowered to it
//	beyond     what it has, or less; the rest is for newcomers
//
// A share is 5/8 of all, divided by the connections. Newcomers begin with a quarter
// of one, and never with more than a few: thousands that are idle do not have
// the memory that busy ones need. One Responder or several may use a pool. It is
// safe for concurrent use.
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
	return int(p.limit / 8 * 5 / max(1, p.conns.Load()) / int64(block))
}

// allow is how many blocks a connection that has n and wants more may have.
func (p *ReceivePool) allow(n, want, block int) int {
	used := p.used.Load()
	if used+int64(want-n)*int64(block) <= p.limit/2 {
		return want
	}
	left := (p.limit/4*3 - used) / int64(block)
	return max(n, min(want, p.share(block), n+int(left)))
}

// tight reports whether what has more than its share is to be lowered to it.
func (p *ReceivePool) tight() bool { return p.used.Load() > p.limit/8*5 }
