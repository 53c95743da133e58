package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// advised makes the process exit with cli.ExitFailed because of err, without the names of packages, and with what to do about it
// where that is known. transport is that of a load or a server, and listen the address of a server.
func advised(err error, transport, listen string) error {
	if err == nil {
		return nil
	}
	text := status.Plain(err.Error())
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		text += "; end the process that listens there, or write another port than --listen " + listen
	case errors.Is(err, syscall.ECONNREFUSED):
		text += "; start a server there, such as rdmabridge-bench server, or name another address"
	case errors.Is(err, syscall.ECONNRESET) && transport == "tcp":
		text += "; write --transport rdma if the port is for RDMA"
	case errors.Is(err, fabric.ErrNoRDMA):
		text += "; write --transport tcp, or the port for RDMA"
	}
	return cli.Failed(errors.New(text))
}

// checkTarget returns an error unless address, the value of a flag, is that of a server. It may have one of the schemes of
// TLS before it.
func checkTarget(flag, address string) error {
	for _, scheme := range []string{"tls://", "rpctls://"} {
		address = strings.TrimPrefix(address, scheme)
	}
	if err := configs.CheckServer(address, serverPort); err != nil {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	return nil
}

// checkListen returns an error unless address, the value of a flag, is one to listen at.
func checkListen(flag, address string) error {
	if err := configs.CheckAddress(address, serverPort); err != nil {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	return nil
}

// serverPort is where the server listens unless --listen says otherwise.
const serverPort = 20050

const (
	mostLoops   = 1024
	leastBudget = 256 << 10 // octets, below which there is no memory for messages
)

// checkLoops validates --loops and --budget.
func checkLoops(loops int, budget cli.SizeFlag) error {
	switch {
	case loops < 0 || loops > mostLoops:
		return cli.NotWithin("loops", loops, 0, mostLoops)
	case budget < leastBudget:
		return cli.NotWithin("budget", budget.String(), configs.Size(leastBudget), "1TiB")
	}
	return nil
}
