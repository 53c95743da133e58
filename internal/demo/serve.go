package demo

import (
	"encoding/binary"
	"fmt"
	"net"
	"time"

	nfs "github.com/willscott/go-nfs"
)

// Options say what a server differs in from another one.
type Options struct {
	Clock func() time.Time // nil: time.Now
	// Seed makes servers alike that have the same: in file handles and write verifiers.
	// 0: at random.
	Seed uint64
}

// Serve serves an empty file system to l until l is closed. MOUNT is answered too.
func Serve(l net.Listener, o Options) error {
	if err := registerDemoMount(); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	nfs.Log.SetLevel(nfs.FatalLevel) // go-nfs logs what clients do wrong
	if o.Clock == nil {
		o.Clock = time.Now
	}
	h := newDemoNFS(newDemoFSAt(o.Clock))
	s := nfs.Server{Handler: h}
	if o.Seed != 0 {
		h.run = o.Seed
		binary.BigEndian.PutUint64(s.ID[:], o.Seed)
	}
	return s.Serve(&closingListener{Listener: l})
}
