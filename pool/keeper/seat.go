package keeper

import (
	"context"
	"errors"
	"time"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool/dials"
	"github.com/rdmabridge/rdmabridge/pool/endpoints"
)

var (
	// ErrClosed reports what ends because it is not wanted any more.
	ErrClosed = errors.New("pool: closed")
	// ErrMute ends a connection whose server has not answered since it was made.
	ErrMute = errors.New("pool: the server accepts connections and answers nothing")
)

// A Seat is what a Keeper keeps a connection on. The Keeper calls it from the goroutines of Keep and Resume.
// Only Dial waits.
type Seat interface {
	// Settings returns the settings that hold now.
	Settings() Settings
	// Goes reports whether the seat needs a connection. If it does not, Keep returns.
	Goes() bool
	// Dial makes a connection to addr. The channel is closed when the server has granted a credit. With improving, the
	// seat replaces another if Dial makes a better connection than that one has, and fails otherwise.
	Dial(ctx context.Context, addr string, improving bool) (Conn, <-chan struct{}, error)
	// Connected puts the connection that Dial has made to addr to use. If it is not wanted any more, Connected
	// closes it.
	Connected(addr string)
	// Ended notes that the seat has no connection, because it has ended or Dial has failed.
	Ended() Outcome
	// Failed notes err, with which the connection to addr has ended or Dial has failed.
	Failed(addr string, err error)
	// LeaveMute closes the connection, whose server has not granted a credit, if another endpoint or address may.
	LeaveMute()
	// LeaveNullOnly replaces the connections to endpoints of endpoints.Health.IsNullOnly, also those of other seats.
	LeaveNullOnly()
	// Beside makes a Candidate for the place of the seat, and its Keeper; nil if the seat has no connection. unwanted
	// reports that the seat is not wanted any more.
	Beside() (next *Keeper, c Candidate, unwanted bool)
}

// A Candidate is a seat that takes the place of another when it has a better connection. Its Keeper dials it.
type Candidate interface {
	// TriesOut reports whether a connection waits for a Call that tries its endpoint, or for its answer.
	TriesOut() bool
	// TryOut has the next Call try the endpoint addr on the connection that Dial has made, unless another one does.
	TryOut(addr string)
	// Withdraw ends what TryOut began, unless a Call has come. It reports whether none has.
	Withdraw() bool
	// Replace puts the candidate, with the connection to addr that Dial has made, in the place of the other seat, and has
	// its Keeper Resume. If that seat has lost its connection meanwhile, or the candidate has, Replace reports false, and
	// whether the other seat is unwanted. Without Replace, or if it reports false, the candidate is over when its
	// connection has Ended.
	Replace(addr string) (replaced, unwanted bool)
}

// A Conn is a connection that Dial has made.
type Conn interface{ Close(err error) }

// An Outcome is what became of a seat that has no connection any more.
type Outcome struct {
	Over      bool // another seat has taken its place, or it was removed: Keep and Resume return
	Rested    bool // the connection was closed because nothing used it
	Missed    bool // the connection was wanted, and there is another endpoint
	Fruitless bool // the connection has carried Calls of clients and answered none
}

// Settings are the settings of a seat, which may change while a Keeper works.
type Settings struct {
	BackoffMin  time.Duration // first pause after a failure
	BackoffMax  time.Duration // longest pause
	DialTimeout time.Duration // for one attempt to connect

	Health *endpoints.Health // what is known of the endpoints
	Dials  *dials.Share      // nil for no limit
	Errors *metrics.Counter  // attempts to connect that failed; may be nil

	Prefer  int  // index of the endpoint that the seat prefers
	Keep    bool // it prefers the one whose server has granted it a credit last
	Returns bool // it goes back to the endpoint that it prefers

	// As in pool.Options. Each may be nil.
	HostGone func(err error) bool
	Local    func(err error) bool
	Improve  func() time.Duration
	Failed   func(endpoint string, err error, retryIn time.Duration)
}

// isLocal reports whether err says nothing about an endpoint.
func (o *Settings) isLocal(err error) bool { return o.Local != nil && o.Local(err) }
