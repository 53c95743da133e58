package nfs

// Program 100000, RFC 1833: the port mapper, version 2, and rpcbind, versions 3 and 4. The
// protocol does not bound the length of an address; no transport has an address of more than
// 256 octets.
var (
	portmap = compile(
		row{number: 1, name: "SET", class: non, args: "16", results: 4},
		row{number: 2, name: "UNSET", class: non, args: "16", results: 4},
		row{number: 3, name: "GETPORT", class: ro, args: "16", results: 4},
		row{number: 4, name: "DUMP", class: ro, results: unbounded},
		row{number: 5, name: "CALLIT", class: non, args: "12 O", results: unbounded},
	)

	rpcbind3 = compile(rpcbindRows("CALLIT")...)

	rpcbind4 = compile(append(
		rpcbindRows("BCAST"),
		row{number: 9, name: "GETVERSADDR", class: ro, args: rpcb, results: address},
		row{number: 10, name: "INDIRECT", class: non, args: "12 O", results: unbounded},
		row{number: 11, name: "GETADDRLIST", class: ro, args: rpcb, results: unbounded},
		row{number: 12, name: "GETSTAT", class: ro, results: unbounded},
	)...)
)

const (
	address = 4 + 256
	rpcb    = "8 O O O" // program, version; netid, address, owner
)

func rpcbindRows(callit string) []row {
	return []row{
		{number: 1, name: "SET", class: non, args: rpcb, results: 4},
		{number: 2, name: "UNSET", class: non, args: rpcb, results: 4},
		{number: 3, name: "GETADDR", class: ro, args: rpcb, results: address},
		{number: 4, name: "DUMP", class: ro, results: unbounded},
		{number: 5, name: callit, class: non, args: "12 O", results: unbounded},
		{number: 6, name: "GETTIME", class: ro, results: 4},
		{number: 7, name: "UADDR2TADDR", class: ro, args: "O", results: 4 + address},
		{number: 8, name: "TADDR2UADDR", class: ro, args: "4 O", results: address},
	}
}

// Program 100011, rquota, with the layouts of SunOS and Linux.
var (
	rquota1 = compile(
		row{number: 1, name: "GETQUOTA", class: ro, args: "O 4", results: 44},
		row{number: 2, name: "GETACTIVEQUOTA", class: ro, args: "O 4", results: 44},
	)
	rquota2 = compile(
		row{number: 1, name: "GETQUOTA", class: ro, args: "O 4 4", results: 44},
		row{number: 2, name: "GETACTIVEQUOTA", class: ro, args: "O 4 4", results: 44},
	)
)
