package iwarp

import (
	"errors"
	"io"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// logEnd logs the error of a connection that the ULP did not close.
func (p *Provider) logEnd(c *conn, err error) {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, loop.ErrStopped) || errors.Is(err, fabric.ErrClosed) {
		return
	}
	ok, suppressed := p.logs.Allow(time.Now())
	if !ok {
		return
	}
	e := p.opts.Log.Warn().Stringer("peer", c.info.Peer).Err(err)
	if suppressed > 0 {
		e = e.Uint64("suppressed", suppressed)
	}
	e.Msg("connection ended")
}
