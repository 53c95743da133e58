package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
)

// A SizeFlag is a number of octets on the command line: 100, 64KiB, 1MiB.
type SizeFlag int

func (s *SizeFlag) Type() string { return "SIZE" }

// String formats s as Set parses it.
func (s *SizeFlag) String() string {
	v := configs.Size(*s).String()
	if octets := strings.TrimSuffix(v, "B"); !strings.HasSuffix(octets, "i") {
		return octets
	}
	return v
}

func (s *SizeFlag) Set(v string) error {
	n, err := configs.ParseSize(v)
	if err != nil {
		return err
	}
	if n > 1<<40 {
		return fmt.Errorf("%q is too large; write 1TiB at most", v)
	}
	*s = SizeFlag(n)
	return nil
}

// Required makes cobra report an error when one of the named flags is missing.
func Required(cmd *cobra.Command, names ...string) {
	for _, n := range names {
		if err := cmd.MarkFlagRequired(n); err != nil {
			panic("BUG: " + err.Error())
		}
	}
}

// ExactArgs makes cobra report the arguments of a verb that are missing or too many, by their names.
func ExactArgs(all ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(all) {
			return missing(cmd, all[len(args):])
		}
		return AtMost(len(all))(cmd, args)
	}
}

// AtLeastOne makes cobra report that no argument is there. name is what the arguments are.
func AtLeastOne(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return missing(cmd, []string{name})
		}
		return nil
	}
}

func missing(cmd *cobra.Command, names []string) error {
	verb := "is"
	if len(names) > 1 {
		verb = "are"
	}
	return fmt.Errorf("%s %s missing: %s", strings.Join(names, " and "), verb, usageOf(cmd))
}

// AtMost makes cobra report the first argument beyond n. A verb that has its file behind a flag says so.
func AtMost(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) <= n {
			return nil
		}
		return tooMuch(cmd, args[n])
	}
}

func tooMuch(cmd *cobra.Command, arg string) error {
	hint := ""
	if cmd.Flags().Lookup("config") != nil {
		hint = "; the configuration file stands behind -c"
	}
	return fmt.Errorf("%q is too much: %s%s", arg, usageOf(cmd), hint)
}

// NotWithin returns what is wrong with the value of the flag --name, which is to be from least to most.
func NotWithin(name string, value, least, most any) error {
	return fmt.Errorf("--%s %v is out of range; write %v to %v", name, value, least, most)
}

// usageOf returns how cmd is called.
func usageOf(cmd *cobra.Command) string {
	_, args, _ := strings.Cut(cmd.Use, " ")
	return strings.TrimSpace(cmd.CommandPath() + " " + args)
}
