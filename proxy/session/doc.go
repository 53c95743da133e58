// Package session answers on which connection an NFSv4.1 client lives, and where a callback goes.
//
// # Operation
//
// [Lanes] are the connections of one upstream that clients stay with. A [Client] is a client connection that has a
// [Lane], which it shares with others ([Lanes.Assign]) or has for itself ([Lanes.Pin]). A [Conn] is one connection of a
// lane. It carries the Calls of the lane's clients, and brings the reverse Calls of the server to them
// ([Conn.CallBack]). A [Table] knows which client each session can be called on, and the bounds on Replies of the
// session. It learns from the Calls and Replies of clients ([Client.Replied]).
//
// The file state.go has these types and says who may touch which field.
//
// # Ownership
//
// [Lanes] and [Table] are safe for concurrent use. The mutex of Lanes is taken before those of pools, and that of Table
// under no other. A [Client] belongs to the loop of the client's connection, and a [Conn] to that of the server's,
// except where their methods say otherwise. A [Call] belongs to the goroutine that owns the Call whose record it is.
//
// # Errors
//
// The package closes a client's connection with one of its errors, and never answers a Call of a client.
package session
