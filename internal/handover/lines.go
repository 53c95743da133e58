// Package handover passes the listening sockets of one process to the next.
//
// A process started with --takeover asks the process that listens at handover.path for
// its listening sockets. For a moment both processes accept connections on these
// sockets. No client is refused, because the sockets are never closed. When the new
// process can serve, it says so, and the old process stops accepting and drains. If the
// new process exits before that, the old process continues unchanged. What the old one has learned of names comes through a
// pipe, which is handed over as a socket is.
//
//	new: {"version":1,"pid":P}
//	old: {"version":1,"pid":P,"ready":true,"sockets":[...],"identity":"..."}, with a descriptor for each
//	     socket in the same message
//	new: "ready"
//	old: "going"
//
// Each message is one line. Each side deals only with processes of its own user and of
// root.
package handover

import (
	"bufio"
	"encoding/json"
	"fmt"
	"time"
)

// protocolVersion is the version of this protocol.
const protocolVersion = 1

const (
	// maxHanded is how many descriptors fit one message: SCM_MAX_FD of Linux.
	maxHanded = 253
	// maxLine bounds the length of a line.
	maxLine = 64 << 10
	// stepTimeout bounds the wait for an answer that the peer can give at once.
	stepTimeout = 5 * time.Second
	// startTimeout bounds how long the new process may take until it can serve.
	startTimeout = 2 * time.Minute
	// readyTimeout bounds how long the new process waits for its upstreams if the old
	// process is ready. If the old one is not, stepTimeout does.
	readyTimeout = 30 * time.Second
)

// The kinds of sockets, and of a pipe.
const (
	KindListener   = "listener"
	KindAdmin      = "admin"
	KindRPCBind    = "rpcbind"
	KindRPCBindUDP = "rpcbind-udp"
	KindNLM        = "nlm"
	KindNLMUDP     = "nlm-udp"
	KindNames      = "names" // a pipe, of names.Watch.Tell
)

// A handedSocket names one socket of a hand-over.
type handedSocket struct {
	Kind    string `json:"kind"`
	Address string `json:"address"` // from the configuration, not resolved
}

// A Greeting is the first line of each side.
type Greeting struct {
	Version int            `json:"version"`
	PID     int            `json:"pid"`
	Ready   bool           `json:"ready,omitempty"`   // whether /readyz of the old process says ok
	Sockets []handedSocket `json:"sockets,omitempty"` // in the order of the descriptors

	// Identity is the old process's, which the new one keeps unless its file has another. Older
	// processes do not send it.
	Identity string `json:"identity,omitempty"`
}

// readLine reads a line of JSON into v.
func readLine(r *bufio.Reader, v any) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}

// expectLine reads a line and returns an error unless it is want.
func expectLine(r *bufio.Reader, want string) error {
	line, err := r.ReadSlice('\n')
	if err == nil && string(line) != want+"\n" {
		err = fmt.Errorf("received %.20q, want %q", line, want)
	}
	return err
}
