// Package nfs4test simulates NFSv4.1 and NFSv4.2 hosts: a server of sessions that behaves as
// Linux' nfsd does, and any number of clients that behave as Linux' do. They speak NFS only as far
// as sessions need it, and every Reply and every callback is checked.
//
// # Server
//
// A [Server] listens over TCP and over RPC-over-RDMA. It creates sessions, binds connections to
// them, has a slot table with a reply cache, and calls its clients back, each on the connection that
// carries the session's back channel. It closes the oldest connection when there are more than it
// may have.
//
// # Clients
//
// [Clients] are many hosts in one process. A client that has nothing to do costs a socket and a
// timer but no goroutine. A client that loses its connection makes another one when it has something
// to send, goes on with its session, and repairs the back channel when the flags of a SEQUENCE tell
// it to.
package nfs4test
