package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/doctor"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/pool/keeper"
)

const (
	// doctorCall bounds how long doctor waits for the Reply to a NULL Call.
	doctorCall = 10 * time.Second
	// maxTargets bounds the endpoints that doctor connects to.
	maxTargets = 256
	// targetsAtOnce is how many of them it connects to at a time.
	targetsAtOnce = 8
)

// askEndpoints connects to the endpoints of c. The endpoints are in the order of the file.
func askEndpoints(ctx context.Context, c *configs.Config, host *doctor.Host, fs *doctor.Findings) ([]doctor.Endpoint, error) {
	targets, err := doctorTargets(c, host, fs)
	if err != nil || len(targets) == 0 {
		return nil, err
	}
	p, err := doctor.NewProber(ulb.Limits{MaxIO: uint32(c.Chunks.IO), MaxReply: uint32(c.Chunks.Reply)})
	if err != nil {
		return nil, err
	}
	endpoints, found := make([]doctor.Endpoint, len(targets)), make([]doctor.Findings, len(targets))
	var wg sync.WaitGroup
	free := make(chan struct{}, targetsAtOnce)
	for i := range targets {
		free <- struct{}{}
		wg.Go(func() {
			endpoints[i], found[i] = p.Ask(ctx, &targets[i])
			<-free
		})
	}
	wg.Wait()
	for _, more := range found {
		*fs = append(*fs, more...)
	}
	return endpoints, errors.Join(p.Close(), ctx.Err())
}

// doctorTargets lists the endpoints of c that can be connected to. Findings say why others cannot.
func doctorTargets(c *configs.Config, host *doctor.Host, fs *doctor.Findings) (targets []doctor.Target, err error) {
	for i := range c.Upstreams {
		u := &c.Upstreams[i]
		t := doctor.Target{
			Upstream: u.Name, Programs: routedTo(c, u.Name), RDMA: u.RDMA(), Name: u.Provider,
			Credits: u.Pool.Credits, CallInline: int(u.Inline.Call), ReplyInline: int(u.Inline.Reply),
			Connect: u.Timeouts.Connect.Value(), Call: min(u.Timeouts.Call.Value(), doctorCall),
		}
		var secure *tlsconf.Client
		if !u.RDMA() && u.TLS.On() {
			if secure, err = translate.TLSClient(&u.TLS); err != nil {
				return nil, fmt.Errorf("upstream %s: %w", u.Name, err)
			}
		}
		o, missing := translate.Source(u), false
		t.Source, t.Low, t.High = o.Address, o.Low, o.High
		if u.RDMA() {
			// A server on siw loses its listener when a client gives up early: docs/limits.md.
			t.Connect *= keeper.AloneTimes
			if missing = !judgeProvider(u.Provider, "upstream "+u.Name, fs); !missing {
				if t.Provider, err = translate.UpstreamProvider(u, nil, zerolog.Nop()); err != nil {
					return nil, fmt.Errorf("upstream %s: %w", u.Name, err)
				}
			}
		}
		for _, address := range u.Endpoints {
			if secure != nil {
				t.TLS = &doctor.TLS{Required: u.TLS.Mode == configs.TLSRequired}
				if t.TLS.Config, err = secure.TLS(address, t.Connect); err != nil {
					return nil, fmt.Errorf("upstream %s: %w", u.Name, err)
				}
			}
			if t.Address = address; u.Provider == configs.ProviderIBVerbs && u.RDMA() && !u.IBVerbs.Selects() {
				host.JudgePath(&t, fs)
			}
			switch {
			case missing:
				fs.Add("endpoint-not-asked", doctor.Error, "upstream "+u.Name+", "+address,
					fmt.Sprintf("The endpoint was not connected to, because provider %s is not in this build.", u.Provider))
			case len(targets) == maxTargets:
				fs.Add("endpoint-not-asked", doctor.Warning, "upstream "+u.Name+", "+address,
					fmt.Sprintf("The endpoint was not connected to: doctor connects to the first %d only.", maxTargets))
			default:
				targets = append(targets, t)
			}
		}
	}
	return targets, nil
}

// routedTo lists the programs that c sends to an upstream: NFS, if it is the upstream of a
// listener, and those of routes. The first is what the bridge asks a new connection for.
func routedTo(c *configs.Config, upstream string) (programs []doctor.Program) {
	add := func(number uint32, version uint32) {
		p := doctor.Program{Number: number, Version: version, Name: oncrpc.ProgramName(number)}
		for _, q := range programs {
			if q == p {
				return
			}
		}
		programs = append(programs, p)
	}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		if l.Upstream == upstream {
			add(oncrpc.ProgramNFS, 3)
		}
		for _, r := range l.Routes {
			number, err := known.ResolveProgram(r.Program)
			if err != nil || r.Upstream != upstream {
				continue
			}
			if len(r.Versions) > 0 {
				add(number, r.Versions[0])
			} else {
				add(number, usualVersion(number))
			}
		}
	}
	if len(programs) == 0 {
		add(oncrpc.ProgramNFS, 3) // of an upstream that no listener uses
	}
	return programs
}

// usualVersion returns the version of a program that every server has which serves NFSv3.
func usualVersion(program uint32) uint32 {
	switch program {
	case oncrpc.ProgramNFS, oncrpc.ProgramMount, oncrpc.ProgramNFSACL:
		return 3
	case oncrpc.ProgramNLM:
		return 4
	}
	return 1
}
