// Package testkit holds what the tests of several packages share: octets in hex, octets
// that name their place, RPC records, waiting, addresses, and the check for leaks that
// each TestMain does. It imports no other package of the project, so that every package
// can use it. The sub-package proxytest has RPC messages, clients and servers, and puts a
// proxy between them. nfs4test simulates a server of NFSv4.1 sessions and many clients.
// nlmtest simulates the hosts that take part in locks of NFSv3. tshark decodes captures.
package testkit
