package nfs_test

import (
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

func TestAllocs(t *testing.T) {
	reg := newRegistry()
	vectors := loadVectors(t)
	var c oncrpc.Call
	var a ulb.Analysis
	if n := testing.AllocsPerRun(100, func() {
		for i := range vectors {
			m := vectors[i].Call
			if oncrpc.ParseCall(m, &c) != nil {
				t.Fatal("ParseCall failed")
			}
			reg.Analyse(&c, &a)
			if _, err := reg.Plan(&a, len(m), 1024, 1024); err != nil {
				t.Fatal(err)
			}
		}
	}); n != 0 {
		t.Errorf("ParseCall, Analyse and Plan allocate %v times in %d Calls", n, len(vectors))
	}

	refs := loadReference4(t)
	if n := testing.AllocsPerRun(10, func() {
		for i := range refs {
			if oncrpc.ParseCall(refs[i].call, &c) != nil {
				t.Fatal("ParseCall failed")
			}
			if reg.Analyse(&c, &a); !a.Known {
				t.Fatal("Analyse failed")
			}
		}
	}); n != 0 {
		t.Errorf("ParseCall and Analyse allocate %v times in %d COMPOUNDs", n, len(refs))
	}

	allocsRestore(t, reg)
	allocsRestoreCall(t, reg)
}

func allocsRestore(t *testing.T, reg *ulb.Registry) {
	for _, id := range []string{"02-nfs3-read", "16-nfs41-seq-putfh-read"} {
		read := byID(t, id)
		b := reg.Lookup(read.Prog, read.Vers)
		r := read.Replies[0]
		if n := testing.AllocsPerRun(100, func() {
			if _, ok, err := ulb.Restore(b, read.Proc, r.ReplyReduced, 10); !ok || err != nil {
				t.Fatal("Restore failed")
			}
			if _, ok := ulb.Reducible(b, read.Proc, r.Reply); !ok {
				t.Fatal("Reducible failed")
			}
		}); n != 0 {
			t.Errorf("%s: Restore and Reducible allocate %v times", id, n)
		}
	}
}

func allocsRestoreCall(t *testing.T, reg *ulb.Registry) {
	for _, id := range []string{"03-nfs3-write", "17-nfs41-seq-putfh-write-getattr"} {
		write := byID(t, id)
		b := reg.Lookup(write.Prog, write.Vers)
		c := *parse(t, write.CallReduced)
		it := write.ReadItems[0]
		if n := testing.AllocsPerRun(100, func() {
			if _, err := ulb.RestoreCall(b, &c, it.Position, it.Length); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: RestoreCall allocates %v times", id, n)
		}
	}
}

// BenchmarkAnalyse measures everything that happens to a Call before it is sent: the
// header, the arguments, the shape.
func BenchmarkAnalyse(b *testing.B) {
	reg := newRegistry()
	for _, v := range loadVectors(b) {
		if !slices.Contains([]string{
			"01-nfs3-getattr", "02-nfs3-read", "03-nfs3-write", "04-nfs3-symlink", "10-nfs2-read",
			"16-nfs41-seq-putfh-read", "17-nfs41-seq-putfh-write-getattr", "22-nfs41-open", "33-gss-krb5i-read", "40-nlm4-lock",
		}, v.ID) {
			continue
		}
		b.Run(v.ID, func(b *testing.B) {
			var c oncrpc.Call
			var a ulb.Analysis
			b.SetBytes(int64(len(v.Call)))
			b.ReportAllocs()
			for b.Loop() {
				if err := oncrpc.ParseCall(v.Call, &c); err != nil {
					b.Fatal(err)
				}
				reg.Analyse(&c, &a)
				if _, err := reg.Plan(&a, len(v.Call), 4096, 4096); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRestore(b *testing.B) {
	reg := newRegistry()
	for _, id := range []string{"02-nfs3-read", "16-nfs41-seq-putfh-read"} {
		v := byID(b, id)
		bind := reg.Lookup(v.Prog, v.Vers)
		base := v.Replies[0].ReplyReduced
		b.Run(id, func(b *testing.B) {
			b.SetBytes(int64(len(base)))
			b.ReportAllocs()
			for b.Loop() {
				if _, ok, err := ulb.Restore(bind, v.Proc, base, 10); !ok || err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkTighten(b *testing.B) {
	_, l, _ := nfs.CreatedLimits(byID(b, "23-nfs41-create-session").Replies[0].Reply, &plain)
	m := byID(b, "16-nfs41-seq-putfh-read").Call
	var a ulb.Analysis
	newRegistry().Analyse(parse(b, m), &a)
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		a := a
		for p.Next() {
			l.Tighten(m, &a)
		}
	})
}
