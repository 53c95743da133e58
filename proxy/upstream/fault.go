package upstream

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

var (
	// errUnanswered ends a connection that the server has ended in place of the first answer.
	errUnanswered = errors.New("the server accepts connections and ends them without an answer; it may speak another protocol at this port")
	// errUnwelcome ends a connection with TLS that the server has ended in place of the first answer: it has seen the
	// certificate when the handshake was over for this side, and the alert that says why may be lost.
	errUnwelcome = errors.New("the server ends connections with TLS without an answer; it may refuse the certificate of this side")
	// errMute is the error of a connection that is there, and on which the server has not answered yet.
	errMute = errors.New("the server accepts connections and has answered nothing yet; it hangs, or speaks another protocol at this port")
)

// Unanswered returns the error of a TCP connection that has ended with err before the server has answered anything, with
// or without TLS.
func Unanswered(err error, secured bool) error {
	ended := errUnanswered
	if secured {
		ended = errUnwelcome
	}
	switch {
	case reach.IsTLS(err):
	case errors.Is(err, ErrDeadline):
		return fmt.Errorf("%w: %w", errMute, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%w: %w", ended, err)
	}
	return err
}

// fault returns the code of the problem that names err, with which a connection has ended or could not be made. It
// returns "" if there is none of its own: the server is down.
func fault(err error) string {
	for _, is := range []error{errUnanswered, tcpframe.ErrProtocol, fabric.ErrNoRDMA} {
		if errors.Is(err, is) {
			return status.CodeProtocol
		}
	}
	if errors.Is(err, errUnwelcome) || reach.IsTLS(err) {
		return status.CodeTLS
	}
	return ""
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
