package demo

import (
	"net"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/demo/demotest"
)

// TestDemoNFS tests the server without a bridge, so that a failure of the demo can be told
// from one of the server.
func TestDemoNFS(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = Serve(l, Options{}) // returns an error when l is closed
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	addr := l.Addr().String()
	t.Run("go", func(t *testing.T) { demotest.GoClient(t, addr, 300) })
	t.Run("libnfs", func(t *testing.T) { demotest.Libnfs(t, addr, 16<<20) })
}
