package rdmaside

import (
	"errors"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/credit"
)

const (
	defaultFirst = 8
	defaultORD   = 16
	defaultStall = 60 * time.Second

	// spareReceives are posted beyond the credits: one for a Call beyond the grant, and
	// one so that this package sees an overrun before the provider does.
	spareReceives = 2
)

// ResponderOptions configure the connections of a Responder. A field may be zero
// only where its comment says what that means.
type ResponderOptions struct {
	// Memory is the account that Calls are leased from.
	Memory *regmem.Account
	// Replies is the account for answers. Calls that wait for their upstream must
	// not be able to exhaust it. nil means Memory.
	Replies *regmem.Account
	// Receives is the pool of Receive buffers. A connection that finds no memory
	// for one credit is refused. The pool should be apart from Memory, so that
	// idle connections leave all of that to Calls. nil means a pool of Memory.
	Receives *ReceivePool
	// Registry finds the data items that may be reduced.
	Registry *ulb.Registry

	// Credits are the most granted to a connection, from 1 to 16384. A connection
	// begins with fewer and gets more by using them, as far as Receives allows.
	Credits int
	// FirstCredits are granted at first; at most Credits; 0 means 8, or Credits if
	// that is less.
	FirstCredits int
	// CallInline and ReplyInline are the inline thresholds offered, in octets;
	// from 1024 to 64 KiB in steps of 1024.
	CallInline, ReplyInline int
	// MaxCall bounds a plain Call in octets; from 1024 to the most that one lease
	// can hold.
	MaxCall int
	// ORD is how many RDMA Reads may be outstanding on a connection, from 1 to
	// 1024; 0 means 16.
	ORD int
	// ReverseCredits are requested in the reverse direction, and bound how many of
	// its Calls are outstanding on a connection; from 1 to 1024; 0 means 4. Each
	// costs a Receive once it is needed.
	ReverseCredits int
	// StallTimeout is the longest time in which no outstanding RDMA Read may complete, and in
	// which a Call may get no memory; 0 means 60 s.
	StallTimeout time.Duration
	// Pace is how many octets a second RDMA Reads must bring, on average over each
	// StallTimeout, while the Calls that are being pulled hold 128 KiB of memory or more. 0 is
	// no limit besides that of StallTimeout.
	Pace int64
	// RemoteInvalidation allows Send With Invalidate towards Requesters that ask
	// for it.
	RemoteInvalidation bool

	Log     zerolog.Logger
	Metrics *ResponderMetrics // shared by the connections; may be nil
}

// validated returns o with what zero fields mean, or an error that reports every
// problem of o.
func (o ResponderOptions) validated() (ResponderOptions, error) {
	if o.FirstCredits == 0 {
		o.FirstCredits = min(defaultFirst, o.Credits)
	}
	if o.ORD == 0 {
		o.ORD = defaultORD
	}
	if o.ReverseCredits == 0 {
		o.ReverseCredits = defaultReverse
	}
	if o.StallTimeout == 0 {
		o.StallTimeout = defaultStall
	}
	if o.Replies == nil {
		o.Replies = o.Memory
	}
	if o.Receives == nil && o.Memory != nil {
		o.Receives = NewReceivePool(o.Memory)
	}
	errs := []error{
		checkInline("CallInline", o.CallInline),
		checkInline("ReplyInline", o.ReplyInline),
		checkRange("Credits", o.Credits, 1, credit.Max),
		checkRange("FirstCredits", o.FirstCredits, 1, o.Credits),
		checkRange("MaxCall", o.MaxCall, 1024, regmem.MaxLease),
		checkRange("ORD", o.ORD, 1, 1024),
		checkRange("ReverseCredits", o.ReverseCredits, 1, maxReceives),
		checkSet("Memory", o.Memory != nil),
		checkSet("Registry", o.Registry != nil),
	}
	return o, errors.Join(errs...)
}
