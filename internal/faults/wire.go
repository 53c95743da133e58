package faults

import (
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

const maxFrozen = 64 << 20 // octets that a frozen connection keeps

// A wire is between a provider over TCP and the socket: the socket's Stream, and the provider's Socket. It
// belongs to the loop.
type wire struct {
	loop.Socket
	stream loop.Stream
	loop   loop.Loop

	cutting bool // end the connection after left more octets
	left    int
	how     string // reset or close
	spoil   int    // change an octet that many octets ahead; negative: none
	deaf    bool   // nothing more is written

	frozen  bool
	blocked bool // the provider waits for Writable
	thawing bool // the provider gets octets that were kept
	kept    [][]byte
	octets  int
}

var (
	_ loop.Stream = (*wire)(nil)
	_ loop.Socket = (*wire)(nil)
)

// Attached is part of loop.Stream.
func (w *wire) Attached(s loop.Socket) {
	w.Socket = s
	w.stream.Attached(w)
}

// Received is part of loop.Stream.
func (w *wire) Received(b []byte) {
	if !w.frozen {
		w.stream.Received(b)
		return
	}
	if w.octets += len(b); w.octets > maxFrozen {
		w.Abort()
		return
	}
	w.kept = append(w.kept, slices.Clone(b))
}

// Writable is part of loop.Stream.
func (w *wire) Writable() {
	if w.frozen {
		w.blocked = true
		return
	}
	w.stream.Writable()
}

// Flush is part of loop.Stream.
func (w *wire) Flush() { w.stream.Flush() }

// Detached is part of loop.Stream.
func (w *wire) Detached(err error) {
	w.kept = nil
	w.stream.Detached(err)
}

// Writev is part of loop.Socket.
func (w *wire) Writev(bufs [][]byte) (int, error) {
	all := 0
	for _, b := range bufs {
		all += len(b)
	}
	switch {
	case w.deaf:
		return all, nil
	case w.frozen:
		w.blocked = true
		return 0, nil
	case w.cutting:
		n, err := w.Socket.Writev(first(bufs, w.left))
		if w.left -= n; err != nil || w.left > 0 {
			return n, err
		}
		w.deaf = true
		if w.how == "reset" {
			w.Abort()
		} else {
			w.Close()
		}
		return all, nil
	case w.spoil >= 0:
		bufs = slices.Clone(bufs)
		at := w.spoil
		for i, b := range bufs {
			if at < len(b) {
				bufs[i] = slices.Clone(b)
				bufs[i][at] ^= 1
				break
			}
			at -= len(b)
		}
		n, err := w.Socket.Writev(bufs)
		if w.spoil -= n; w.spoil < 0 {
			w.spoil = -1
		}
		return n, err
	}
	return w.Socket.Writev(bufs)
}

// Read is part of loop.Socket.
func (w *wire) Read(p []byte) (int, error) {
	if w.thawing || w.frozen {
		return 0, nil
	}
	return w.Socket.Read(p)
}

// first returns the first n octets of bufs.
func first(bufs [][]byte, n int) (some [][]byte) {
	for _, b := range bufs {
		if len(b) >= n {
			return append(some, b[:n])
		}
		some, n = append(some, b), n-len(b)
	}
	return some
}

// freeze stops everything for a time.
func (w *wire) freeze(d time.Duration) {
	w.frozen = true
	time.AfterFunc(d, func() { w.loop.Post(loop.TaskFunc(w.thaw)) })
}

func (w *wire) thaw() {
	w.frozen, w.thawing = false, true
	for len(w.kept) > 0 && !w.frozen {
		b := w.kept[0]
		w.kept, w.octets = w.kept[1:], w.octets-len(b)
		w.stream.Received(b)
	}
	w.thawing = false
	if w.blocked && !w.frozen {
		w.blocked = false
		w.stream.Writable()
	}
}
