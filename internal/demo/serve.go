package demo

import (
	"encoding/binary"
	"fmt"
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
