package demo

import (
	"context"
	"sync"

	nfs "github.com/willscott/go-nfs"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// The programs, and the procedures of MOUNT version 3 (RFC 1813 Appendix I) that go-nfs lacks. libnfs calls EXPORT
// while it mounts.
const (
	nfsProgram     = oncrpc.ProgramNFS
	mountProgram   = oncrpc.ProgramMount
	mountDump      = 2
	mountUmountAll = 4
	mountExport    = 5
)

// registerMount adds the missing procedures to the global table of go-nfs, and sets the
// level of its global log.
var registerMount = sync.OnceValue(func() error {
	nfs.Log.SetLevel(nfs.FatalLevel) // go-nfs logs the mistakes of clients as errors
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

// A resultWriter is *response of go-nfs. The type is unexported, so only type inference
// can name it.
type resultWriter interface{ Write(results []byte) error }

// onMountExport lists one export, "/", which every client may mount:
//
//	1 - "/" - (no groups) 0 - 0
func onMountExport[W resultWriter](_ context.Context, w W, _ nfs.Handler) error {
	return w.Write([]byte{0, 0, 0, 1, 0, 0, 0, 1, '/', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
}

// onMountDump lists no mounts: the server does not record them.
func onMountDump[W resultWriter](_ context.Context, w W, _ nfs.Handler) error {
	return w.Write([]byte{0, 0, 0, 0})
}

// onMountUmountAll does nothing: the server records no mounts.
func onMountUmountAll[W resultWriter](_ context.Context, w W, _ nfs.Handler) error {
	return w.Write(nil)
}
