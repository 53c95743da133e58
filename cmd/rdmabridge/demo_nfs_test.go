package main

import (
	"net"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/demo"
)

// startDemoNFS serves an empty NFSv3 file system on a free port of 127.0.0.1.
func startDemoNFS(t *testing.T, o demo.Options) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = demo.Serve(l, o) // says that l is closed
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String()
}

// series returns the value of a series in metrics, or "".
func series(metrics, name string) string {
	for line := range strings.Lines(metrics) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
