package main

import (
	"net"
	"testing"
)

// startDemoNFS serves a new demoFS on a free port of 127.0.0.1.
func startDemoNFS(t *testing.T) (addr string, fs *demoFS) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fs = newDemoFS()
	done := make(chan struct{})
	go func() {
		defer close(done)
		serveDemoNFS(l, fs)
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String(), fs
}
