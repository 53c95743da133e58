package oncrpc

// Numbers of the programs that a proxy for NFS sees.
const (
	ProgramRPCBind   = 100000     // RFC 1833; version 2 is the port mapper
	ProgramNFS       = 100003     // RFC 1094, 1813, 7530, 8881
	ProgramMount     = 100005     // RFC 1094 Appendix A, RFC 1813 Appendix I
	ProgramRQuota    = 100011     // de facto
	ProgramNLM       = 100021     // X/Open XNFS, RFC 1813 Appendix II
	ProgramNSM       = 100024     // X/Open XNFS
	ProgramNFSACL    = 100227     // de facto; named in RFC 8267 Section 5.2
	ProgramCCP       = 100417     // RFC 5666 Section 6, dropped by RFC 8166
	ProgramCallbacks = 0x40000000 // NFSv4 callbacks of Linux; RFC 8881 leaves the number to the client
)

// programs is searched by number and by name. It is short and searched at start-up
// only, so it needs no map.
var programs = [...]struct {
	number uint32
	name   string
}{
	{ProgramRPCBind, "rpcbind"},
	{ProgramNFS, "nfs"},
	{ProgramMount, "mount"},
	{ProgramRQuota, "rquota"},
	{ProgramNLM, "nlm"},
	{ProgramNSM, "nsm"},
	{ProgramNFSACL, "nfsacl"},
	{ProgramCCP, "ccp"},
}

// ProgramName returns the short name of a program, or "" when it has none here.
func ProgramName(program uint32) string {
	for i := range programs {
		if programs[i].number == program {
			return programs[i].name
		}
	}
	return ""
}

// ProgramByName returns the number of the program with a short name: rpcbind,
// nfs, mount, rquota, nlm, nsm, nfsacl, ccp. ok is false for any other.
func ProgramByName(name string) (program uint32, ok bool) {
	for i := range programs {
		if programs[i].name == name {
			return programs[i].number, true
		}
	}
	return 0, false
}
