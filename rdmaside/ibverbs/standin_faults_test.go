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
)

// setFault makes the stand-in fail from now on. value is an errno, a status or an event.
func setFault(fault, value uint32) {
	standIn.value.Store(value)
	standIn.fault.Store(fault)
}

// patience bounds each wait of these tests.
const patience = 20 * time.Second

// A recorder is a Handler that posts one Receive and keeps what it is told.
type recorder struct {
	closedc chan error
	gotc    chan string
	buf     []byte
}

func newRecorder() *recorder {
	return &recorder{make(chan error, 1), make(chan string, 8), make([]byte, 64)}
}

func (r *recorder) Setup(c fabric.Conn) error { return c.PostReceive(1, r.buf) }
func (r *recorder) Closed(err error)          { r.closedc <- err }
func (r *recorder) Completed(cs []fabric.Completion) {
	for _, c := range cs {
		if c.Op == fabric.OpReceive && c.Err == nil {
			r.gotc <- string(r.buf[:c.Bytes])
		}
	}
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
		{"an event that no step expects", faultUnknown, 1, false, ""},
		{"completion queue", faultCQ, uint32(syscall.ENOMEM), false, "completion queue"},
		{"queue pair", faultQP, uint32(syscall.ENOMEM), false, "queue pair"},
		{"protection domain", faultPD, uint32(syscall.ENOMEM), false, "protection domain"},
		{"arm before set-up", faultArm, uint32(syscall.EIO), false, no(syscall.EIO)},
		{"locked memory", faultRegister, uint32(syscall.ENOMEM), false, "LimitMEMLOCK"},
		{"post a Receive", faultPostRecv, uint32(syscall.ENOMEM), false, "post a Receive"},
		{"partial polls", faultOne, 1, true, ""},
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
		goroutines := runtime.NumGoroutine()
		t.Run(tt.name, func(t *testing.T) { underFault(t, tt.fault, tt.value, tt.dialled, tt.want) })
		for end := time.Now().Add(patience); standIn.live.Load() != 0 || runtime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %d objects of rdma-core are left, and %d goroutines more", tt.name, standIn.live.Load(), runtime.NumGoroutine()-goroutines)
			}
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
	other := newRecorder()
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
	if fault == faultSilent {
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
	}
	defer cancel()
	own := newRecorder()
	c, err := p.Dial(ctx, loop, l.Addr().String(), fabric.ConnOptions{Sends: 4, Receives: 4}, own)
	if err != nil {
		if fault == faultRegister || fault == faultPostRecv {
			err = <-acceptedc // this side fails first, and the other is rejected
		}
		mustSay(t, err, want)
		return
	}
	if dialled {
		setFault(fault, value)
	}
	postc := make(chan struct{})
	loop.Post(taskFunc(func() {
		defer close(postc)
		_ = c.PostSend(2, fabric.Send{Parts: [][]byte{[]byte("hello")}})
		c.Flush()
	}))
	<-postc
	if want == "" {
		select {
		case got := <-other.gotc:
			if got != "hello" {
				t.Errorf("got %q", got)
			}
		case <-time.After(patience):
			t.Fatal("the message did not arrive")
		}
		loop.Post(taskFunc(func() { c.Close(nil) }))
	}
	waitClosed(t, own, want)
	if err := <-acceptedc; err == nil {
		<-other.closedc
	}
}

type taskFunc func()

func (f taskFunc) Run() { f() }

func waitClosed(t *testing.T, r *recorder, want string) {
	t.Helper()
	select {
	case err := <-r.closedc:
		mustSay(t, err, want)
	case <-time.After(patience):
		t.Fatal("the connection did not end")
	}
}

func mustSay(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("the error is %v, want %q", err, want)
	}
}
