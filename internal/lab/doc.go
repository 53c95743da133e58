// Package lab runs the bridge, as a program, between the Linux kernel's NFS client and server, in the guest of
// deploy/lab. It has only tests, and all but one have the build tag lab:
//
//	the guest's NFS client -- TCP --> rdmabridge on this host -- iWARP --> the guest's knfsd
//	                                      '---- MOUNT over TCP ---> the guest's mountd
//
// and the other way round, as TestLabRDMA says. TestPair needs no guest: it has keepalived, and clients and a server of
// its own.
//
// Each TestLab function has a guest of its own and can run beside the others, as a process of
// its own: TestMain says why. RDMABRIDGE_LAB=1 promises that deploy/lab/install.sh was
// run; without it the tests skip. With RDMABRIDGE_LAB_DIRECT=1 the client mounts the
// guest's own server over plain TCP: what fails then is not the bridge's doing.
//
// The tests know no package of the bridge but testkit. They see of it what its users see: its commands, its log, its
// metrics and the JSON that it prints.
package lab
