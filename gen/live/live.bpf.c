//go:build ignore

// The sender in the kernel: the program that BPF_PROG_RUN runs over live frames
// (Documentation/bpf/bpf_prog_run.rst), and the one that hears what became of them.
//
// A run of the kernel is of BATCH frames. The first of them reads the clock and
// says how many are due; each of these gets its headers and its stamp and goes to
// the port's bulk queue, which the kernel hands to the driver at the end of the
// batch: all at once, for BATCH is no more than the queue holds. The driver takes
// the first frames of it, or all. Those it refuses are stamped again in the next
// batch with the same numbers, so that the numbers on the wire have no gaps.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define BATCH 16       // frames; DEV_MAP_BULK_SIZE (include/net/xdp.h)
#define MAX_HEADER 16  // words of 8 octets
#define LATE_NS 1000000

// What differs from frame to frame stands at fixed places, octets from the
// destination MAC; 0: there is none.
const volatile __u32 length;       // of a frame, without FCS
const volatile __u32 header_words; // of 8 octets, of header that are copied into each frame
const volatile __u32 stamp_at, port_at, checksum_at;
const volatile __u32 first_port, ports;
const volatile __u64 header[MAX_HEADER];
const volatile __s64 epoch_ns; // CLOCK_REALTIME less CLOCK_MONOTONIC

// Pace: frames due of all workers after t ns = t * pace_frames / pace_ns;
// 0: as fast as it goes.
const volatile __u64 pace_frames, pace_ns;
const volatile __u32 workers;

volatile __u64 start_ns; // monotonic; 0: not yet
volatile __u64 end_ns;
volatile __u32 stop;

// A worker is a CPU: no other frames run there while it runs. Its first part is
// written before the run, the second by the programs.
struct worker {
	__u64 limit;  // frames
	__u64 sum;    // of the checksummed octets that no edit changes
	__u32 index;  // of workers
	__u16 stream; // as it stands in the frame
	__u16 pad;

	__u64 sent;    // frames that the driver took: the next sequence number
	__u64 refused; // attempts that it did not take
	__u64 batches;
	__u64 full; // batches of which it took none or not all
	__u64 now_ns, first_ns, last_ns;
	__u64 base_ns, base_frames; // of the pace: whole periods since the start
	__u64 late, late_max_ns;
	__u64 due_sum; // over now's time and the sum
	__u32 at;      // frame of the batch
	__u32 due;     // frames of the batch
	__u32 flying;  // frames of the batch that are in the bulk queue
	__u32 flow;    // of the batch's next frame
	__s64 error;   // of the driver, at its last refusal
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); // as many as there are CPUs
	__type(key, __u32);
	__type(value, struct worker);
} by_cpu SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} port SEC(".maps");

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define be16(v) (v)
#define be32(v) (v)
#define be64(v) (v)
#else
#define be16(v) __builtin_bswap16(v)
#define be32(v) __builtin_bswap32(v)
#define be64(v) __builtin_bswap64(v)
#endif

// frames_due is how many of this worker's frames are due by now.
static __always_inline __u64 frames_due(struct worker *w, __u64 now)
{
	__u64 elapsed, total;

	if (w->base_ns == 0)
		w->base_ns = start_ns;
	elapsed = now - w->base_ns;
	if (elapsed >= pace_ns) {
		w->base_ns += pace_ns;
		w->base_frames += pace_frames;
		elapsed -= pace_ns;
	}
	// The frame of instant 0 is due at 0.
	total = w->base_frames + elapsed * pace_frames / pace_ns + 1;
	if (workers == 1)
		return total;
	return (total + workers - 1 - w->index) / workers;
}

// begin says how many frames the batch has.
static __always_inline void begin(struct worker *w)
{
	__u64 now = bpf_ktime_get_ns(), due, left;

	if (w->flying) { // the port was down, or the frame too long for it
		w->refused += w->flying;
		w->full++;
		w->flying = 0;
	}
	w->batches++;
	w->due = 0;
	left = w->limit - w->sent;
	if (stop || !left || !start_ns || now < start_ns || now >= end_ns)
		return;
	if (left > BATCH)
		left = BATCH;
	if (pace_frames) {
		due = frames_due(w, now);
		due = due > w->sent ? due - w->sent : 0;
		if (left > due)
			left = due;
		if (w->now_ns && now - w->now_ns > LATE_NS) {
			w->late++;
			if (now - w->now_ns > w->late_max_ns)
				w->late_max_ns = now - w->now_ns;
		}
	}
	w->now_ns = now;
	if (stamp_at) {
		__u64 real = now + epoch_ns;

		w->due_sum = w->sum + (real >> 32) + (__u32)real;
	} else {
		w->due_sum = w->sum;
	}
	if (ports > 1)
		w->flow = w->sent % ports;
	w->due = left;
}

SEC("xdp")
int send(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 cpu = bpf_get_smp_processor_id(), i, at;
	struct worker *w = bpf_map_lookup_elem(&by_cpu, &cpu);
	__u64 sum, n;

	if (!w)
		return XDP_DROP;
	at = w->at;
	if (at == 0)
		begin(w);
	w->at = (at + 1) % BATCH;
	if (at >= w->due || data + length > end)
		return XDP_DROP;

	// The page comes back from whoever received it, perhaps changed.
#pragma unroll
	for (i = 0; i < MAX_HEADER; i++)
		if (i < header_words)
			((__u64 *)data)[i] = header[i];
	n = w->sent + at;
	sum = w->due_sum;
	if (stamp_at) {
		void *stamp = data + stamp_at;

		*(__u64 *)stamp = *(__u64 *)((void *)header + stamp_at);
		*(__u16 *)(stamp + 4) = w->stream;
		*(__u32 *)(stamp + 6) = be32((__u32)n);
		*(__u64 *)(stamp + 10) = be64(w->now_ns + epoch_ns);
		sum += (__u32)n;
	}
	if (port_at) {
		__u32 p = first_port + w->flow;

		if (++w->flow == ports)
			w->flow = 0;
		*(__u16 *)(data + port_at) = be16((__u16)p);
		sum += p;
	}
	if (checksum_at) {
		__u16 c;

		sum = (sum >> 32) + (__u32)sum;
		sum = (sum >> 16) + (sum & 0xffff);
		sum = (sum >> 16) + (sum & 0xffff);
		sum = (sum >> 16) + (sum & 0xffff);
		c = ~sum;
		if (c == 0)
			c = 0xffff;
		*(__u16 *)(data + checksum_at) = be16(c);
	}
	w->flying = at + 1;
	return bpf_redirect_map(&port, 0, XDP_DROP);
}

// try sends the frame as it is.
SEC("xdp")
int try(struct xdp_md *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct worker *w = bpf_map_lookup_elem(&by_cpu, &cpu);

	if (!w)
		return XDP_DROP;
	w->flying = 1;
	return bpf_redirect_map(&port, 0, XDP_DROP);
}

// xdp_devmap_xmit: from, to, sent, refused, error (include/trace/events/xdp.h).
SEC("raw_tp/xdp_devmap_xmit")
int sent(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct worker *w = bpf_map_lookup_elem(&by_cpu, &cpu);
	__u64 taken = ctx->args[2];

	if (!w || !w->flying)
		return 0; // of others: a batch of ours is not interrupted
	w->flying = 0;
	if ((int)ctx->args[3]) {
		w->refused += (__u32)ctx->args[3];
		w->full++;
		w->error = (int)ctx->args[4];
	}
	if (taken) {
		if (!w->first_ns)
			w->first_ns = w->now_ns;
		w->last_ns = w->now_ns;
		w->sent += (__u32)taken;
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
const volatile char source_sum[] = SOURCE_SUM;
