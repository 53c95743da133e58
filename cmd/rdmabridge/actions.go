package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/action"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// actionCodes is the end of the help of each action.
const actionCodes = `

Exit codes: 0 it is done; 1 it was refused; 2 no bridge was reached.`

// act asks the bridge for an action and prints what it did.
func act(cmd *cobra.Command, bridge *bridgeFlag, name string, q action.Request) error {
	return bridge.with(func(ctx context.Context, c *control.Client) error {
		return actOn(ctx, cmd, c, name, q)
	})
}

func actOn(ctx context.Context, cmd *cobra.Command, c *control.Client, name string, q action.Request) error {
	var a action.Answer
	if err := c.Post(ctx, action.Path+name, q, &a); err != nil {
		return asked(err)
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), a.Done)
	return cli.Failed(err)
}

func newDrainCommand() *cobra.Command {
	var bridge bridgeFlag
	var wait bool
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Let a running bridge answer its Calls, close its clients, and end",
		Long: `Drain does what SIGTERM does: the bridge stops listening, answers the Calls that it
has read, closes each client connection when it is idle, and ends, after
drain.timeout at the latest.

To drain one listener, remove it from the configuration: the bridge notices that, or
SIGHUP tells it.` + actionCodes,
		Args: cli.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bridge.with(func(ctx context.Context, c *control.Client) error {
				d, err := document(ctx, c, oneClient)
				if err != nil {
					return err
				}
				if err := actOn(ctx, cmd, c, "drain", action.Request{}); err != nil || !wait {
					return err
				}
				return awaitEnd(ctx, c, d.Process)
			})
		},
	}
	bridge.register(cmd)
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the process has ended")
	return cmd
}

// awaitEnd waits until the process at the socket of c has ended, or another one has taken its place.
func awaitEnd(ctx context.Context, c *control.Client, process int) error {
	for {
		d := new(status.Document)
		err := c.Get(ctx, target("/api/v1/status", oneClient), d)
		var gone *control.UnreachableError
		switch {
		case ctx.Err() != nil:
			return cli.Failed(errors.New("interrupted; the bridge goes on draining"))
		case errors.As(err, &gone) && !processExists(process), err == nil && d.Process != process:
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// processExists reports whether a process runs. It says no of processes in other PID name spaces.
func processExists(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return err == nil
}

func newEjectCommand() *cobra.Command {
	var bridge bridgeFlag
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "eject UPSTREAM ENDPOINT",
		Short: "Take an endpoint of an upstream out of use",
		Long: `Eject takes an endpoint out of use, as if it had failed: the bridge makes no
connection to it, and replaces those that it has after their last Call. The endpoint
is used again after --for, or when rdmabridge return says so.` + actionCodes,
		Args: cli.ExactArgs("UPSTREAM", "ENDPOINT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if wait < 0 || wait > action.MaxFor {
				return fmt.Errorf("--for %s is out of range; write a time up to %s", wait, action.MaxFor)
			}
			return act(cmd, &bridge, "eject", action.Request{Upstream: args[0], Endpoint: args[1], For: wait.Seconds()})
		},
	}
	bridge.register(cmd)
	cmd.Flags().DurationVar(&wait, "for", 0, "use it again after `TIME`; left out: when rdmabridge return says so")
	cmd.ValidArgsFunction = completeEndpoints(&bridge, func(*status.Endpoint) bool { return true })
	return cmd
}

func newReturnCommand() *cobra.Command {
	var bridge bridgeFlag
	cmd := &cobra.Command{
		Use:   "return UPSTREAM ENDPOINT",
		Short: "Use an endpoint again that was ejected",
		Long:  `Return ends the ejection of an endpoint, whether an operator or a failure began it.` + actionCodes,
		Args:  cli.ExactArgs("UPSTREAM", "ENDPOINT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(cmd, &bridge, "return", action.Request{Upstream: args[0], Endpoint: args[1]})
		},
	}
	bridge.register(cmd)
	cmd.ValidArgsFunction = completeEndpoints(&bridge, func(e *status.Endpoint) bool { return e.State == status.EndpointEjected })
	return cmd
}

func newDisconnectCommand() *cobra.Command {
	var bridge bridgeFlag
	cmd := &cobra.Command{
		Use:   "disconnect CLIENT|NETWORK",
		Short: "Close the connections of clients",
		Long: `Disconnect closes the connections of a client, which is an address with or without a
port, or of all clients in a network such as 192.0.2.0/24. Clients connect again and
send the Calls again that were not answered; to keep them out, use the setting allow.` + actionCodes,
		Args: cli.ExactArgs("CLIENT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(cmd, &bridge, "disconnect", action.Request{Client: args[0]})
		},
	}
	bridge.register(cmd)
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(&bridge, status.Query{Clients: 500}, clientWords)
	}
	return cmd
}

func newLogLevelCommand() *cobra.Command {
	var bridge bridgeFlag
	wait := 10 * time.Minute
	cmd := &cobra.Command{
		Use:   "log-level [LEVEL]",
		Short: "Change the level of a running bridge's log for a while, or say it",
		Long: `Log-level changes the level of the log to debug, info, warn or error. After --for the
level of the configuration applies again; the word configured ends the change at
once. Without LEVEL it says which level applies.` + actionCodes,
		Args: cli.AtMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var q action.Request
			if len(args) == 1 {
				q.Level = strings.ToLower(args[0])
			}
			if q.Level != "" && q.Level != action.LevelConfigured {
				q.For = wait.Seconds()
			}
			if wait <= 0 || wait > action.MaxFor {
				return fmt.Errorf("--for %s is out of range; write a time up to %s", wait, action.MaxFor)
			}
			return act(cmd, &bridge, "log-level", q)
		},
	}
	bridge.register(cmd)
	cmd.Flags().DurationVar(&wait, "for", wait, "how long the level applies")
	cmd.ValidArgsFunction = cobra.FixedCompletions(append([]string{action.LevelConfigured + "\tthe level of the configuration"}, action.Levels...), cobra.ShellCompDirectiveNoFileComp)
	return cmd
}
