package tcpframe

import (
	"context"
	"fmt"
	"net"
)

// Dial connects to addr (host:port), on loop, or on the least loaded loop if
// that is nil, and returns after h.Opened has. It blocks, and must not be
// called on a loop. After an error no method of h was or will be called.
func (e *Engine) Dial(ctx context.Context, addr string, loop *Loop, o DialOptions, h RecordHandler) (*Conn, error) {
	if o.Name == "" {
		o.Name = "upstream"
	}
	if loop == nil {
		loop = e.leastLoaded()
	}
	d := net.Dialer{LocalAddr: o.LocalAddr, KeepAliveConfig: keepAlive(o.KeepAlive)}
	if !d.KeepAliveConfig.Enable {
		d.KeepAlive = -1
	}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("tcpframe: %w", err)
	}
	if err := tune(nc.(*net.TCPConn), o.UserTimeout); err != nil {
		nc.Close()
		return nil, fmt.Errorf("tcpframe: socket options: %w", err)
	}
	c := newConn(loop, nc, o.Conn, e.counters(o.Name))
	c.handler = h
	if err := loop.attach(nc, c.sock); err != nil {
		return nil, fmt.Errorf("tcpframe: %w", err)
	}
	return c, nil
}
