// Package nlmtest has the hosts that take part in locks of NFSv3: a Server with the lock manager and the status monitor
// of a file server, and Clients that lock as Linux, FreeBSD and macOS do. Each is an address of 127.0.0.0/8 with an
// rpcbind of its own. All encode the messages of NLM and NSM by themselves, so that they and package nlm cannot have
// the same mistake.
//
// What the hosts do was read in the sources of the systems that they imitate:
//
//   - Linux sends LOCK over the transport of its mount, with a cookie of 4 octets, svid from 0 on, and "svid@host" as
//     oh. The client takes a GRANTED or GRANTED_MSG whose source is the address that it mounted, and whose file handle,
//     svid and range are those of a LOCK that waits. It answers all others with LCK_DENIED. The server sends GRANTED_MSG
//     again until it gets GRANTED_RES, and keeps the lock also if that says LCK_DENIED. It answers UNLOCK and CANCEL
//     with LCK_DENIED_GRACE_PERIOD, too, during its grace period.
//   - FreeBSD sends LOCK of version 4 over UDP, with a cookie of 4 octets, the process as svid, and "svid@host" as oh.
//   - macOS sends LOCK_MSG of version 4 over UDP (version 1 for a mount of NFSv2), with a cookie of 8 octets, the process
//     as svid, and the 16 octets of lockd's own process and start as oh. It ignores the Reply. An answer belongs to the
//     LOCK with the same cookie; without one the kernel sends the LOCK again with that cookie. FreeBSD before version 8
//     did the same.
package nlmtest
