package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/cli"
)

func newInitCommand() *cobra.Command {
	var p initPlan
	var file string
	var noDoctor, all bool
	cmd := &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write a configuration from three questions, try it, and print how to mount",
		Long: `Init writes a commented configuration to FILE, or to rdmabridge.yaml. It asks what storage
there is, which clients may connect, and whether the bridge is a sidecar beside one
application, a gateway for many clients, or reverse: for clients that mount over RDMA
and storage that serves TCP. Flags answer these questions without asking.
Then it prints a mount command, a line for /etc/fstab and a unit of systemd for NFS 4.2,
or with --all for each version of NFS, and runs doctor with the file, whose findings come last.

It replaces no file: one that is there must be what these answers give. With FILE - it prints the configuration alone.

Exit codes: 0 the file is written, and doctor found nothing worse than a note; 1 the file
cannot be written, or doctor found an error; 2 the command line is wrong; 3 doctor found
a warning and no error. The file is written whatever doctor finds.`,
		Args: cli.AtMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if file = "rdmabridge.yaml"; len(args) > 0 {
				file = args[0]
			}
			if err := p.ask(cmd.InOrStdin(), cmd.ErrOrStderr()); err != nil {
				return err
			}
			text, err := p.config()
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if file == standardInput {
				_, err := out.Write(text)
				return cli.Failed(err)
			}
			if err := writeNew(file, text); err != nil {
				return cli.Failed(err)
			}
			start, unit := startOf(file)
			fmt.Fprintf(out, "%s is written. Start the bridge: %s\n\n", file, start)
			if err := p.mounts(out, unit, all); err != nil {
				return cli.Failed(err)
			}
			if noDoctor {
				return nil
			}
			ctx, stop := cli.Interruptible()
			defer stop()
			fmt.Fprintf(out, "\nrdmabridge doctor -c %s says:\n\n", file)
			d := doctorFlags{config: []string{file}}
			return d.run(ctx, out)
		},
		ValidArgsFunction: completeConfig,
	}
	cmd.Flags().StringVar(&p.storage, "storage", "", "the storage: `HOST`, or HOST:PORT")
	cmd.Flags().StringVar(&p.transport, "transport", "", "what the storage serves: `rdma` or tcp (default tcp with --as reverse, otherwise rdma)")
	cmd.Flags().StringVar(&p.clients, "clients", "", "`NETWORKS` that may connect to a gateway or, over RDMA, to reverse, such as 10.0.0.0/8,192.0.2.7")
	cmd.Flags().StringVar(&p.use, "as", "", "`sidecar`, gateway or reverse")
	cmd.Flags().StringVar(&p.export, "export", "/export", "the `PATH` that clients mount, for the lines that init prints")
	cmd.Flags().BoolVar(&all, "all", false, "print how to mount with each version of NFS, not with 4.2 alone")
	cmd.Flags().BoolVar(&noDoctor, "no-doctor", false, "do not run doctor with the file")
	return cmd
}

// startOf returns the command that starts a bridge with file, and the unit of systemd that does it, or would if file
// were where units look.
func startOf(file string) (command, unit string) {
	path, err := filepath.Abs(file)
	if name, ok := strings.CutSuffix(filepath.Base(path), ".yaml"); ok && err == nil && filepath.Dir(path) == "/etc/rdmabridge" {
		if unit = "rdmabridge"; name != unit {
			unit += "@" + name
		}
		return "systemctl enable --now " + unit, unit + ".service"
	}
	return "rdmabridge serve -c " + file, "rdmabridge.service"
}

// ask asks for what no flag has said, if somebody is there to answer. It asks again after an answer that is not possible.
func (p *initPlan) ask(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	person := true
	if f, ok := in.(*os.File); ok {
		person = isatty.IsTerminal(f.Fd())
	}
	question := func(value *string, flag, text, def string, check func() error) error {
		if *value != "" {
			return nil
		}
		if !person {
			if def == "" {
				return fmt.Errorf("--%s is missing: %s", flag, text)
			}
			*value = def
			return nil
		}
		if def != "" {
			text += " [" + def + "]"
		}
		for {
			fmt.Fprintf(out, "%s: ", text)
			if !lines.Scan() {
				return errors.Join(fmt.Errorf("--%s has no answer", flag), lines.Err())
			}
			if *value = strings.TrimSpace(lines.Text()); *value == "" {
				*value = def
			}
			if *value == "" {
				continue
			}
			err := check()
			if err == nil {
				return nil
			}
			fmt.Fprintln(out, strings.TrimPrefix(err.Error(), "--"+flag+": "))
		}
	}
	if p.use != "" {
		if err := p.checkUse(); err != nil {
			return err // before it asks what no use needs
		}
	}
	err := question(&p.storage, "storage", "What is the name or the address of the storage?", "", func() error {
		_, err := p.endpoint()
		return err
	})
	if err != nil {
		return err
	}
	err = question(&p.use, "as", "Is the bridge a sidecar beside one application, a gateway for many clients, or reverse, for clients with RDMA and storage without?", "gateway", p.checkUse)
	if err != nil {
		return err
	}
	if p.transport == "" {
		if p.transport = "rdma"; p.use == initReverse {
			p.transport = "tcp"
		}
	}
	if p.use == initSidecar {
		return nil
	}
	return question(&p.clients, "clients", "Which networks may connect, such as 10.0.0.0/8?", "", func() error {
		_, err := quoteNetworks(p.clients)
		return err
	})
}

// writeNew writes a file that is not there yet, or that has this text already.
func writeNew(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, os.ErrExist) {
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
			return nil
		}
		return fmt.Errorf("init: %s is there already; name another file, or remove it", path)
	}
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("init: there is no directory %s; make it, or name another file", filepath.Dir(path))
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}
