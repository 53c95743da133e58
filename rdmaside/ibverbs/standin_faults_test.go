//go:build ibverbs

package ibverbs

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// Faults of testdata/standin.c, in its order.
const (
	noFault = iota
	faultPostSend
	faultPostRecv
	faultPoll
	faultOne
	faultStatus
	faultRemoval
	faultRegister
	faultCQ
	faultQP
	faultPD
	faultAddr
	faultRoute
	faultConnect
	faultSilent
	faultUnknown
	faultArm
	faultBatchSend
	faultBatchReceive
	faultPort
	faultBind
	faultWindow
	faultInvalidate
	faultUntold
	faultBlock
	faultDeregister
	faultGone
)

// setFault makes the stand-in fail from now on. value is an errno, a status or an event.
func setFault(fault, value uint32) {
	standIn.value.Store(value)
	standIn.fault.Store(fault)
}

// patience bounds each wait of these tests.
const patience = testkit.Patience

// A recorder is a Handler that posts Receives and keeps what it is told.
type recorder struct {
	receives int
	c        fabric.Conn // of the side that accepts
	closedc  chan error
	gotc     chan string
	holdc    chan struct{} // if it is not nil, Closed returns when it is closed

	// Owned by the loop.
	sends  uint64
	sent   int64          // Sends that completed without an error
	buf    []byte         // 64 octets for each Receive
	posted map[uint64]int // completions of what was posted
	wrong  string         // what a Completion should not have said
}

func newRecorder() *recorder { return newRecorderOf(1) }

// newRecorderOf returns a recorder that posts Receives 1 to n.
func newRecorderOf(n int) *recorder {
	return &recorder{
		receives: n, closedc: make(chan error, 1), gotc: make(chan string, 8), buf: make([]byte, 64*n), posted: make(map[uint64]int),
	}
}

func (r *recorder) Setup(c fabric.Conn) error {
	for i := range r.receives {
		r.posted[uint64(i+1)] = 0
		if err := c.PostReceive(uint64(i+1), r.buf[64*i:64*(i+1)]); err != nil {
			return err
		}
	}
	return nil
}

func (r *recorder) Closed(err error) {
	for id, n := range r.posted {
		if n != 1 {
			r.wrong = fmt.Sprintf("work %d completed %d times", id, n)
		}
	}
	r.closedc <- err
	if r.holdc != nil {
		<-r.holdc
	}
}

func (r *recorder) Completed(cs []fabric.Completion) {
	for _, c := range cs {
		if _, ok := r.posted[c.ID]; !ok {
			r.wrong = fmt.Sprintf("completion of %d, which was not posted", c.ID)
		}
		r.posted[c.ID]++
		if c.Op == fabric.OpSend && c.Err == nil {
			r.sent++
		}
		if c.Op != fabric.OpReceive || c.Err != nil {
			continue
		}
		if c.ID == 0 || c.ID > uint64(r.receives) || c.Bytes > 64 {
			r.wrong = fmt.Sprintf("Receive %d of %d octets", c.ID, c.Bytes)
			continue
		}
		select {
		case r.gotc <- string(r.buf[64*(c.ID-1):][:c.Bytes]):
		default:
		}
	}
}

// next returns a number for work that is not a Receive.
func (r *recorder) next() uint64 {
	r.sends++
	return 99 + r.sends
}

// post posts n Sends.
func (r *recorder) post(c fabric.Conn, n int) {
	for range n {
		id := r.next()
		if c.PostSend(id, fabric.Send{Parts: [][]byte{[]byte("hello")}}) == nil {
			r.posted[id] = 0
		}
	}
	c.Flush()
}

// TestFaults checks that each fault of a device, of the connection manager or of rdma-core ends a Dial
// or a connection with an error that says what failed, and that no object and no goroutine is left.
func TestFaults(t *testing.T) {
	if standIn == nil {
		t.Skip("the tests run on a device")
	}
	type fault struct {
		name         string
		fault, value uint32
		dialled      bool   // the fault begins behind the Dial
		want         string // in the error; "" if there is none
	}
	no := func(e syscall.Errno) string { return e.Error() }
	tests := []fault{
		{"address", faultAddr, uint32(syscall.ENODEV), false, "resolve address 127.0.0.1: addr_error: no such device"},
		{"route", faultRoute, uint32(syscall.ETIMEDOUT), false, "resolve route to 127.0.0.1: route_error: connection timed out"},
		{"connect_error", faultConnect, connectError, false, "connect_error"},
		{"unreachable", faultConnect, unreachable, false, "unreachable"},
		{"rejected", faultConnect, rejected, false, "rejected"},
		{"disconnected before established", faultConnect, disconnected, false, "disconnected"},
		{"removed before established", faultConnect, deviceRemoval, false, "device_removal"},
		{"established is never reported", faultSilent, 1, false, "deadline"},
		{"connect does not return", faultBlock, 1, false, "connect to 127.0.0.1:"},
		{"an event that no step expects", faultUnknown, 1, false, ""},
		{"completion queue", faultCQ, uint32(syscall.ENOMEM), false, "completion queue"},
		{"queue pair", faultQP, uint32(syscall.ENOMEM), false, "queue pair"},
		{"protection domain", faultPD, uint32(syscall.ENOMEM), false, "protection domain"},
		{"arm before set-up", faultArm, uint32(syscall.EIO), false, "arm the completion queue: input/output error"},
		{"locked memory", faultRegister, uint32(syscall.ENOMEM), false, "LimitMEMLOCK"},
		{"post a Receive", faultPostRecv, uint32(syscall.ENOMEM), false, "post a Receive"},
		{"post Receives: the third fails", faultBatchReceive, 2, false, "post a Receive"},
		{"port down", faultPort, 1, false, "the port is down"},
		{"partial polls", faultOne, 1, true, ""},
		{"post Sends: the third fails", faultBatchSend, 2, true, "post a Work Request: " + no(syscall.ENOMEM)},
		{"post a Send: ENOMEM", faultPostSend, uint32(syscall.ENOMEM), true, "post a Work Request: " + no(syscall.ENOMEM)},
		{"post a Send: EINVAL", faultPostSend, uint32(syscall.EINVAL), true, "post a Work Request: " + no(syscall.EINVAL)},
		{"removal", faultRemoval, 1, true, "device removed"},
		{"arm", faultArm, uint32(syscall.EIO), true, "arm the completion queue"},
		{"poll", faultPoll, uint32(syscall.EIO), true, "poll the completion queue"},
	}
	for status := range uint32(22) {
		if status != 0 && status != statusFlushed {
			tests = append(tests, fault{fmt.Sprint("status ", status), faultStatus, status, true, fmt.Sprintf("(status %d,", status)})
		}
	}
	for _, tt := range tests {
		leaks := watchLeaks()
		t.Run(tt.name, func(t *testing.T) { underFault(t, tt.fault, tt.value, tt.dialled, tt.want) })
		leaks(t)
	}
}

// watchLeaks returns a function that waits until no object of rdma-core is alive, and no more
// goroutines are than now.
func watchLeaks() func(testing.TB) {
	goroutines := runtime.NumGoroutine()
	return func(t testing.TB) {
		t.Helper()
		if !testkit.Settles(patience, func() bool { return standIn.live.Load() == 0 && runtime.NumGoroutine() <= goroutines }) {
			t.Fatalf("%d objects of rdma-core are left, and %d goroutines more", standIn.live.Load(), runtime.NumGoroutine()-goroutines)
		}
	}
}

// underFault dials and sends under a fault, and checks the error that ends it.
func underFault(t *testing.T, fault, value uint32, dialled bool, want string) {
	loop := fabrictest.NewLoop()
	defer loop.Stop()
	p, err := New(Options{DialTimeout: patience, AcceptTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	other := newRecorderOf(4)
	acceptedc := make(chan error, 1)
	l, err := p.Listen("127.0.0.1:0", fabric.ListenOptions{MaxConnections: -1, MaxStarting: -1, MaxStartingPerAddr: -1}, func(in fabric.Incoming) {
		_, err := in.Accept(context.Background(), loop, fabric.ConnOptions{Sends: 4, Receives: 4}, other)
		acceptedc <- err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	defer setFault(noFault, 0)
	if !dialled {
		setFault(fault, value)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	if fault == faultSilent || fault == faultBlock {
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
	}
	defer cancel()
	own := newRecorderOf(4)
	c, err := p.Dial(ctx, loop, l.Addr().String(), fabric.ConnOptions{Sends: 4, Receives: 4}, own)
	if err != nil {
		if fault == faultRegister || fault == faultPostRecv || fault == faultBatchReceive {
			err = <-acceptedc // this side fails first, and the other is rejected
		}
		mustSay(t, err, want)
		return
	}
	if dialled {
		setFault(fault, value)
	}
	loop.Do(func() { own.post(c, 4) })
	if want == "" {
		select {
		case got := <-other.gotc:
			if got != "hello" {
				t.Errorf("got %q", got)
			}
		case <-time.After(patience):
			t.Fatal("the message did not arrive")
		}
		loop.Do(func() { c.Close(nil) })
	}
	waitClosed(t, own, want)
	if err := <-acceptedc; err == nil {
		<-other.closedc
	}
	loop.Do(func() {
		if own.wrong != "" || other.wrong != "" {
			t.Error(own.wrong, other.wrong)
		}
	})
}

func waitClosed(t testing.TB, r *recorder, want string) {
	t.Helper()
	select {
	case err := <-r.closedc:
		mustSay(t, err, want)
	case <-time.After(patience):
		t.Fatal("the connection did not end")
	}
}

func mustSay(t testing.TB, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("the error is %v, want %q", err, want)
	}
}
