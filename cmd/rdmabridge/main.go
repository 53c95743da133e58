// Command rdmabridge carries ONC RPC, NFS above all, between TCP and RDMA.
//
// Each verb has a file with its flags, such as serve.go, check.go, top.go and capture.go; those that act
// on a running bridge are in actions.go. The verbs share what lies below: service.go runs a bridge until
// a signal stops it, bridge.go puts the parts of a bridge together from what package translate makes of
// the configuration, reload.go applies a changed one, and service.go takes over from another
// process. ask.go asks a running bridge, and bridge_control.go and config_print.go answer.
//
// # Exit codes
//
//	0  success: the bridge drained after a signal, or the file is valid
//	1  failure: the file has problems, the bridge could not start, or it stopped
//	   before every Call was answered
//	2  nothing was attempted: the command line is wrong, the file cannot be read, or no
//	   bridge was reached
//
// Explain exits with 1 when it cannot read its input. Doctor exits with 1 when it has found an error,
// and with 3 when it has found nothing worse than a warning. Mount and umount have the codes of mount(8).
package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/cli"
)

func main() {
	ownsProcess = true
	os.Exit(execute(helperArgs(os.Args), os.Stdout, os.Stderr))
}

// execute runs one command line and returns its exit code.
func execute(args []string, stdout, stderr io.Writer) int {
	return cli.Run(newCommand(), args, stdout, stderr)
}

func newCommand() *cobra.Command {
	cmd := cli.NewRoot(buildInfo(), "Carry NFS and other ONC RPC between TCP and RDMA",
		`Rdmabridge is a proxy that carries ONC RPC, NFS above all, between TCP and RDMA.
It listens for clients on either transport and forwards their Calls to servers on
either transport.

To try it, run "rdmabridge demo": it needs no configuration. To use it, describe
listeners and upstreams in a YAML file, which "rdmabridge init" can begin for you, run
"rdmabridge check -c FILE" to validate the file, and run "rdmabridge serve -c FILE".

To measure bridges and servers, there is rdmabridge-bench.`)
	group := func(id, title string, commands ...*cobra.Command) {
		cmd.AddGroup(&cobra.Group{ID: id, Title: title})
		for _, c := range commands {
			c.GroupID = id
		}
		cmd.AddCommand(commands...)
	}
	group("run", "Run a bridge:", newServeCommand(), newMountCommand(), newUmountCommand(), newDemoCommand(), newInitCommand(), newCheckCommand(), newSizeCommand(), newConfigCommand())
	group("look", "Look at a running bridge:", newTopCommand(), newStatsCommand(), newClientsCommand(), newUpstreamsCommand(), newCaptureCommand())
	group("act", "Act on a running bridge:", newDrainCommand(), newEjectCommand(), newReturnCommand(), newDisconnectCommand(), newLogLevelCommand())
	group("find", "Find out what is wrong:", newDoctorCommand(), newExplainCommand())
	cmd.AddCommand(newBenchCommand())
	return cmd
}
