package status

// The classes of Replies in Operation.Statuses. The first group are those of NFS, MOUNT, NLM and NFSACL,
// and the second those of RPC, in which no procedure was executed.
const (
	ClassOK        = StatusOK
	ClassEncrypted = "encrypted" // RPC has succeeded, and krb5p hides the rest
	ClassNoEnt     = "noent"     // there is no such file
	ClassExist     = "exist"     // there is such a file, or the directory is not empty
	ClassLocked    = "locked"    // somebody else has a lock or has denied a share
	ClassAccess    = "access"    // permission denied, read-only, or another security flavor is wanted
	ClassStale     = "stale"     // the server does not know the filehandle any more
	ClassDelay     = "delay"     // NFS4ERR_DELAY, NFS3ERR_JUKEBOX: try again later
	ClassNoSpace   = "nospc"     // no space, or no quota
	ClassIO        = "io"        // the server cannot reach its storage
	ClassInvalid   = "inval"     // the arguments make no sense for this file
	ClassNotSupp   = "notsupp"   // the server does not know the operation or the attribute
	ClassGrace     = "grace"     // the server has restarted, and locks can only be reclaimed, or no longer
	ClassState     = "state"     // the server does not know, or has ended, the client's open, lock or lease
	ClassSession   = "session"   // a session or its slot is not as the client believes
	ClassFault     = "fault"     // the server has an error of its own or lacks resources
	ClassOther     = "other"     // another status

	ClassProgUnavail  = "prog_unavail"
	ClassProgMismatch = "prog_mismatch"
	ClassProcUnavail  = "proc_unavail"
	ClassGarbageArgs  = "garbage_args"
	ClassSystemErr    = "system_err"
	ClassAuthError    = "auth_error"
	ClassRPCMismatch  = "rpc_mismatch"
	ClassMalformed    = "malformed" // the Reply is none
)

// Failure reports whether Replies of the class say that something is wrong. Others answer an ordinary
// question, such as whether a file is there.
func Failure(class string) bool {
	switch class {
	case ClassOK, ClassEncrypted, ClassNoEnt, ClassExist, ClassLocked:
		return false
	}
	return true
}
