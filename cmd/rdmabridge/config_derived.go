package main

import (
	"fmt"
	"math"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/admin"
	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/internal/show"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// A derivedNumber is a number that follows from settings.
type derivedNumber struct {
	Of      string  `json:"of"`    // memory, process, "listener NAME", "upstream NAME", ...
	Name    string  `json:"name"`  // what it bounds
	Value   float64 `json:"value"` // in Unit
	Unit    string  `json:"unit"`
	Text    string  `json:"text"` // Value for people
	Formula string  `json:"formula"`
}

// derivedNumbers returns the numbers that follow from c on this machine.
func derivedNumbers(c *configs.Config) ([]derivedNumber, error) {
	var all []derivedNumber
	add := func(of, name string, value float64, unit, formula string) {
		all = append(all, derivedNumber{Of: of, Name: name, Value: value, Unit: unit, Text: shortNumber(value, unit), Formula: formula})
	}
	var ls []settings.ListenerOptions
	for i := range c.Listeners {
		ls = append(ls, translate.ListenerLimits(&c.Listeners[i]))
	}
	var us []settings.UpstreamOptions
	for i := range c.Upstreams {
		us = append(us, translate.UpstreamLimits(&c.Upstreams[i]))
	}
	for _, n := range settings.Numbers(int64(c.Memory.Budget), ls, us) {
		add(n.Of, n.Name, n.Value, n.Unit, n.Formula)
	}
	add("chunks", "data of one READ, at most", float64(c.Chunks.IO), "bytes", "chunks.io")
	add("chunks", "Reply chunk of Calls whose Reply has no known bound", float64(c.Chunks.Reply), "bytes", "chunks.reply")

	available := configs.MachineMemory()
	if available < math.MaxInt64 {
		add("process", "memory that this process may use", float64(available), "bytes", "the less of the machine's memory and the cgroup's limit")
	}
	add("process", "default of memory.budget", float64(configs.DefaultBudget()), "bytes", "the less of 1 GiB and (memory that this process may use - 32 MiB) / 2")
	add("process", "soft limit of the Go heap", float64(heapLimit(c.Memory)), "bytes", "48 MiB + memory.budget / 8, unless GOMEMLIMIT is set")
	add("process", "memory that the process may come to use", float64(memoryNeed(c.Memory)), "bytes", "memory.budget + limit of the Go heap + 16 MiB")
	add("process", "event loops", float64(c.Loops), "loops", "loops; the default is the CPUs that the process may use, less one if they are more than two")

	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return nil, fmt.Errorf("RLIMIT_NOFILE: %w", err)
	}
	limit := int(min(r.Cur, maxDescriptors))
	add("descriptors", "descriptors of this process", float64(limit), "descriptors", "RLIMIT_NOFILE, here of the process that prints it")
	add("descriptors", "not for clients", float64(reservedDescriptors(c)), "descriptors",
		fmt.Sprintf("%d + %d of the admin server + %d of the control socket + 8 x loops + 2 x listeners + those of connections to upstreams", otherDescriptors, admin.MaxConns, control.MaxConnections))
	add("descriptors", "sockets of clients", float64(clientDescriptors(c, limit)), "descriptors", "the difference, at least RLIMIT_NOFILE / 4")
	return all, nil
}

// shortNumber formats a number with its unit.
func shortNumber(value float64, unit string) string {
	switch unit {
	case "bytes":
		return strings.ReplaceAll(show.Size(value), " ", "")
	case "seconds":
		return configs.Duration(value * 1e9).String()
	case "per_second":
		return fmt.Sprintf("%g/s", value)
	}
	return fmt.Sprintf("%g", value)
}
