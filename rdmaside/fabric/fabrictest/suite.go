package fabrictest

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A Fixture is what one test of the suite runs on. Its providers may be one.
type Fixture struct {
	Dialer, Acceptor     fabric.Provider
	DialLoop, AcceptLoop loop.Loop

	// Listen is where to listen: "127.0.0.1:0". Dial tells how that is dialled;
	// nil dials Listener.Addr.
	Listen string
	Dial   func(fabric.Listener) string

	// Alloc makes the memory that is given to connections; nil is make.
	Alloc func(n int) []byte

	// MaxTransfer bounds a single Read or Write of the suite in octets; default
	// 4 MiB.
	MaxTransfer int
}

func (f *Fixture) alloc(n int) []byte {
	if f.Alloc == nil {
		return make([]byte, n)
	}
	return f.Alloc(n)
}

func (f *Fixture) maxTransfer() int {
	if f.MaxTransfer == 0 {
		return 4 << 20
	}
	return f.MaxTransfer
}

func (f *Fixture) dialAddr(l fabric.Listener) string {
	if f.Dial == nil {
		return l.Addr().String()
	}
	return f.Dial(l)
}

func (f *Fixture) listen(t *testing.T, o fabric.ListenOptions, incoming func(fabric.Incoming)) fabric.Listener {
	t.Helper()
	l, err := f.Acceptor.Listen(f.Listen, o, incoming)
	if err != nil {
		t.Fatalf("Listen: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// dial dials l with h and returns the error.
func (f *Fixture) dial(l fabric.Listener, o fabric.ConnOptions, h fabric.Handler) (fabric.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return f.Dialer.Dial(ctx, f.DialLoop, f.dialAddr(l), o, h)
}

// Run puts a provider through the suite. open makes a fresh Fixture for each test
// and ends what it started with t.Cleanup; a goroutine that outlives that fails
// the test.
//
// The suite asks only for what package fabric promises. Where providers may
// differ (a Write to a dead handle may complete before the peer complains) any of
// the allowed outcomes passes.
func Run(t *testing.T, open func(t *testing.T) *Fixture) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, *Fixture)
	}{
		{"PrivateData", testPrivateData},
		{"Reject", testReject},
		{"Allow", testAllow},
		{"NoListener", testNoListener},
		{"MaxConnections", testMaxConnections},
		{"DialCanceled", testDialCanceled},
		{"SetupFails", testSetupFails},
		{"ListenerClose", testListenerClose},
		{"SendSizes", testSendSizes},
		{"SendParts", testSendParts},
		{"ReceiveOrder", testReceiveOrder},
		{"PingPong", testPingPong},
		{"Silent", testSilent},
		{"OneLoop", testOneLoop},
		{"TooLong", testTooLong},
		{"NoReceive", testNoReceive},
		{"QueueFull", testQueueFull},
		{"WriteThenSend", testWriteThenSend},
		{"Read", testRead},
		{"ReadsBeyondORD", testReadsBeyondORD},
		{"ZeroLength", testZeroLength},
		{"Bounds", testBounds},
		{"Rights", testRights},
		{"Handles", testHandles},
		{"ForeignHandle", testForeignHandle},
		{"Invalidate", testInvalidate},
		{"RemoteInvalidate", testRemoteInvalidate},
		{"RemoteInvalidateDead", testRemoteInvalidateDead},
		{"BigTransfers", testBigTransfers},
		{"Mixed", testMixed},
		{"FlushOnClose", testFlushOnClose},
		{"OrderlyClose", testOrderlyClose},
		{"CloseInHandler", testCloseInHandler},
		{"PostAfterClose", testPostAfterClose},
		{"CloseUnderLoad", testCloseUnderLoad},
		{"ManyConnections", testManyConnections},
		{"LastActivity", testLastActivity},
		{"ListenOn", testListenOn},
		{"Copied", testCopied},
		{"SetLimits", testSetLimits},
		{"StopAccepting", testStopAccepting},
		{"File", testFile},
	} {
		before := runtime.NumGoroutine()
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
		checkGoroutines(t, test.name, before)
	}
}

// checkGoroutines fails when more goroutines run than before, after some time to
// end.
func checkGoroutines(t *testing.T, name string, before int) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			stacks := make([]byte, 1<<20)
			t.Errorf("%s: %d goroutines before, %d after\n%s", name, before, runtime.NumGoroutine(), stacks[:runtime.Stack(stacks, true)])
			return
		}
	}
}
