// Package lab makes test beds of network namespaces on this machine.
//
//	Wire -> Lab{Pairs} -> a run between the ends -> Close
//	List: which stand;  Clean: remove what killed processes have left
//
// Namespaces are named as ip-netns(8) names them, /run/netns/pktgen-PID-..., so
// that its commands work on them. Their owner holds a lock (flock) on each; one
// that nobody holds belongs to a process that is dead. All is done by netlink
// and mount; no program is run. Without privilege, Reexec runs the whole process
// again in a user namespace of its own, where it may do all this.
package lab
