package demo

import (
	"context"
	"sync"

	nfs "github.com/willscott/go-nfs"
)

// Procedures of MOUNT version 3 (RFC 1813 Appendix I) that go-nfs lacks. It
// answers those it does not know with accept_stat 2, which is PROG_MISMATCH and
// must carry two more words (RFC 5531 Section 9), so that libnfs, which asks for
// the exports while it mounts, gives up.
const (
	mountProgram   = 100005
	mountDump      = 2
	mountUmountAll = 4
	mountExport    = 5
)

// registerDemoMount adds the missing procedures to go-nfs's one global table.
var registerDemoMount = sync.OnceValue(func() error {
	for _, err := range []error{
		nfs.RegisterMessageHandler(mountProgram, mountExport, onMountExport),
		nfs.RegisterMessageHandler(mountProgram, mountDump, onMountDump),
		nfs.RegisterMessageHandler(mountProgram, mountUmountAll, onMountUmountAll),
	} {
		if err != nil {
			return err
		}
	}
	return nil
})

// A resultWriter is go-nfs's unexported *response, which only inference can name.
type resultWriter interface{ Write(results []byte) error }

// onMountExport lists one export, "/", for everybody:
//
//	1 - "/" - (no groups) 0 - 0
func onMountExport[W resultWriter](_ context.Context, w W, _ nfs.Handler) error {
	return w.Write([]byte{0, 0, 0, 1, 0, 0, 0, 1, '/', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
}

// onMountDump lists no mounts: none are kept.
func onMountDump[W resultWriter](_ context.Context, w W, _ nfs.Handler) error {
	return w.Write([]byte{0, 0, 0, 0})
}

func onMountUmountAll[W resultWriter](_ context.Context, w W, _ nfs.Handler) error {
	return w.Write(nil)
}
