package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"time"
)

// Hand-over
//
// A process that is started with --takeover asks the one that answers at
// handover.path for its listening sockets. Both listen on them for a moment; clients
// that connect come to the one or to the other, and none is refused, because the
// sockets themselves are never closed. When the new one can serve it says so, and the
// old one stops accepting and drains. If the new one ends before that, nothing has
// happened to the old one.
//
//	new: {"version":1,"pid":P}
//	old: {"version":1,"pid":P,"ready":true,"sockets":[...]}, with a descriptor for each
//	     in the same message
//	new: "ready"
//	old: "going"
//
// Each is a line. The socket is for processes of the same user, and of root.

// handoverVersion is that of the lines above.
const handoverVersion = 1

const (
	// maxHanded is how many descriptors one message carries: SCM_MAX_FD of Linux.
	maxHanded = 253
	// maxLine bounds a line.
	maxLine = 64 << 10
	// handoverStep is how long an answer may take that needs no start.
	handoverStep = 5 * time.Second
	// handoverStart is how long the new process may take until it can serve.
	handoverStart = 2 * time.Minute
	// takeoverReady is how long the new process waits for its upstreams, if the old
	// one has its own; otherwise it waits handoverStep.
	takeoverReady = 30 * time.Second
	// handoverSettle is how long connections that the old process has accepted may
	// take to come up before it drains.
	handoverSettle = 100 * time.Millisecond
)

// Kinds of sockets.
const (
	socketListener   = "listener"
	socketAdmin      = "admin"
	socketRPCBind    = "rpcbind"
	socketRPCBindUDP = "rpcbind-udp"
)

// A handed is one socket of a hand-over.
type handed struct {
	Kind    string `json:"kind"`
	Address string `json:"address"` // as the configuration had it
}

type greeting struct {
	Version int      `json:"version"`
	PID     int      `json:"pid"`
	Ready   bool     `json:"ready,omitempty"`
	Sockets []handed `json:"sockets,omitempty"`
}

func readLine(r *bufio.Reader, v any) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}

func expectLine(r *bufio.Reader, want string) error {
	line, err := r.ReadSlice('\n')
	if err == nil && string(line) != want+"\n" {
		err = fmt.Errorf("%.20q instead of %q", line, want)
	}
	return err
}
