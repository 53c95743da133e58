package nfs

import "fmt"

// nfsStats names the statuses of NFS up to 9999, which are the same in versions 3 and 4:
// RFC 1094, RFC 1813 and RFC 8881 Section 13.1.
var nfsStats = sparse(map[uint32]string{
	0: "OK", 1: "PERM", 2: "NOENT", 5: "IO", 6: "NXIO", 13: "ACCESS", 17: "EXIST", 18: "XDEV", 19: "NODEV", 20: "NOTDIR",
	21: "ISDIR", 22: "INVAL", 27: "FBIG", 28: "NOSPC", 30: "ROFS", 31: "MLINK", 63: "NAMETOOLONG", 66: "NOTEMPTY",
	69: "DQUOT", 70: "STALE", 71: "REMOTE", 99: "WFLUSH",
})

// nfs3Stats and nfs4Stats name those from 10001 on: RFC 1813 Section 2.6, RFC 8881
// Section 13.1, RFC 7862 Section 11.1, RFC 8276 Section 8.5.
var (
	nfs3Stats = []string{"BADHANDLE", "NOT_SYNC", "BAD_COOKIE", "NOTSUPP", "TOOSMALL", "SERVERFAULT", "BADTYPE", "JUKEBOX"}
	nfs4Stats = []string{
		"BADHANDLE", "", "BAD_COOKIE", "NOTSUPP", "TOOSMALL", "SERVERFAULT", "BADTYPE", "DELAY", "SAME", "DENIED", // 10001
		"EXPIRED", "LOCKED", "GRACE", "FHEXPIRED", "SHARE_DENIED", "WRONGSEC", "CLID_INUSE", "RESOURCE", "MOVED", "NOFILEHANDLE", // 10011
		"MINOR_VERS_MISMATCH", "STALE_CLIENTID", "STALE_STATEID", "OLD_STATEID", "BAD_STATEID", "BAD_SEQID", "NOT_SAME", "LOCK_RANGE", "SYMLINK", "RESTOREFH", // 10021
		"LEASE_MOVED", "ATTRNOTSUPP", "NO_GRACE", "RECLAIM_BAD", "RECLAIM_CONFLICT", "BADXDR", "LOCKS_HELD", "OPENMODE", "BADOWNER", "BADCHAR", // 10031
		"BADNAME", "BAD_RANGE", "LOCK_NOTSUPP", "OP_ILLEGAL", "DEADLOCK", "FILE_OPEN", "ADMIN_REVOKED", "CB_PATH_DOWN", "BADIOMODE", "BADLAYOUT", // 10041
		"BAD_SESSION_DIGEST", "BADSESSION", "BADSLOT", "COMPLETE_ALREADY", "CONN_NOT_BOUND_TO_SESSION", "DELEG_ALREADY_WANTED", "BACK_CHAN_BUSY", "LAYOUTTRYLATER", "LAYOUTUNAVAILABLE", "NOMATCHING_LAYOUT", // 10051
		"RECALLCONFLICT", "UNKNOWN_LAYOUTTYPE", "SEQ_MISORDERED", "SEQUENCE_POS", "REQ_TOO_BIG", "REP_TOO_BIG", "REP_TOO_BIG_TO_CACHE", "RETRY_UNCACHED_REP", "UNSAFE_COMPOUND", "TOO_MANY_OPS", // 10061
		"OP_NOT_IN_SESSION", "HASH_ALG_UNSUPP", "", "CLIENTID_BUSY", "PNFS_IO_HOLE", "SEQ_FALSE_RETRY", "BAD_HIGH_SLOT", "DEADSESSION", "ENCR_ALG_UNSUPP", "PNFS_NO_LAYOUT", // 10071
		"NOT_ONLY_OP", "WRONG_CRED", "WRONG_TYPE", "DIRDELEG_UNAVAIL", "REJECT_DELEG", "RETURNCONFLICT", "DELEG_REVOKED", "PARTNER_NOTSUPP", "PARTNER_NO_AUTH", "UNION_NOTSUPP", // 10081
		"OFFLOAD_DENIED", "WRONG_LFS", "BADLABEL", "OFFLOAD_NO_REQS", "NOXATTR", "XATTR2BIG", // 10091
	}
)

// sparse makes a table from a map.
func sparse(m map[uint32]string) []string {
	var t []string
	for v, s := range m {
		for uint32(len(t)) <= v {
			t = append(t, "")
		}
		t[v] = s
	}
	return t
}

// StatusName names a status of a version of NFS, such as NFS3ERR_STALE or NFS4_OK.
func StatusName(version, v uint32) string {
	prefix := map[uint32]string{2: "NFSERR_", 3: "NFS3ERR_", 4: "NFS4ERR_"}[version]
	table, i := nfsStats, v
	if v > 10000 {
		i = v - 10001
		if table = nfs3Stats; version == 4 {
			table = nfs4Stats
		}
	}
	switch {
	case v == 0 && version == 2:
		return "NFS_OK"
	case v == 0:
		return fmt.Sprintf("NFS%d_OK", version)
	case v == 13 && version < 4:
		return prefix + "ACCES"
	case uint64(i) < uint64(len(table)) && table[i] != "":
		return prefix + table[i]
	}
	return fmt.Sprintf("status %d", v)
}
