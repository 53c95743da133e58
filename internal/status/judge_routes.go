package status

import (
	"fmt"
	"strings"
)

// missed says what clients of NFSv3 miss without a program.
var missed = map[string]string{
	"mount":  "so that they cannot mount with NFSv3",
	"nlm":    "so that NFSv3 has no locks: `mount` needs `nolock`",
	"nfsacl": "so that NFSv3 has no ACLs; nothing else misses it",
}

// routes judges the listeners that clients ask for programs beside NFS, and that have no route for them, or one to a server
// without. A server that lacks NFSACL may be meant so.
func (j *judge) routes() {
	var before []Operation
	if j.before != nil {
		before = j.before.Operations
	}
	done := make(map[[2]string]bool) // listener and program, which has several procedures and versions
	for o, old := range Beside(j.now.Operations, before, (*Operation).Key) {
		key := [2]string{o.Listener, o.Program}
		asked := o.Statuses[ClassProgUnavail]
		// A client that cannot mount tries for two minutes, and its user looks later. Linux asks for NFSACL at each mount.
		recent := j.before != nil && asked > old.Statuses[ClassProgUnavail]
		if asked == 0 || missed[o.Program] == "" || o.Program == "nfsacl" && (!recent || o.Upstream != "") || done[key] || j.hides(o.Listener) {
			continue
		}
		done[key] = true
		severity := Notice
		if recent && o.Program != "nfsacl" {
			severity = Warning
		}
		name := strings.ToUpper(o.Program)
		why := "which has no route there"
		if o.Upstream != "" {
			why = fmt.Sprintf("and these Calls go to upstream %s, whose server has no %s at its port", o.Upstream, name)
		}
		advice := fmt.Sprintf("Add to the listener `routes: [{program: %s, upstream: %s}]`. Over TCP the server has %s at a port of its own: `rpcinfo -p SERVER`.", o.Program, j.upstreamFor(o.Program), name)
		if o.Program == "nlm" {
			advice = "Add to the file `rpcbind: {address: \"0.0.0.0:111\"}` and `nlm: {address: \"0.0.0.0:4045\", server: SERVER}`: docs/locks.md."
		}
		j.add(severity, CodeNoRoute, o.Listener, fmt.Sprintf("Clients ask listener %s for %s, %s: they are answered PROG_UNAVAIL, %s.", o.Listener, name, why, missed[o.Program]), advice)
	}
}

// hides reports whether a rule of the listener answers PROG_UNAVAIL, which is then what the operator wants.
func (j *judge) hides(listener string) bool {
	for i := range j.now.Listeners {
		if l := &j.now.Listeners[i]; l.Name == listener {
			for _, r := range l.Rules {
				if r.Verdict == "deny" && strings.Contains(r.Effect, "PROG_UNAVAIL") {
					return true
				}
			}
		}
	}
	return false
}

// upstreamFor returns the upstream whose name has the program, or a word for one.
func (j *judge) upstreamFor(program string) string {
	for i := range j.now.Upstreams {
		if name := j.now.Upstreams[i].Name; strings.Contains(strings.ToLower(name), program) {
			return name
		}
	}
	return "UPSTREAM"
}
