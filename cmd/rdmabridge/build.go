package main

import "github.com/rdmabridge/rdmabridge/internal/cli"

// buildInfo describes this binary.
func buildInfo() cli.Build { return cli.ReadBuild("rdmabridge", known.Providers) }
