package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/nfsmount"
)

// mountHelper is where mount(8) looks for the helper of the type rdmabridge.
const mountHelper = "/sbin/mount.rdmabridge"

// helperArgs returns the arguments of the command that this program is by its name: mount(8) calls it as
// mount.rdmabridge, and umount(8) as umount.rdmabridge. A helper that is a copy of rdmabridge, and not a link to it, also
// runs the bridge, by the command serve.
func helperArgs(all []string) []string {
	verb, ok := strings.CutSuffix(filepath.Base(all[0]), ".rdmabridge")
	if ok && !(len(all) > 1 && all[1] == "serve") {
		return append([]string{verb, "--helper"}, all[1:]...)
	}
	return all[1:]
}

// mountCodes ends the help of mount and umount.
const mountCodes = `

Exit codes are those of mount(8): 0 success; 1 a wrong command line, or the user is not root; 2 this host
lacks something; 32 it failed.`

// helperFlags adds the flags that mount(8) and umount(8) give a helper.
func helperFlags(cmd *cobra.Command, helper, verbose *bool) {
	f := cmd.Flags()
	f.BoolVar(helper, "helper", false, "print nothing but errors")
	_ = f.MarkHidden("helper") // fails only for unknown flags
	f.BoolVarP(verbose, "verbose", "v", false, "print the commands that are run, and the system calls as commands")
	f.BoolP("no-mtab", "n", false, "ignored")
	f.StringP("namespace", "N", "", "not supported: enter the namespace `NS` with nsenter")
	f.StringP("types", "t", "", "ignored: the `TYPE` is rdmabridge")
	_ = f.MarkHidden("types")
	name := cmd.Name()
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return mountError(name, usage(cmd, cmd.Parent().FlagErrorFunc()(cmd, err)))
	})
	run, args := cmd.RunE, cmd.Args
	cmd.Args = nil
	cmd.RunE = func(cmd *cobra.Command, all []string) error {
		if err := args(cmd, all); err != nil {
			return mountError(name, usage(cmd, err))
		}
		if f.Changed("namespace") {
			return mountError(name, &nfsmount.Error{Code: nfsmount.Usage, Text: "-N is not supported; use nsenter --mount"})
		}
		return mountError(name, run(cmd, all))
	}
	cmd.Args = cobra.ArbitraryArgs
}

// usage is an error of the command line.
func usage(cmd *cobra.Command, err error) error {
	return &nfsmount.Error{Code: nfsmount.Usage, Text: fmt.Sprintf("%v\nRun \"%s --help\" for usage.", err, cmd.CommandPath())}
}

// mountError names the program in an error, as helpers of mount(8) do, and chooses the exit code.
func mountError(verb string, err error) error {
	if err == nil {
		return nil
	}
	code := nfsmount.System
	if e := (*nfsmount.Error)(nil); errors.As(err, &e) {
		code = e.Code
	}
	return &cli.ExitError{Code: code, Err: fmt.Errorf("%s.rdmabridge: %w", verb, err)}
}

// hostOfRoot returns this host, whose mounts root alone may change. With verbose cmd prints what it does.
func hostOfRoot(cmd *cobra.Command, verbose bool) (*nfsmount.Host, error) {
	if os.Geteuid() != 0 {
		return nil, &nfsmount.Error{Code: nfsmount.Usage, Text: fmt.Sprintf("only root can do this: sudo rdmabridge %s ...", cmd.Name())}
	}
	h, err := nfsmount.ThisHost()
	if err == nil && verbose {
		h.Verbose = cmd.OutOrStdout()
	}
	return h, err
}

func newMountCommand() *cobra.Command {
	var options []string
	var helper, verbose, fake, sloppy, readOnly bool
	cmd := &cobra.Command{
		Use:   "mount STORAGE:/EXPORT DIRECTORY",
		Short: "Mount an export over RDMA on this host, with a bridge that is there as long as the mount",
		Long: `Mount mounts an export of a storage that serves NFS over RDMA, as

  rdmabridge mount 10.1.0.5:/export /mnt
  rdmabridge mount -o ro,vers=3 storage.example:/export /mnt

It starts a bridge for the storage, or finds the one of an earlier mount, waits until
the bridge is connected, and mounts through it. The bridge listens on 127.0.0.1 for
root of this host. It is a transient service of systemd, which starts it again if it
fails; without systemd it is a process of its own. It ends some seconds after the last
umount, by whatever command.

As mount.rdmabridge, which the packages install, this command makes lines of the type
rdmabridge work in /etc/fstab; it prints the line for the same mount. docs/mount.md.

Options (-o) are those of nfs(5) and mount(8). port is the storage's port of RDMA
(20049), provider that of the bridge (iwarp or ibverbs), mountport the storage's port
of MOUNT for NFSv3, which its rpcbind says otherwise, and retry for how many minutes to
try (2). Without vers it tries NFS 4.2, 4.1, 4.0 and 3. NFSv3 has no locks (nolock).` + mountCodes,
		Args: cli.ExactArgs("STORAGE:/EXPORT", "DIRECTORY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if readOnly {
				options = append(options, "ro")
			}
			r, err := nfsmount.Parse(args[0], args[1], strings.Join(options, ","), uint16(configs.UsualPort(configs.TransportRDMA)), known.Providers)
			if err != nil {
				return err
			}
			if fake {
				if verbose && !helper {
					fmt.Fprintln(cmd.OutOrStdout(), r.Fstab())
				}
				return nil
			}
			h, err := hostOfRoot(cmd, verbose)
			if err != nil {
				return err
			}
			ctx, stop := cli.Interruptible()
			defer stop()
			version, err := r.Mount(ctx, h)
			if err != nil || helper || version == "" {
				return err
			}
			sayMounted(cmd.OutOrStdout(), r, h, version)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&options, "options", "o", nil, "mount with these `OPTIONS`, such as ro,vers=3; several -o add up")
	f.BoolVarP(&fake, "fake", "f", false, "check the command line, and mount nothing; with -v print the line for /etc/fstab")
	f.BoolVarP(&sloppy, "sloppy", "s", false, "ignored")
	f.BoolVarP(&readOnly, "read-only", "r", false, "the same as -o ro")
	helperFlags(cmd, &helper, &verbose)
	return cmd
}

// sayMounted says what there is after a mount by hand, and how to have it for ever.
func sayMounted(out io.Writer, r *nfsmount.Request, h *nfsmount.Host, version string) {
	fmt.Fprintf(out, "%s is mounted at %s with NFS %s through %s, which ends after the last umount.\n", r.Source, r.Dir, version, r.Bridge.Who(h))
	fmt.Fprintf(out, "To have it at each boot, write this line to /etc/fstab:\n%s\n", r.Fstab())
	if _, err := os.Stat(mountHelper); err != nil {
		fmt.Fprintf(out, "Such lines need a link: ln -s %s %s\n", h.Program, mountHelper)
	}
}

func newUmountCommand() *cobra.Command {
	var helper, verbose, force, lazy bool
	cmd := &cobra.Command{
		Use:   "umount DIRECTORY",
		Short: "End a mount that rdmabridge mount has made",
		Long: `Umount ends a mount that rdmabridge mount has made, as umount(8) does. The bridge of
the storage ends some seconds after its last mount.` + mountCodes,
		Args: cli.ExactArgs("DIRECTORY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := hostOfRoot(cmd, verbose)
			if err != nil {
				return err
			}
			flags := 0
			if force {
				flags |= unix.MNT_FORCE
			}
			if lazy {
				flags |= unix.MNT_DETACH
			}
			return nfsmount.Unmount(h, args[0], flags)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&force, "force", "f", false, "fail the Calls that are under way, when the storage does not answer")
	f.BoolVarP(&lazy, "lazy", "l", false, "detach the mount now, and end it when nothing uses it any more")
	f.BoolP("read-only", "r", false, "ignored")
	helperFlags(cmd, &helper, &verbose)
	return cmd
}
