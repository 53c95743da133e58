package keeper

import (
	"context"
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/endpoints"
)

// tryOutWait is how long a connection waits for the Call that tries its endpoint.
const tryOutWait = time.Minute

var errNoCall = fmt.Errorf("%w: no Call has come that could try the endpoint", ErrClosed)

// tryOut has one Call try the endpoint of a on d, the connection of the seat of k, which is c and gets no others. It
// returns nil when that is answered. If it is not, or no Call comes within tryOutWait, the connection has ended when
// tryOut returns.
func (k *Keeper) tryOut(ctx context.Context, a endpoints.Attempt, d *dialled, c Candidate) error {
	d.tried = time.Now()
	c.TryOut(a.Addr)
	t := time.NewTimer(tryOutWait)
	defer t.Stop()
	over := t.C
	for {
		select {
		case <-k.answers:
			d.o.Health.AnswersCalls(a.Addr)
			return nil
		case err := <-k.ended:
			return err
		case <-over:
		case <-ctx.Done():
		}
		if c.Withdraw() || ctx.Err() != nil {
			k.close(d, errNoCall)
			return errNoCall
		}
		over = nil
	}
}
