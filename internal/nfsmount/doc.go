// Package nfsmount mounts an export through a bridge of this host that is there for such mounts alone: one for each
// storage, started by the first mount, ended by itself after the last umount.
//
// # Operation
//
// [Parse] reads what mount(8) hands to a mount helper. [Request.Mount] finds the bridge of the storage or starts it, waits
// until it is connected to the storage, and mounts from it by mount(2). The source of the mount is the storage as the
// administrator wrote it, so that df and "mount -a" know it; only the option addr leads to the bridge. MOUNT of NFSv3 does
// not pass through the bridge: the kernel asks the storage itself.
//
// # State
//
// There is none but the bridge's own. systemd knows the bridge as the transient service [Bridge.Unit]. Without systemd it
// is a process of its own. Both listen at [Bridge.Socket], where a later mount finds them, with the port. A bridge that
// starts again while there are mounts has the port that the kernel shows for them.
//
// # Errors
//
// Every error is an [Error], whose code is an exit code of mount(8).
package nfsmount
