// Package cpuload tells what the host's CPUs did between two readings: how much of
// their time went where, and what their network backlogs dropped. One CPU at 100 %
// is the limit of a path, though the average of all is 30 %.
//
//	before := Read(/proc) ... after := Read(/proc) -> after.Sub(before) -> Shares -> Busiest
//
// Sources: /proc/stat (proc_stat(5), Linux fs/proc/stat.c) and
// /proc/net/softnet_stat (Linux net/core/net-procfs.c). Values only; safe from any
// goroutine.
package cpuload
