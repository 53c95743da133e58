//go:build ibverbs

package ibverbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

var (
	// errGone ends a connection whose Work Requests were flushed without another event: its
	// port went down, or the peer is gone.
	errGone = errors.New("ibverbs: the device flushed the connection's work: port down, or peer gone")
	// errRemoved ends the connections of a device that is removed.
	errRemoved = errors.New("ibverbs: device removed")
	// errFatal ends the connections of a device that had a fatal error.
	errFatal = errors.New("the device had a fatal error")
	// errPortDown is the error of a Dial on a port that is not active.
	errPortDown = errors.New("the port is down")
	// errCloseTimeout ends an orderly close that took longer than Options.CloseTimeout.
	errCloseTimeout = errors.New("ibverbs: orderly close timed out")
	// errStart ends an accepted connection whose peer does not finish the start-up.
	errStart = errors.New("ibverbs: peer did not complete connection set-up")
	// errNoReads is returned by PostRead when no outbound Reads were agreed on.
	errNoReads = errors.New("ibverbs: no outbound Reads: ORD is 0")
)

// A cmError is the failure of a step of connection set-up.
type cmError struct {
	step   string // what was done: "resolve address", "resolve route", "connect"
	event  int
	status int // a negative errno, or a reason of InfiniBand's CM
}

func (e *cmError) Error() string {
	s := fmt.Sprintf("ibverbs: %s: %s", e.step, eventText(e.event))
	switch {
	case e.status < 0:
		return fmt.Sprintf("%s: %v", s, syscall.Errno(-e.status))
	case e.event == rejected && e.status == cmInvalidService:
		return s + ": nothing listens at that port"
	case e.event == rejected && e.status == cmConsumer:
		return s + ": by the peer's program"
	case e.status > 0:
		return fmt.Sprintf("%s: reason %d", s, e.status)
	}
	return s
}

func (e *cmError) Unwrap() error {
	if e.event == rejected && e.status != cmInvalidService {
		return fabric.ErrRejected
	}
	return nil
}

// Reasons for which InfiniBand's CM rejects: enum ib_cm_rej_reason.
const (
	cmInvalidService = 8
	cmConsumer       = 28
)

// A workError is the failure of a Work Request.
type workError struct {
	status int
	vendor uint32
}

func (e *workError) Error() string {
	return fmt.Sprintf("ibverbs: %s (status %d, vendor %#x)", statusText(e.status), e.status, e.vendor)
}
