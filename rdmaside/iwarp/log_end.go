package iwarp

import (
	"errors"
	"io"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// logEnd logs the error of a connection that the ULP did not close.
func (p *Provider) logEnd(c *conn, err error) {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, loop.ErrStopped) || errors.Is(err, fabric.ErrClosed) {
		return
	}
	p.logs.Line(&p.opts.Log, zerolog.WarnLevel, "rdma_connection_failed").Stringer("peer", c.info.Peer).Err(err).Msg("connection ended")
}
