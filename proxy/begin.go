package proxy

// The road of a Call begins here. Each stage is a method in a file of its name. It returns false when it has ended the
// Call's way: it has answered the Call, has closed the client's connection, or keeps the Call until another one has
// ended.
//
//	parse      what is it? Its header is walked, and its program's binding analyses its arguments.
//	authorise  may its client do that, and as whom?
//	route      which upstream is it for?
//	bind       on which connection does it go, what will it cost, and what does the way there change in it?
//	identify   which XID does the upstream see, and is it on its way already?
//	submit     it waits for a credit in the pool of its upstream.

// begin takes the Call in c.rdma.Message as far as the pool of its upstream. It reports false when the message is no
// RPC Call, and has closed the connection then.
func (f *front) begin(c *call) (isCall bool) {
	f.loop.run = run{}
	isCall, ok := f.parse(c)
	if !ok {
		return isCall
	}
	s := f.settings()
	ruled, ok := f.authorise(c, s)
	if !ok {
		return true
	}
	u := f.route(c, s, ruled)
	if u != nil && f.bind(c, u) && f.identify(c) {
		f.submit(c)
	}
	return true
}
