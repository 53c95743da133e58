// Package ibverbs is a fabric provider over the RDMA devices of the kernel: rdma-core's libibverbs
// and librdmacm, for InfiniBand, RoCE and iWARP adapters, and for the software devices rxe and siw.
//
// The provider is compiled with the build tag ibverbs, because it needs cgo. Without the tag, New
// returns ErrUnavailable. With it, rdma-core is opened when the first provider is made, so that the
// program also runs on hosts without rdma-core.
//
// # Operation
//
//	Post*  -> arrays of Work Requests -> Flush, one cgo call -> the device
//	device -> completion queue -> one event for many -> the loop polls it, one cgo call for many
//
// A conn belongs to one loop: it alone posts to the queue pair and polls the completion queue. So
// no two threads post to one queue pair. libsiw would hold a spinlock across a system call then.
//
// An engine has the connection manager's channel, and a domain, for each device, the protection
// domain and the channel of completion events. Each of the two channels has one goroutine, which
// waits in the runtime's poller and posts to loops. There is no thread per connection. Engine and
// domains exist while the provider has a connection or a listener.
//
// # Memory
//
// The memory of messages is registered once per domain, extent by extent, when an extent is first
// used, and for local use only. Memory that the peer may access is exposed for one Call: by a memory
// window or by a registration of its own, as Options.Exposure says. Memory outside the arena is registered for the Work
// Request that uses it; only tests post such memory.
//
// # Divergences
//
// These promises of package fabric a device cannot keep; fabrictest knows each by name.
//
//   - A handle that is a registration is valid on all connections of its Provider, because its key
//     belongs to a protection domain. An upstream has a Provider of its own, so these are
//     connections to its servers. Only connections to servers have handles.
//   - With rxe, a peer can invalidate handles of other connections that are windows.
//   - The offsets of siw's handles are addresses.
//   - InfiniBand and RoCE pad private data with zeros, and carry at most 56 octets to the listener
//     and 196 back.
//
// A peer may invalidate handles that are windows, on drivers that the table trusts:
// fabric.RemoteInvalidator.
//
// # Errors
//
// A Work Request that fails ends its connection. Which Work Request it was does not say what the
// peer did, so the ULP gets the device's words, wrapped.
package ibverbs
