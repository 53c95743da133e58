package ask

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// answer returns what the other end of a connection answers to the Call m.
type answer func(m []byte) []byte

// conn returns a Conn whose other end answers so.
func conn(t *testing.T, most int, f answer) *Conn {
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	go func() {
		for {
			var mark [4]byte
			if _, err := io.ReadFull(b, mark[:]); err != nil {
				return
			}
			m := make([]byte, binary.BigEndian.Uint32(mark[:])&^(1<<31))
			if _, err := io.ReadFull(b, m); err != nil {
				return
			}
			if _, err := b.Write(f(m)); err != nil {
				return
			}
		}
	}()
	return On(a, most)
}

// reply is a Reply with results, to the Call m if its XID is changed by nothing.
func reply(m []byte, other uint32, stat uint32, results ...uint32) []byte {
	return xdr.AppendWords(nil, append([]uint32{binary.BigEndian.Uint32(m) + other, 1, 0, 0, 0, stat}, results...)...)
}

func fragment(last bool, b []byte) []byte {
	n := uint32(len(b))
	if last {
		n |= 1 << 31
	}
	return append(xdr.AppendUint32(nil, n), b...)
}

// TestCall: the Call has what it was given, and its results come back, in one fragment or in several.
func TestCall(t *testing.T) {
	for name, cut := range map[string]int{"one fragment": 0, "two": 5} {
		t.Run(name, func(t *testing.T) {
			var asked oncrpc.Call
			c := conn(t, 64, func(m []byte) []byte {
				if err := oncrpc.ParseCall(bytes.Clone(m), &asked); err != nil {
					t.Error(err)
				}
				r := reply(m, 0, 0, 77)
				if cut == 0 {
					return fragment(true, r)
				}
				return append(fragment(false, r[:cut]), fragment(true, r[cut:])...)
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for range 2 {
				_, x, err := c.Call(ctx, 100005, 3, 5, Root("bridge"), []byte{1, 2, 3, 4})
				if err != nil || x.Uint32() != 77 || !x.OK() {
					t.Fatal("no results", err)
				}
				user, ok := asked.Sys()
				if asked.Program != 100005 || asked.Version != 3 || asked.Procedure != 5 || !ok || user.UID() != 0 || !bytes.Equal(asked.Message[asked.Args:], []byte{1, 2, 3, 4}) {
					t.Fatalf("the server has got %+v", asked)
				}
			}
		})
	}
}

// TestNoResults: what is no answer to the Call is an error.
func TestNoResults(t *testing.T) {
	for name, f := range map[string]answer{
		"too long":       func([]byte) []byte { return fragment(true, make([]byte, 68)) },
		"empty":          func([]byte) []byte { return fragment(false, nil) },
		"another Call's": func(m []byte) []byte { return fragment(true, reply(m, 1, 0)) },
		"refused":        func(m []byte) []byte { return fragment(true, reply(m, 0, 3)) },
		"no Reply":       func(m []byte) []byte { return fragment(true, m[:40]) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, _, err := conn(t, 64, f).Call(ctx, 1, 2, 3, Credential{}, nil); err == nil || strings.Contains(err.Error(), "timeout") {
				t.Error(err)
			}
		})
	}
}

// TestEnds: a Call that is not answered ends with its context.
func TestEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	c := conn(t, 64, func([]byte) []byte { cancel(); return nil })
	if _, _, err := c.Call(ctx, 1, 2, 3, Credential{}, nil); err == nil {
		t.Error("no error")
	}
}
