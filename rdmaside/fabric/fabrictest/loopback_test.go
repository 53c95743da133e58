package fabrictest

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

type echo struct {
	c      fabric.Conn
	bufs   [][]byte
	got    []string
	closed bool
	echo   bool
}

func (e *echo) Setup(c fabric.Conn) error {
	e.c = c
	for i := range 4 {
		e.bufs = append(e.bufs, make([]byte, 64))
		if err := c.PostReceive(uint64(i), e.bufs[i]); err != nil {
			return err
		}
	}
	return nil
}

func (e *echo) Completed(cs []fabric.Completion) {
	for _, c := range cs {
		if c.Op != fabric.OpReceive || c.Err != nil {
			continue
		}
		b := e.bufs[c.ID][:c.Bytes]
		e.got = append(e.got, string(b))
		if e.echo {
			_ = e.c.PostSend(0, fabric.Send{Parts: [][]byte{b}})
			e.c.Flush()
		}
		_ = e.c.PostReceive(c.ID, e.bufs[c.ID])
	}
}

func (e *echo) Closed(error) { e.closed = true }

func TestLoopbackInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, l1, l2 := NewLoopback(), NewLoop(), NewLoop()
		defer l1.Stop()
		defer l2.Stop()
		server := &echo{echo: true}
		ln, err := p.Listen("server", NoLimits(), func(in fabric.Incoming) {
			if _, err := in.Accept(context.Background(), l2, fabric.ConnOptions{}, server); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		client := &echo{}
		c, err := p.Dial(context.Background(), l1, "server", fabric.ConnOptions{}, client)
		if err != nil {
			t.Fatal(err)
		}
		l1.Do(func() {
			if err := c.PostSend(1, fabric.Send{Parts: [][]byte{[]byte("hel"), []byte("lo")}}); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if len(client.got) != 1 || client.got[0] != "hello" {
			t.Errorf("echoed %q", client.got)
		}
		l1.Do(func() { c.Close(nil) })
		synctest.Wait()
		if !client.closed || !server.closed {
			t.Error("not closed")
		}
		_ = ln.Close()
	})
}
