// Package doctor looks at a host and says what keeps the bridge from RDMA there, and what to
// type. It reads sysfs and proc, asks the kernel's RDMA netlink and uverbs interfaces, and
// connects to upstreams as the bridge itself would. It changes nothing.
//
// # Operation
//
// [Examine] reads a [Host] below a root directory. The Host is what is there, without a
// judgement. Host.Judge compares it with a [Need] and adds a [Finding] for each thing that is
// wrong. [Prober] connects to endpoints. A [Report] has all of that, as text and as JSON.
//
// # Bounds
//
// The files may have any contents, and so may the answers of the kernel: a tree reads at most
// maxFile octets of a file and at most maxEntries names of a directory, netlink at most
// maxNetlink octets, and each parser accepts any input. A driver that hangs makes a read hang, so
// Examine runs on a goroutine of its own and is given up after a time.
package doctor
