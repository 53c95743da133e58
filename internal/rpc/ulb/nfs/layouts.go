package nfs

import (
	"bytes"
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// pNFS layouts
//
// A server can give a client a layout, which names the addresses of data servers. The client sends
// its READs and WRITEs there, past the bridge. RFC 8881 Section 12. Two words tell clients that a
// server has layouts, and the functions of this file change them:
//
//   - eir_flags in the Reply to EXCHANGE_ID have the roles of the server. "EXCHGID4_FLAG_USE_NON_PNFS.
//     This is an NFSv4.1 server that does not support operations (e.g., LAYOUTGET) or attributes that
//     pertain to pNFS." RFC 8881 Section 13.1.
//   - fs_layout_type, attribute 62, has the layout types of a file system. Linux asks for it when it
//     mounts one, and uses pNFS if it gets a type that it knows, also when eir_flags have
//     USE_NON_PNFS: set_pnfs_layoutdriver in fs/nfs/pnfs.c.
//
// The messages keep their lengths. Under RPCSEC_GSS integrity and privacy they stay as they are,
// because they are signed.

// Flags of eir_flags. RFC 8881 Section 18.35.1.
const (
	useNonPNFS = 0x00010000 // EXCHGID4_FLAG_USE_NON_PNFS
	usePNFSMDS = 0x00020000 // EXCHGID4_FLAG_USE_PNFS_MDS: a metadata server
	usePNFSDS  = 0x00040000 // EXCHGID4_FLAG_USE_PNFS_DS: a data server
)

// layoutTypeBit stands for attribute 62 in the second unit of a bitmap4.
const layoutTypeBit = 1 << (62 - 32)

// HideLayouts changes the plain RPC Reply to the Call of the Analysis a so that the server claims to
// be no metadata server and no data server of pNFS: in the eir_flags of EXCHANGE_ID it clears both
// flags and sets USE_NON_PNFS, because "The server MUST set one of the acceptable combinations of
// these bits". RFC 8881 Section 18.35.3. The Reply consists of parts, which begin and end between
// units or at the data of a READ. HideLayouts reports whether it has changed a part. It allocates
// only for a Reply of several parts.
//
//	EXCHANGE_ID4resok: clientid 8, sequenceid, flags, ...
//
// It changes nothing in a Reply to a signed Call, or without such a result. Of several EXCHANGE_IDs
// it changes the last one's result; clients send one.
func HideLayouts(parts [][]byte, a *ulb.Analysis) bool {
	if a.SessionOps&ulb.ExchangeID == 0 || !a.Reduce || len(parts) == 0 {
		return false
	}
	whole := parts[0]
	if len(parts) > 1 {
		whole = bytes.Join(parts, nil)
	}
	_, at, ok := walkReply4(whole, a, opExchangeID)
	if !ok || at == 0 {
		return false
	}
	at += 12
	flags := be(whole, at)
	if flags&(usePNFSMDS|usePNFSDS) == 0 {
		return false
	}
	for _, p := range parts {
		if at+4 <= len(p) {
			binary.BigEndian.PutUint32(p[at:], flags&^(usePNFSMDS|usePNFSDS)|useNonPNFS)
			return true
		}
		if at -= len(p); at < 0 {
			return false // the word is in two parts
		}
	}
	return false
}

// HideLayoutTypes changes the Call c, whose Analysis is a, so that its GETATTRs do not ask for
// fs_layout_type. The server then returns the other attributes, and a client that does not get this
// one uses no pNFS on the file system. It reports whether it has changed the Call. It does not
// allocate, and changes nothing in a signed Call.
func HideLayoutTypes(c *oncrpc.Call, a *ulb.Analysis) (changed bool) {
	if !a.LayoutTypes || !a.Reduce {
		return false
	}
	// Analyse has walked these arguments to their end.
	m := c.Message
	w := ulb.Walk{Cursor: xdr.NewCursor(m, c.Args)}
	w.Opaque()
	minor := w.Uint32()
	for count := w.Uint32(); count > 0 && w.OK(); count-- {
		number, pos := w.Uint32(), w.Pos()
		o := op(minor, number)
		if o == nil {
			break
		}
		o.args.Walk(&w)
		if number != opGetattr || !w.OK() || be(m, pos) < 2 {
			continue
		}
		if unit := be(m, pos+8); unit&layoutTypeBit != 0 {
			binary.BigEndian.PutUint32(m[pos+8:], unit&^layoutTypeBit)
			changed = true
		}
	}
	return changed
}
