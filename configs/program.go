package configs

import (
	"fmt"
	"slices"
)

// A DeclaredProgram says of procedures of an RPC program that the bridge does not know how long their Replies get,
// and what becomes of a Call that is executed twice. Of several the first that has a procedure counts.
type DeclaredProgram struct {
	Program    Program  `mapstructure:"program"`
	Versions   []uint32 `mapstructure:"versions"`
	Procedures []uint32 `mapstructure:"procedures"` // empty: all
	Reply      Size     `mapstructure:"reply"`      // the longest results
	Effect     string   `mapstructure:"effect"`     // EffectReadOnly, EffectIdempotent or EffectNonIdempotent
}

const (
	maxDeclared         = 256 // entries of programs
	maxDeclaredVersions = 16
	maxDeclaredNumbers  = 256
	maxProgramVersions  = 256 // that all entries together have
)

// A programVersion is a version of an RPC program.
type programVersion struct{ program, version uint32 }

// validatePrograms checks the list of programs.
func (c *Config) validatePrograms(k Known, r *report) {
	if len(c.Programs) > maxDeclared {
		r.addf("programs", "there are %d programs; write at most %d", len(c.Programs), maxDeclared)
		return
	}
	earlier := make(map[programVersion]*declaredEarlier)
	for i := range c.Programs {
		c.Programs[i].validate(fmt.Sprintf("programs[%d]", i), i, earlier, k, r)
		if most := c.Chunks.Reply; c.Programs[i].Reply > most && !r.has("chunks") {
			r.addf(fmt.Sprintf("programs[%d].reply", i), "%s is more than chunks.reply, which is %s; write less here, or more there", c.Programs[i].Reply, most)
		}
	}
	if len(earlier) > maxProgramVersions {
		r.addf("programs", "there are %d versions of programs; write at most %d", len(earlier), maxProgramVersions)
	}
}

// A declaredEarlier has the procedures of one version that earlier entries declare.
type declaredEarlier struct {
	first      int // index of the first entry
	all        bool
	procedures []uint32
}

// add adds procedures and reports whether any of them is new. An empty list stands for all.
func (e *declaredEarlier) add(procedures []uint32) bool {
	isNew := !e.all && (len(procedures) == 0 || slices.ContainsFunc(procedures, func(n uint32) bool { return !slices.Contains(e.procedures, n) }))
	e.all = e.all || len(procedures) == 0
	e.procedures = append(e.procedures, procedures...)
	return isNew
}

// validate checks entry i. earlier has what the entries before it declare, and gets what this one does.
func (d *DeclaredProgram) validate(path string, i int, earlier map[programVersion]*declaredEarlier, k Known, r *report) {
	if d.Reply == 0 && !r.spoiled(path+".reply") {
		r.missing(path+".reply", "64KiB")
	}
	if r.required(path+".effect", d.Effect, EffectNonIdempotent) {
		r.oneOf(path+".effect", d.Effect, EffectReadOnly, EffectIdempotent, EffectNonIdempotent)
	}
	if n := len(d.Procedures); n > maxDeclaredNumbers {
		r.addf(path+".procedures", "there are %d procedures; write at most %d", n, maxDeclaredNumbers)
	}
	switch n := len(d.Versions); {
	case n == 0 && !r.spoiled(path+".versions"):
		r.missing(path+".versions", "[1]")
	case n > maxDeclaredVersions:
		r.addf(path+".versions", "there are %d versions; write at most %d", n, maxDeclaredVersions)
		return
	}
	if !r.required(path+".program", string(d.Program), "536870913") {
		return
	}
	program, err := k.ResolveProgram(d.Program)
	if err != nil {
		r.addf(path+".program", "%v", err)
		return
	}
	for j, v := range d.Versions {
		at := fmt.Sprintf("%s.versions[%d]", path, j)
		if k.Bound != nil && k.Bound(program, v) {
			r.addf(at, "the bridge knows version %d of program %s, and more of it than can be said here; remove it", v, d.Program)
			continue
		}
		key := programVersion{program, v}
		if slices.Contains(d.Versions[:j], v) {
			r.addf(at, "version %d is there twice; remove one of the two", v)
			continue
		}
		if earlier[key] == nil {
			earlier[key] = &declaredEarlier{first: i}
		}
		if !earlier[key].add(d.Procedures) {
			r.addf(path, "no Call is of this entry, because programs[%d] declares its procedures first; remove one of the two", earlier[key].first)
		}
	}
}
