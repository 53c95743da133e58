package nfs

import "github.com/rdmabridge/rdmabridge/internal/rpc/xdr"

// A Move is what an operation of NFSv4 does to the current and the saved filehandle of its COMPOUND, if the server executes
// it: RFC 8881 Section 16.2.3.
type Move uint8

// The moves.
const (
	Stays       Move = iota // the filehandles are what they were
	Puts                    // PUTFH makes a handle the current one
	PutsRoot                // PUTROOTFH and PUTPUBFH make the root of NFSv4 the current one
	Saves                   // SAVEFH makes the current one the saved one
	Restores                // RESTOREFH makes the saved one the current one
	Enters                  // LOOKUP, OPEN and CREATE: what a name in the current one stands for becomes the current one
	GoesUp                  // LOOKUPP: the directory above the current one becomes the current one
	EntersAttrs             // OPENATTR: the directory of the named attributes of the current one becomes the current one
)

// MoveOf returns what an operation does whose arguments are at pos. octets is the handle of Puts and the name of Enters; nil
// if it is not all in m.
func MoveOf(number uint32, m []byte, pos int) (move Move, octets []byte) {
	var x xdr.Cursor
	switch number {
	case opPutFH:
		move, x = Puts, xdr.NewCursor(m, pos)
	case opPutRootFH, opPutPubFH:
		return PutsRoot, nil
	case opSaveFH:
		return Saves, nil
	case opRestoreFH:
		return Restores, nil
	case opLookup:
		move, x = Enters, xdr.NewCursor(m, pos)
	case opLookupp:
		return GoesUp, nil
	case opOpenattr:
		return EntersAttrs, nil
	case opOpen:
		x = xdr.NewCursor(m, pos)
		if _, named := OpenName(&x); !named {
			return Stays, nil // a claim of the current filehandle itself
		}
		move = Enters
	case opCreate:
		x = xdr.NewCursor(m, pos)
		switch x.Uint32() {
		case 5: // NF4LNK has its target
			x.Opaque()
		case 3, 4: // NF4BLK and NF4CHR have specdata4
			x.Skip(8)
		}
		move = Enters
	default:
		return Stays, nil
	}
	return move, x.Octets()
}
