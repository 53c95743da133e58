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

// String is what Set understands.
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
		return fmt.Errorf("%q is too large", v)
	}
	*s = sizeFlag(n)
	return nil
}

func required(cmd *cobra.Command, names ...string) {
	for _, n := range names {
		if err := cmd.MarkFlagRequired(n); err != nil {
			panic("BUG: " + err.Error())
		}
	}
}
