package demo

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	nfs "github.com/willscott/go-nfs"
)

// Options make a server reproducible. The zero value is right for every other use.
type Options struct {
	// Clock is the clock of the file system; time.Now if nil.
	Clock func() time.Time
	// Seed determines file handles and write verifiers; random if 0.
	Seed uint64
}

// Serve serves an empty file system to the clients of l, with NFSv3 and MOUNT, until l is
// closed. It always returns an error.
func Serve(l net.Listener, o Options) error {
	if err := registerMount(); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	h := newHandler(newMemFS(o.Clock))
	s := nfs.Server{Handler: h}
	if o.Seed != 0 {
		h.run = o.Seed
		binary.BigEndian.PutUint64(s.ID[:], o.Seed)
	}
	return s.Serve(&closingListener{Listener: l})
}

// Start starts the server on a free port of 127.0.0.1. It returns the
// server's address and a function that stops the server.
func Start(errOut io.Writer) (addr string, stop func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("demo: %w", err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := Serve(l, Options{}); !errors.Is(err, net.ErrClosed) {
			fmt.Fprintf(errOut, "demo: the NFS server failed: %v\n", err)
		}
	}()
	return l.Addr().String(), func() error {
		err := l.Close()
		<-served
		return err
	}, nil
}
