package nfs

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"path"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// An exportWorld is a server with exports, as Linux's has them, and the truth of which export a handle is in.
type exportWorld struct {
	exports []worldExport
	x       *Exports // knows some of them
}

type worldExport struct {
	path   string
	keys   []handleKey // that the server accepts; the first one is what it gives out
	parent int         // the export that has the directory above its root
	listed bool        // MOUNT knows it
	bit    uint64      // in x; Elsewhere for others
}

// uuidKey is a key of a kind other than a number.
func uuidKey(kind byte, id byte) (k handleKey) {
	k.kind = kind
	for i := range keyLengths[kind] {
		k.fsid[i] = id + byte(i)
	}
	return k
}

// handle is a handle of file number file below a key.
func (k handleKey) handle(file uint32) []byte {
	h := []byte{1, 0, k.kind, 1}
	if file == 0 {
		h[3] = 0 // the root
	}
	h = append(h, k.fsid[:keyLengths[k.kind]]...)
	if file != 0 {
		h = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(h, file), 77)
	}
	return h
}

// newExportWorld has a root of NFSv4, exports that rules name and others, some below others, and some that no list has.
func newExportWorld() *exportWorld {
	w := &exportWorld{exports: []worldExport{
		{path: "/", keys: []handleKey{{kind: keyNumber}}, listed: false}, // made by the server
		{path: "/home", keys: []handleKey{uuidKey(6, 10), uuidKey(5, 11), uuidKey(0, 12), uuidKey(7, 13)}, listed: true},
		{path: "/data", keys: []handleKey{uuidKey(6, 20), uuidKey(3, 21)}, listed: true},
		{path: "/data/secret", keys: []handleKey{uuidKey(7, 30), uuidKey(4, 31)}, parent: 2, listed: true},
		{path: "/data/child", keys: []handleKey{uuidKey(6, 40)}, parent: 2}, // crossmnt
		{path: "/numbered", keys: []handleKey{{kind: keyNumber, fsid: [24]byte{7}}}, listed: true},
		{path: "/late", keys: []handleKey{{kind: keyNumber, fsid: [24]byte{9}}}}, // exported after the list was made
		{path: "/home/home", keys: []handleKey{uuidKey(6, 50)}, parent: 1, listed: true},
	}}
	w.x = NewExports([]string{"/home", "/data/secret", "/numbered"})
	roots := make(map[string][][]byte)
	for i := range w.exports {
		e := &w.exports[i]
		e.bit = Elsewhere
		if n := slices.Index(w.x.Paths(), e.path); n >= 0 {
			e.bit = 1 << n
		}
		if e.listed {
			roots[e.path] = [][]byte{e.keys[0].handle(0)}
		}
	}
	if f := w.x.Know(roots); f != nil {
		panic(f)
	}
	return w
}

// truth is what a Call is about in truth.
type truth struct {
	looked  uint64 // by LOOKUP and the like
	touched uint64
	changed uint64
	plain   bool // it names handles that the server gives out and the list has, and looks up no name
}

// A maker writes a Call, and the truth about it. It makes what clients make, and what an attacker may.
type maker struct {
	w *exportWorld
	r *rand.Rand
	b []byte
	truth
}

// handle appends a handle, and returns the export that it is in.
func (m *maker) handle(version int) int {
	i := m.r.IntN(len(m.w.exports))
	e := &m.w.exports[i]
	k := e.keys[0]
	if m.r.IntN(3) == 0 {
		k = e.keys[m.r.IntN(len(e.keys))]
	}
	m.plain = m.plain && (e.listed || k.kind == keyNumber) && k == e.keys[0]
	h := k.handle(uint32(m.r.IntN(3)))
	if version == 2 {
		m.b = append(m.b, append(h, make([]byte, 32)...)[:32]...)
	} else {
		m.b = xdr.AppendOpaque(m.b, h)
	}
	return i
}

func (m *maker) bit(i int) uint64 { return m.w.exports[i].bit }

// name appends a name, often one that leads into an export, and returns where it leads from export i.
func (m *maker) name(i int) int {
	name := path.Base(m.w.exports[m.r.IntN(len(m.w.exports))].path)
	if m.r.IntN(3) == 0 {
		name = "file"
	}
	m.b = xdr.AppendOpaque(m.b, []byte(name))
	for at := range m.w.exports {
		if e := &m.w.exports[at]; at != 0 && e.parent == i && path.Base(e.path) == name {
			return at
		}
	}
	return i
}

func (m *maker) op(number uint32, words ...uint32) {
	m.b = xdr.AppendWords(m.b, append([]uint32{number}, words...)...)
}

// zero appends so many words of zero.
func (m *maker) zero(words int) { m.b = append(m.b, make([]byte, 4*words)...) }

// compound writes the arguments of a COMPOUND.
func (m *maker) compound() {
	count := 1 + m.r.IntN(9)
	m.b = xdr.AppendWords(m.b, 0, 2, uint32(count))
	current, saved := -1, -1
	way := false // current was found by its name
	savedWay := false
	touch := func(i int, changes bool) {
		if i >= 0 {
			m.touched |= m.bit(i)
			if changes {
				m.changed |= m.bit(i)
			}
		}
	}
	for range count {
		switch m.r.IntN(20) {
		case 0, 1, 2, 3:
			m.op(opPutFH)
			current, way = m.handle(4), false
		case 4:
			m.op(opPutRootFH)
			current, way, m.plain = 0, true, false
		case 5:
			m.op(opSaveFH)
			saved, savedWay = current, way
		case 6:
			m.op(opRestoreFH)
			current, way = saved, savedWay
		case 7, 8:
			m.op(opLookup)
			if !way && current >= 0 {
				m.looked |= m.bit(current)
			}
			current, way, m.plain = m.name(current), true, false
		case 9:
			m.op(opLookupp)
			if current >= 0 && m.r.IntN(2) == 0 {
				current = m.w.exports[current].parent
			}
			way, m.plain = true, false
		case 10:
			m.op(opGetattr, 1, 0)
			if !way && current >= 0 {
				m.looked |= m.bit(current)
			}
		case 11:
			m.op(opGetFH)
		case 12:
			m.op(opRead)
			m.zero(7)
			touch(current, false)
		case 13:
			m.op(opWrite)
			m.zero(8)
			touch(current, true)
		case 14:
			m.op(28) // REMOVE
			m.b = xdr.AppendOpaque(m.b, []byte("x"))
			touch(current, true)
		case 15:
			m.op(opRename)
			m.b = xdr.AppendOpaque(xdr.AppendOpaque(m.b, []byte("x")), []byte("y"))
			touch(saved, true)
			touch(current, true)
		case 16:
			m.op(opLink)
			m.b = xdr.AppendOpaque(m.b, []byte("x"))
			touch(saved, true)
			touch(current, true)
		case 17:
			m.op(opClone)
			m.zero(14)
			touch(saved, false)
			touch(current, true)
		case 18:
			m.op(opOpen, 0, accessRead, 0, 0, 0, 0, openNoCreate, 0) // CLAIM_NULL
			touch(current, false)
			m.plain = false
			current, way = m.name(current), true
		case 19:
			m.op(opCreate, 2) // a directory
			touch(current, true)
			m.plain = false
			current, way = m.name(current), true
			m.b = xdr.AppendWords(m.b, 0, 0) // no attributes
		}
	}
}

// make writes a Call.
func (m *maker) make() *oncrpc.Call {
	m.plain = true
	header := func(program, version, procedure uint32) {
		m.b = xdr.AppendWords(nil, 1, 0, 2, program, version, procedure, 0, 0, 0, 0)
	}
	switch m.r.IntN(8) {
	case 0: // NFSv3 with one handle
		procedure := uint32(1 + m.r.IntN(13))
		header(oncrpc.ProgramNFS, 3, procedure)
		m.touched = m.bit(m.handle(3))
		m.zero(8)
	case 1:
		header(oncrpc.ProgramNFS, 3, 14) // RENAME
		m.touched = m.bit(m.handle(3))
		m.b = xdr.AppendOpaque(m.b, []byte("from"))
		m.touched |= m.bit(m.handle(3))
		m.b = xdr.AppendOpaque(m.b, []byte("to"))
	case 2:
		header(oncrpc.ProgramNFS, 3, 15) // LINK
		m.touched = m.bit(m.handle(3))
		m.touched |= m.bit(m.handle(3))
		m.b = xdr.AppendOpaque(m.b, []byte("name"))
	case 3:
		header(oncrpc.ProgramNFS, 2, 11)
		m.touched = m.bit(m.handle(2))
		m.b = xdr.AppendOpaque(m.b, []byte("from"))
		m.touched |= m.bit(m.handle(2))
		m.b = xdr.AppendOpaque(m.b, []byte("to"))
		m.plain = false // some keys do not fit
	case 4:
		header(oncrpc.ProgramNFSACL, 3, 2) // SETACL
		m.touched = m.bit(m.handle(3))
		m.zero(3)
	default:
		header(oncrpc.ProgramNFS, 4, 1)
		m.compound()
		return m.call()
	}
	m.changed = m.touched
	return m.call()
}

func (m *maker) call() *oncrpc.Call {
	h := new(oncrpc.Call)
	if err := oncrpc.ParseCall(m.b, h); err != nil {
		panic(err)
	}
	return h
}

// checkTouched compares what the Exports says of a Call with the truth.
func checkTouched(t *testing.T, r *rand.Rand) (plain bool) {
	m := &maker{w: newExportWorld(), r: r}
	h := m.make()
	got := m.w.x.Touched(h, true)
	rules := ^uint64(Elsewhere) // those that rules name
	looked := m.looked & rules  // what is found on the way elsewhere counts nowhere
	switch {
	case (m.touched&rules)&^got.May != 0, m.changed&rules&^got.Changes != 0:
		t.Fatalf("%x: the Call is about %b and changes %b, got %+v", m.b, m.touched, m.changed, got)
	case !got.Unsure && m.touched&^got.May != 0:
		t.Fatalf("%x: the Call is about %b, got %+v for certain", m.b, m.touched, got)
	case m.plain && (got.Unsure || got.May != m.touched|looked || got.Changes != m.changed):
		t.Fatalf("%x: the Call is about %b, looks at %b and changes %b, and that can be seen: got %+v", m.b, m.touched, looked, m.changed, got)
	}
	if reading := m.w.x.Touched(h, false); reading.Changes != 0 || reading.May != got.May {
		t.Fatalf("%x: %+v of a Call that changes nothing", m.b, reading)
	}
	return m.plain && bits.OnesCount64(m.touched) == 1
}

// TestTouched: whatever handles and names a Call has, an Exports misses no export that it is about, and is right about what clients
// send.
func TestTouched(t *testing.T) {
	plain := 0
	for i := range uint64(60000) {
		if checkTouched(t, rand.New(rand.NewPCG(i, 4))) {
			plain++
		}
	}
	if plain < 5000 {
		t.Errorf("%d Calls were about one export", plain)
	}
}

// FuzzTouched does what TestTouched does with Calls that a fuzzer chooses, and looks at Calls that are cut off.
func FuzzTouched(f *testing.F) {
	f.Add([]byte{}, uint16(0))
	f.Add([]byte{200, 1, 255, 3, 90, 5, 6, 7}, uint16(9))
	f.Fuzz(func(t *testing.T, data []byte, cut uint16) {
		checkTouched(t, rand.New(&bytesSource{data: data, then: rand.NewPCG(uint64(len(data)), 1)}))
		m := &maker{w: newExportWorld(), r: rand.New(&bytesSource{data: data, then: rand.NewPCG(1, 2)})}
		h := m.make()
		h.Message = h.Message[:max(h.Args, len(h.Message)-4*int(cut%64))]
		m.w.x.Touched(h, true)
	})
}

// bytesSource is a source of random numbers that begins with data.
type bytesSource struct {
	data []byte
	then rand.Source
}

func (s *bytesSource) Uint64() (v uint64) {
	if len(s.data) == 0 {
		return s.then.Uint64()
	}
	v, s.data = uint64(s.data[0])<<56, s.data[1:] // IntN looks at the highest bits
	return v
}

// TestTouchedOther: Calls of other programs, and what cannot be read.
func TestTouchedOther(t *testing.T) {
	w := newExportWorld()
	home, numbered := uint64(1), uint64(4)
	key := func(i int) []byte { return xdr.AppendOpaque(nil, w.exports[i].keys[0].handle(1)) }
	text := func(s string) []byte { return xdr.AppendOpaque(nil, []byte(s)) }
	lock := func(flags int, handle []byte) []byte {
		return slices.Concat(text("cookie"), make([]byte, 4*flags), text("host"), handle, text("owner"), make([]byte, 20))
	}
	all := Touched{May: ^uint64(0), Changes: ^uint64(0), Unsure: true}
	for _, tt := range []struct {
		name                        string
		program, version, procedure uint32
		args                        []byte
		want                        Touched
	}{
		{"NULL", oncrpc.ProgramNFS, 3, 0, nil, Touched{}},
		{"another program", 7, 1, 1, nil, Touched{}},
		{"MNT", oncrpc.ProgramMount, 3, 1, text("/home/./a"), Touched{May: home}},
		{"MNT that goes up", oncrpc.ProgramMount, 3, 1, text("/data/../home"), Touched{May: home}},
		{"MNT elsewhere", oncrpc.ProgramMount, 3, 1, text("/homer"), Touched{May: Elsewhere}},
		{"EXPORT", oncrpc.ProgramMount, 3, 5, nil, Touched{}},
		{"TEST of NLM", oncrpc.ProgramNLM, 4, 1, lock(1, key(1)), Touched{May: home, Changes: home}},
		{"LOCK of NLM", oncrpc.ProgramNLM, 4, 2, lock(2, key(5)), Touched{May: numbered, Changes: numbered}},
		{"UNLOCK of NLM", oncrpc.ProgramNLM, 4, 4, lock(0, key(2)), Touched{May: Elsewhere, Changes: Elsewhere}},
		{"FREE_ALL of NLM", oncrpc.ProgramNLM, 4, 23, text("host"), Touched{}},
		{"an unknown procedure of NLM", oncrpc.ProgramNLM, 4, 99, nil, all},
		{"an unknown procedure of NFS", oncrpc.ProgramNFS, 3, 22, key(2), all},
		{"an unknown version of NFS", oncrpc.ProgramNFS, 5, 1, key(2), all},
		{"a handle that is no Linux handle", oncrpc.ProgramNFS, 3, 1, text("a handle of somebody else"), all},
		{"a handle that is cut off", oncrpc.ProgramNFS, 3, 1, key(2)[:12], all},
		{"a COMPOUND that is cut off", oncrpc.ProgramNFS, 4, 1, xdr.AppendWords(nil, 0, 2, 2, opSaveFH), all},
		{"a COMPOUND of an unknown operation", oncrpc.ProgramNFS, 4, 1, xdr.AppendWords(nil, 0, 2, 1, 200), all},
		{"a COMPOUND of an unknown minor version", oncrpc.ProgramNFS, 4, 1, xdr.AppendWords(nil, 0, 9, 0), all},
	} {
		m := &maker{b: append(xdr.AppendWords(nil, 1, 0, 2, tt.program, tt.version, tt.procedure, 0, 0, 0, 0), tt.args...)}
		if got := w.x.Touched(m.call(), true); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// TestWay: an NFSv4 client finds its way where nothing is known of it, and touches no export by that. What it does at the
// root of NFSv4 is done to the export that is there.
func TestWay(t *testing.T) {
	w := newExportWorld()
	compound := func(count uint32, ops ...[]byte) *oncrpc.Call {
		b := xdr.AppendWords(nil, 1, 0, 2, oncrpc.ProgramNFS, 4, 1, 0, 0, 0, 0, 0, 2, count)
		return (&maker{b: append(b, slices.Concat(ops...)...)}).call()
	}
	op := func(number uint32, text string) []byte {
		return xdr.AppendOpaque(xdr.AppendUint32(nil, number), []byte(text))
	}
	word := func(words ...uint32) []byte { return xdr.AppendWords(nil, words...) }
	put := func(i int) []byte { return op(opPutFH, string(w.exports[i].keys[0].handle(1))) }
	for name, h := range map[string]*oncrpc.Call{
		"the root":               compound(3, word(opPutRootFH), word(opGetFH), word(opGetattr, 1, 0)),
		"from the root":          compound(5, word(opPutRootFH), op(opLookup, "data"), op(opLookup, "secret"), word(opGetFH), word(opGetattr, 1, 0)),
		"from what is not known": compound(4, put(4), op(opLookup, "home"), word(opAccess, 1), word(opGetFH)),
	} {
		if got := w.x.Touched(h, false); got != (Touched{}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	remove := compound(2, word(opPutRootFH), op(28, "file"))
	if got := w.x.Touched(remove, true); got != (Touched{Elsewhere, Elsewhere, true}) {
		t.Errorf("a file at the root: %+v", got)
	}
	for name, roots := range map[string]map[string][][]byte{"fsid=0": {"/a": {handleKey{kind: keyNumber}.handle(0)}}, "the path": nil} {
		x := NewExports([]string{"/", "/a"})
		x.Know(roots)
		want := uint64(Elsewhere | 1)
		if roots != nil {
			want |= 2
		}
		if got := x.Touched(remove, true); got != (Touched{want, want, true}) {
			t.Errorf("a file at the root, which is an export by %s: %+v", name, got)
		}
	}
}

// TestGanesha: handles of nfs-ganesha have the Export_Id. Those here are of ganesha 4.3. It takes the root of /a with the Export_Id of
// /b, and no handle with an Export_Id that it does not have.
func TestGanesha(t *testing.T) {
	x := NewExports([]string{"/a", "/b"})
	unhex := func(s string) []byte { return testkit.Unhex(t, s) }
	if f := x.Know(map[string][][]byte{"/a": {unhex("430000011244280e37d7a43969770116a7980093e5e1f200")}, "/b": {unhex("430003021244280e37d7a43969770198a79800dd96a08100")}}); f != nil {
		t.Fatal(f)
	}
	for handle, want := range map[string]Touched{
		"430000011244280e37d7a439697701a2a8980017da3adb00": {May: 1}, // a file in /a
		"430103021244280e37d7a4396977":                     {May: 2}, // other flags
		"430003021244280e37d7a43969770116a7980093e5e1f200": {May: 2}, // the root of /a in /b
		"430009091244280e37d7a43969770116a7980093e5e1f200": {May: Elsewhere},
	} {
		m := xdr.AppendOpaque(xdr.AppendWords(nil, 1, 0, 2, oncrpc.ProgramNFS, 3, 1, 0, 0, 0, 0), unhex(handle))
		if got := x.Touched((&maker{b: m}).call(), false); got != want {
			t.Errorf("%s: %+v, want %+v", handle, got, want)
		}
	}
	words := func(w ...uint32) []byte { return xdr.AppendWords(nil, w...) }
	remove := xdr.AppendOpaque(words(28), []byte("file"))
	for name, ops := range map[string][]byte{
		"at the root":     slices.Concat(words(0, 2, 2, opPutRootFH), remove),
		"a name below /a": slices.Concat(words(0, 2, 3, opPutFH), xdr.AppendOpaque(nil, unhex("43000001124428")), xdr.AppendOpaque(words(opLookup), []byte("anything")), remove),
	} {
		m := append(xdr.AppendWords(nil, 1, 0, 2, oncrpc.ProgramNFS, 4, 1, 0, 0, 0, 0), ops...)
		if got := x.Touched((&maker{b: m}).call(), true); got.Changes&3 != 3 || !got.Unsure {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestStrange: a handle that is not known is told, once until somebody has listened.
func TestStrange(t *testing.T) {
	w := newExportWorld()
	for range 2 {
		for i, want := range map[int]bool{1: false, 4: true} {
			m := &maker{b: append(xdr.AppendWords(nil, 1, 0, 2, oncrpc.ProgramNFS, 3, 1, 0, 0, 0, 0), xdr.AppendOpaque(nil, w.exports[i].keys[0].handle(1))...)}
			for range 3 {
				w.x.Touched(m.call(), false)
			}
			got := false
			select {
			case <-w.x.Strange():
				got = true
			default:
			}
			if got != want {
				t.Errorf("export %s: told %v", w.exports[i].path, got)
			}
		}
	}
}

// TestKnow: two storages may give out one key, and what a storage says replaces what was known.
func TestKnow(t *testing.T) {
	x := NewExports([]string{"/a", "/b/"})
	same := handleKey{kind: keyNumber, fsid: [24]byte{3}}.handle(0)
	call := (&maker{b: append(xdr.AppendWords(nil, 1, 0, 2, oncrpc.ProgramNFS, 3, 1, 0, 0, 0, 0), xdr.AppendOpaque(nil, same)...)}).call()
	x.Know(map[string][][]byte{"/a": {same}, "/b": {same}})
	if got := x.Touched(call, false); got != (Touched{May: 3, Unsure: true}) {
		t.Errorf("a key of two exports: %+v", got)
	}
	if f := x.Know(map[string][][]byte{"/a": {same}, "/c": {[]byte("no form")}, "/b": {{}, {9}}}); !slices.Equal(f, []string{"/b", "/c"}) {
		t.Errorf("handles without a form: %v", f)
	}
	if got := x.Touched(call, false); got != (Touched{May: 1}) {
		t.Errorf("a key of one export: %+v", got)
	}
}

// TestTouchedAllocatesNothing: a Call costs no memory.
func TestTouchedAllocatesNothing(t *testing.T) {
	w := newExportWorld()
	for i := range uint64(50) {
		m := &maker{w: w, r: rand.New(rand.NewPCG(i, 4))}
		h := m.make()
		if n := testing.AllocsPerRun(10, func() { w.x.Touched(h, true) }); n != 0 {
			t.Fatalf("%x: %v allocations", m.b, n)
		}
	}
}

// BenchmarkTouched is what rules with exports cost a Call beside other rules.
func BenchmarkTouched(b *testing.B) {
	w := newExportWorld()
	read := xdr.AppendWords(nil, 1, 0, 2, oncrpc.ProgramNFS, 3, 6, 0, 0, 0, 0)
	read = append(xdr.AppendOpaque(read, w.exports[1].keys[0].handle(9)), make([]byte, 12)...)
	compound := xdr.AppendWords(nil, 1, 0, 2, oncrpc.ProgramNFS, 4, 1, 0, 0, 0, 0, 0, 2, 4, opSequence)
	compound = xdr.AppendUint32(append(compound, make([]byte, 32)...), opPutFH)
	compound = xdr.AppendUint32(xdr.AppendOpaque(compound, w.exports[1].keys[0].handle(9)), opRead)
	compound = xdr.AppendWords(append(compound, make([]byte, 28)...), opGetattr, 1, 0)
	for name, m := range map[string][]byte{"READ of NFSv3": read, "READ of NFSv4": compound} {
		b.Run(name, func(b *testing.B) {
			h := (&maker{b: m}).call()
			b.ReportAllocs()
			for b.Loop() {
				if t := w.x.Touched(h, false); t.May != 1 {
					b.Fatalf("%+v", t)
				}
			}
		})
	}
}
