package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
)

// A sizeFlag is a number of octets on the command line: 100, 64KiB, 1MiB.
type sizeFlag int

func (s *sizeFlag) Type() string { return "SIZE" }

// String formats s as Set parses it.
func (s *sizeFlag) String() string {
	v := configs.Size(*s).String()
	if octets := strings.TrimSuffix(v, "B"); !strings.HasSuffix(octets, "i") {
		return octets
	}
	return v
}

func (s *sizeFlag) Set(v string) error {
	n, err := configs.ParseSize(v)
	if err != nil {
		return err
	}
	if n > 1<<40 {
		return fmt.Errorf("%q is too large: want at most 1TiB", v)
	}
	*s = sizeFlag(n)
	return nil
}

// required makes cobra report an error when one of the named flags is missing.
func required(cmd *cobra.Command, names ...string) {
	for _, n := range names {
		if err := cmd.MarkFlagRequired(n); err != nil {
			panic("BUG: " + err.Error())
		}
	}
}
