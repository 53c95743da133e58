package fabrictest

import (
	"runtime"
	"testing"
	"time"
)

// Run runs the suite on a provider. open makes a fresh Fixture for each test and
// registers with t.Cleanup how to stop it. A goroutine that runs on after that fails the
// test.
//
// The suite tests only the promises of package fabric. Where providers may
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
		{"NoLimits", testNoLimits},
		{"MaxConnections", testMaxConnections},
		{"DialCanceled", testDialCanceled},
		{"SetupFails", testSetupFails},
		{"ListenerClose", testListenerClose},
		{"SendSizes", testSendSizes},
		{"SendParts", testSendParts},
		{"ReceiveOrder", testReceiveOrder},
		{"ReceiveInPlace", testReceiveInPlace},
		{"SendCopy", testSendCopy},
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
		{"Placed", testPlaced},
		{"PlacedAtRandom", testPlacedAtRandom},
		{"PlacedInPart", testPlacedInPart},
		{"PlacedAtTheEnd", testPlacedAtTheEnd},
	} {
		before := runtime.NumGoroutine()
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
		checkGoroutines(t, test.name, before)
	}
}

// checkGoroutines fails when more goroutines run than before, even after some time in
// which they may end.
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
