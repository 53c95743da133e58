package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/control"
)

// A shownConfig is a configuration with what has become of it.
type shownConfig struct {
	config  *configs.Config
	file    string           // "" for none
	process int              // in which it is in force; 0 for none
	pending []configs.Change // settings of the file that need a restart
}

// A configDocument is the JSON of config print.
type configDocument struct {
	File     string           `json:"file,omitempty"`
	Process  int              `json:"process,omitempty"` // in which it is in force; 0 for none
	Settings []printedSetting `json:"settings"`
	Derived  []derivedNumber  `json:"derived,omitempty"`
}

// A printedSetting is one setting with its source.
type printedSetting struct {
	Path    string `json:"path"`              // such as listeners[nfs].limits.calls
	Value   string `json:"value"`             // as a file has it
	Source  string `json:"source"`            // file, environment or default
	From    string `json:"from,omitempty"`    // the file, or the variable of the environment
	Line    int    `json:"line,omitempty"`    // of the file
	Pending string `json:"pending,omitempty"` // what the file has, and needs a restart
}

// describe returns the document of s. Without all, it has only the settings that the file has.
func (s *shownConfig) describe(all bool) (configDocument, error) {
	d := configDocument{File: s.file, Process: s.process, Settings: []printedSetting{}}
	for _, x := range s.config.Settings() {
		if x.Where == "" && !all {
			continue
		}
		p := printedSetting{Path: x.Path, Value: x.Value, Source: "default", From: x.File, Line: x.Line, Pending: s.pendingFor(x.Path)}
		switch {
		case x.Line > 0:
			p.Source = "file"
		case x.Where != "":
			p.Source = "environment"
		}
		d.Settings = append(d.Settings, p)
	}
	if !all {
		return d, nil
	}
	var err error
	d.Derived, err = derivedNumbers(s.config)
	return d, err
}

// pendingFor returns the value of a setting in the file, if that needs a restart.
func (s *shownConfig) pendingFor(path string) string {
	i := slices.IndexFunc(s.pending, func(c configs.Change) bool { return c.Path == path })
	if i < 0 {
		return ""
	}
	if s.pending[i].New == "" {
		return "(nothing)"
	}
	return s.pending[i].New
}

// yaml returns s as a file with comments.
func (s *shownConfig) yaml(all bool) ([]byte, error) {
	var b bytes.Buffer
	switch {
	case s.process == 0:
		fmt.Fprintf(&b, "# What %s puts in force on this machine.\n", s.file)
	case s.file == "":
		fmt.Fprintf(&b, "# The configuration in force in process %d, which has no file.\n", s.process)
	default:
		fmt.Fprintf(&b, "# The configuration in force in process %d, of %s.\n", s.process, s.file)
	}
	if !all {
		b.WriteString("# Settings that the file leaves out have their defaults: --effective shows them, and derived numbers.\n")
	}
	if id := s.config.Identity; id != "" {
		fmt.Fprintf(&b, "# The identity is a secret and is not shown: %s.\n", id)
	}
	b.WriteByte('\n')
	out, err := s.config.AppendYAML(b.Bytes(), func(x configs.Setting) bool { return all || x.Where != "" }, func(x configs.Setting) string {
		comment := "# default"
		if x.Where != "" {
			comment = "# " + x.Where
		}
		if p := s.pendingFor(x.Path); p != "" {
			comment = fmt.Sprintf("# still; %s has %s, which needs a restart", cmp.Or(x.Where, "the file"), p)
		}
		return comment
	})
	if err != nil || !all {
		return out, err
	}
	numbers, err := derivedNumbers(s.config)
	if err != nil {
		return nil, err
	}
	return appendNumbers(out, numbers), nil
}

// appendNumbers adds numbers as comments.
func appendNumbers(b []byte, numbers []derivedNumber) []byte {
	b = append(b, "\n# Derived numbers, and how they follow from the settings\n"...)
	of := ""
	for _, n := range numbers {
		if n.Of != of {
			of = n.Of
			b = fmt.Appendf(b, "#\n# %s\n", of)
		}
		b = fmt.Appendf(b, "#   %-12s %s\n#                = %s\n", n.Text, n.Name, n.Formula)
	}
	return b
}

// serveConfig answers with the configuration in force.
func (b *bridge) serveConfig(w http.ResponseWriter, r *http.Request) {
	s := *b.shown.Load()
	if l := b.loaded.Load(); l != nil {
		s.file = l.File
	}
	all := r.URL.Query().Get("effective") == "true"
	var out []byte
	var err error
	kind := "application/json"
	if r.URL.Query().Get("format") == "yaml" {
		kind = "application/yaml"
		out, err = s.yaml(all)
	} else {
		var d configDocument
		if d, err = s.describe(all); err == nil {
			out, err = json.Marshal(d)
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(out) // an error means that the client has disconnected
}

// show makes c what config print shows.
func (b *bridge) show(c *configs.Config, pending []configs.Change) {
	b.shown.Store(&shownConfig{config: c, pending: pending, process: os.Getpid()})
}

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print a configuration, give it its canonical form, or describe it to editors",
	}
	cli.Group(cmd)
	cmd.AddCommand(newConfigPrintCommand(), newConfigFmtCommand(), newConfigSchemaCommand())
	return cmd
}

func newConfigPrintCommand() *cobra.Command {
	var files []string
	var socket string
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:   "print [FILE]",
		Short: "Print the configuration in force, with defaults and derived numbers",
		Long: `Print prints the configuration that is in force in the running bridge, or with a FILE
what that would put in force on this machine. It says of each setting which line of
the file it comes from, and which settings of the file need a restart.

With --effective it prints all settings, defaults included, and every number that
follows from them, such as the parts of the memory, with its formula.

The output is YAML that rdmabridge check - accepts. The identity, which is a secret,
is not in it. FILE can be given with -c, too, and - is standard input.

Exit codes: 0 it is printed; 1 the file has problems; 2 the file cannot be read, or no
bridge was reached.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return printRunning(cmd, socket, all, asJSON)
			}
			c, err := loadConfig(files, knownWith(cmd.Flags()))
			if err != nil {
				return err
			}
			s := &shownConfig{config: c, file: strings.Join(files, ", ")}
			if asJSON {
				d, err := s.describe(all)
				if err != nil {
					return cli.Failed(err)
				}
				return writeJSON(cmd.OutOrStdout(), d)
			}
			out, err := s.yaml(all)
			if err != nil {
				return cli.Failed(err)
			}
			_, err = cmd.OutOrStdout().Write(out)
			return cli.Failed(err)
		},
	}
	configFlag(cmd, &files)
	required := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 && len(files) == 0 {
			return nil // it asks the running bridge
		}
		return required(cmd, args)
	}
	cmd.Flags().StringVar(&socket, "socket", "", "ask the bridge whose control socket is at `PATH`")
	cmd.MarkFlagsMutuallyExclusive("socket", "config")
	cmd.Flags().BoolVar(&all, "effective", false, "print all settings, and the numbers that follow from them")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// printRunning prints the configuration of the running bridge.
func printRunning(cmd *cobra.Command, socket string, all, asJSON bool) error {
	bridge := bridgeFlag{socket: socket}
	return bridge.with(func(ctx context.Context, c *control.Client) error {
		path := fmt.Sprintf("/api/v1/config?effective=%t", all)
		if asJSON {
			var d configDocument
			if err := c.Get(ctx, path, &d); err != nil {
				return asked(err)
			}
			return writeJSON(cmd.OutOrStdout(), d)
		}
		answer, err := c.Do(ctx, http.MethodGet, path+"&format=yaml", nil)
		if err != nil {
			return asked(err)
		}
		defer answer.Body.Close()
		_, err = io.Copy(cmd.OutOrStdout(), io.LimitReader(answer.Body, control.MaxAnswer))
		return cli.Failed(err)
	})
}
