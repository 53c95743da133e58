// Package authorise says whether a Call may pass a listener, as which user, and to which upstream a rule sends it.
//
// # Operation
//
// A listener with rules, or that maps users, has a [Policy]. It asks the policy about each Call that it has parsed and
// analysed, before it routes the Call: a [Cache] for each connection remembers which kinds of Calls pass as they are, and
// for all others makes a [Decision] with a rules.Judge. The caller acts on the decision. A Call that is denied is
// answered by the bridge ([AppendDenial]), with one exception: a COMPOUND that uses a slot of a session can only be
// answered by the server, and goes there without the operation that is denied ([Cuts]). No rule sees the AUTH_TLS probe,
// which is about the connection.
//
// # Ownership
//
// A Policy is constant once it is in force, apart from the part that each loop has for itself: its judge, and when each
// rule has matched. A Cache belongs to the loop of its connection. Only Calls that are mapped are changed, in place.
//
// # Errors
//
// A credential that cannot be read makes a Decision malformed, and the Call is rejected. [New] reports rules that cannot
// be compiled.
package authorise
