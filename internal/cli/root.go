package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// pages says where what messages name can be read.
const pages = `Pages such as docs/README.md are in /usr/share/doc/rdmabridge, if a package has put them there, and
at https://github.com/rdmabridge/rdmabridge.`

// NewRoot returns the root command of the program b, which has the verbs man and version.
func NewRoot(b Build, short, long string) *cobra.Command {
	cmd := &cobra.Command{
		Use: b.Name, Short: short, Long: long + "\n\n" + pages,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       b.String(),
	}
	cmd.SetFlagErrorFunc(explainFlag)
	cmd.SetHelpCommand(newHelpCommand())
	cmd.SetVersionTemplate("{{.Version}}\n") // as the verb version prints it
	cmd.AddCommand(newManCommand(b), newVersionCommand(b))
	return cmd
}

// Group makes cmd print its help, if none of the commands below it is named.
func Group(cmd *cobra.Command) {
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// newHelpCommand is cobra's verb help, for which a command that does not exist is an error.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about any command",
		Long:  "Help describes a command and its flags, as --help behind the command does.",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begins string) (words []string, _ cobra.ShellCompDirective) {
			if of, rest, err := cmd.Root().Find(args); err == nil && len(rest) == 0 {
				for _, name := range commandsOf(of) {
					if strings.HasPrefix(name, begins) {
						words = append(words, name)
					}
				}
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			if err != nil {
				of, rest = cmd.Root(), args
			}
			if len(rest) > 0 {
				return Usage(errors.New(withHelp(of, unknownCommand(of, rest[0]))))
			}
			of.InitDefaultHelpFlag()
			of.InitDefaultVersionFlag()
			return of.Help()
		},
	}
}

// commandsOf returns the names of the commands below cmd.
func commandsOf(cmd *cobra.Command) (names []string) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// unknownCommand says which command was perhaps meant instead of name, which is not below cmd, or which there are.
func unknownCommand(cmd *cobra.Command, name string) error {
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		return fmt.Errorf("unknown command %q for %q\n\nDid you mean this?\n\t%s", name, cmd.CommandPath(), strings.Join(near, "\n\t"))
	}
	if all := commandsOf(cmd); len(all) > 0 {
		return fmt.Errorf("unknown command %q for %q, which has %s", name, cmd.CommandPath(), strings.Join(all, ", "))
	}
	return fmt.Errorf("unknown command %q for %q, which has no commands; leave it out", name, cmd.CommandPath())
}

// explainFlag adds to an error about a flag what was perhaps meant, and what the flag is.
func explainFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var bare *pflag.ValueRequiredError
	var value *pflag.InvalidValueError
	var nameless *pflag.InvalidSyntaxError
	switch {
	case errors.As(err, &nameless):
		return dashes(nameless.GetSpecifiedFlag())
	case errors.As(err, &unknown):
		letters := unknown.GetSpecifiedShortnames()
		if strings.HasPrefix(letters, "=") {
			return dashes("-" + letters)
		}
		return unknownFlag(cmd, unknown.GetSpecifiedName(), letters != "")
	case errors.As(err, &bare):
		word, usage := pflag.UnquoteUsage(bare.GetFlag())
		return fmt.Errorf("--%[1]s needs a value; write --%[1]s %[2]s: %[3]s", bare.GetFlag().Name, word, usage)
	case errors.As(err, &value):
		if want, ok := strings.CutPrefix(value.Unwrap().Error(), "must be "); ok { // pflag's
			return fmt.Errorf("--%s: %q is not possible here; write %s", value.GetFlag().Name, value.GetValue(), want)
		}
		return fmt.Errorf("--%s: %w", value.GetFlag().Name, value.Unwrap())
	}
	return err
}

// dashes says what to write instead of arg, which begins with dashes that no name follows, or with three of them.
func dashes(arg string) error {
	name := strings.TrimLeft(arg, "-")
	switch {
	case name == "":
		return fmt.Errorf("%s: the name of the flag is missing; write it behind two dashes", arg)
	case name[0] == '=':
		return fmt.Errorf("%s: the name of the flag is missing; write it before the =", arg)
	}
	return fmt.Errorf("%s: names of flags stand behind two dashes; write --%s", arg, name)
}

// unknownFlag says which flag was perhaps meant instead of one that cmd does not have, or which commands have it.
func unknownFlag(cmd *cobra.Command, name string, letter bool) error {
	dashed, find := "--"+name, (*pflag.FlagSet).Lookup
	if letter {
		dashed, find = "-"+name, (*pflag.FlagSet).ShorthandLookup
	}
	var near cobra.Command // its commands have the names of the flags, because cobra compares those
	near.SuggestionsMinimumDistance = 2
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		near.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	if names := near.SuggestionsFor(name); !letter && len(names) > 0 {
		return fmt.Errorf("unknown flag: %s\n\nDid you mean this?\n\t--%s", dashed, strings.Join(names, "\n\t--"))
	}
	var have []string
	EveryCommand(cmd.Root(), func(c *cobra.Command) {
		if f := find(c.Flags(), name); f != nil && !f.Hidden {
			_, path, _ := strings.Cut(c.CommandPath(), " ")
			have = append(have, path)
		}
	})
	if len(have) > 0 {
		return fmt.Errorf("unknown flag: %s is not for %s, but for %s", dashed, cmd.CommandPath(), strings.Join(have, ", "))
	}
	return fmt.Errorf("unknown flag: %s", dashed)
}

// groups are the beginnings of cobra's errors about a group of flags, and what is said of the flags.
var groups = []struct{ begins, between, says string }{
	{"at least one of the flags in the group [", " or ", " is missing"},
	{"if any flags in the group [", " and ", " exclude each other; write one of them"},
}

// oneDash returns an error if an argument is the name of a flag of cmd behind one dash. To pflag that is letters: -config is
// the letter c with the value onfig.
func oneDash(cmd *cobra.Command, args []string) error {
	for _, arg := range args {
		name, dash := strings.CutPrefix(arg, "-")
		name, _, _ = strings.Cut(name, "=")
		switch {
		case arg == "--":
			return nil
		case dash && len(name) > 1 && cmd.Flags().Lookup(name) != nil:
			return fmt.Errorf("%s: names of flags stand behind two dashes; write -%[1]s", arg)
		}
	}
	return nil
}

// withHelp returns what err says, and how to get help about cmd.
func withHelp(cmd *cobra.Command, err error) string {
	return fmt.Sprintf("%s\nRun \"%s --help\" for usage.", plain(cmd, err), cmd.CommandPath())
}

// plain returns what err says. Errors of cobra about commands that do not exist, and about flags that are missing, or exclude
// each other, get what to write.
func plain(cmd *cobra.Command, err error) string {
	text, name := err.Error(), ""
	if _, err := fmt.Sscanf(text, "unknown command %q", &name); err == nil {
		if cmd.HasSubCommands() {
			return unknownCommand(cmd, name).Error()
		}
		if strings.HasSuffix(text, strconv.Quote(cmd.CommandPath())) { // it is cobra's
			return tooMuch(cmd, name).Error()
		}
	}
	if rest, ok := strings.CutPrefix(text, "required flag(s) "); ok {
		var missing []string
		for _, name := range strings.Split(strings.TrimSuffix(rest, " not set"), ", ") {
			if f := cmd.Flags().Lookup(strings.Trim(name, `"`)); f != nil {
				word, usage := pflag.UnquoteUsage(f)
				missing = append(missing, fmt.Sprintf("--%s %s is missing: %s", f.Name, word, usage))
			}
		}
		return strings.Join(missing, "\n")
	}
	for _, g := range groups {
		if rest, ok := strings.CutPrefix(text, g.begins); ok {
			names, _, _ := strings.Cut(rest, "]")
			return "--" + strings.Join(strings.Fields(names), g.between+"--") + g.says
		}
	}
	return text
}
