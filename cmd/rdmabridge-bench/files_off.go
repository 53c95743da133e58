//go:build nodemo

package main

import (
	"errors"
	"io"
)

// serveFiles starts nothing in this build.
func serveFiles(io.Writer) (addr string, stop func() error, err error) {
	return "", nil, errors.New("the NFS server in memory is not in this build, which was made with -tags nodemo; name a server with --to")
}
