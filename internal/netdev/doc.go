// Package netdev is the network interfaces of this machine: which one is meant,
// in which network namespace, what it is, and what it has counted.
//
//	ParseRef -> Ref -> Lookup -> Info         once, set-up
//	Ref.Enter                                 a worker's thread, for good
//	Open -> Port -> Counters, Watch -> Close  for the length of a run
//
// Everything is asked for by rtnetlink and sysfs; no program is run. A Ref and
// an Info are values; a Port is safe from any goroutine.
package netdev
