package translate

import (
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// Registry returns what a bridge with the configuration c knows of RPC programs.
func Registry(c *configs.Config) *ulb.Registry {
	reg := ulb.NewRegistry(ulb.Limits{MaxIO: uint32(c.Chunks.IO), MaxReply: uint32(c.Chunks.Reply)})
	nfs.Register(reg)
	type version struct{ program, version uint32 }
	var order []version
	all := make(map[version][]ulb.Declaration)
	for i := range c.Programs {
		d := &c.Programs[i]
		program, _ := Known.ResolveProgram(d.Program) // checked by configs.Load
		for _, v := range d.Versions {
			key := version{program, v}
			if all[key] == nil {
				order = append(order, key)
			}
			all[key] = append(all[key], ulb.Declaration{Procedures: d.Procedures, Class: effects[d.Effect], MaxReply: uint32(d.Reply)})
		}
	}
	for _, key := range order {
		reg.Declare(key.program, key.version, all[key])
	}
	return reg
}

// effects has the class of each word for the effect of a Call.
var effects = map[string]ulb.Class{
	configs.EffectReadOnly: ulb.ReadOnly, configs.EffectIdempotent: ulb.Idempotent, configs.EffectNonIdempotent: ulb.NonIdempotent,
}
