//go:build ignore

// Finds the frames that carry a stamp and gives them to the socket of their queue;
// what is not ours, or has no socket, goes on to the kernel. Which are ours is
// for frames.ParseStamp to say, and a test holds this to it.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define be16(v) (v)
#define be32(v) (v)
#else
#define be16(v) __builtin_bswap16(v)
#define be32(v) __builtin_bswap32(v)
#endif

#define MAGIC_TEST 0x9e37
#define MAGIC_CLOSING 0x9e38
#define MAGIC_RETURNED 0x9e39
#define MAGIC_KERNEL 0xbe9be955 // struct pktgen_hdr, net/core/pktgen.c

#define MAX_TAGS 4
#define MAX_HEADERS 8

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1); // as many as there are queues
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

#define LOAD16(p) be16(*(__u16 *)(p))
#define LOAD32(p) be32(*(__u32 *)(p))

// What headers returns, for a global function returns a number.
#define PACK(l3, l4, payload, end, proto, v6, partial) \
	((__u64)(l3) | (__u64)(l4) << 6 | (__u64)(payload) << 20 | (__u64)(end) << 34 | \
	 (__u64)(proto) << 52 | (__u64)(v6) << 60 | (__u64)(partial) << 61)

// headers finds the payload (frames.ParseStamp); 0 where there is none. Global, to
// be verified once and apart.
__noinline __u64 headers(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 off = 14, l3, tags, i, total, end, n, v6 = 0, partial = 0;
	__u16 type;
	__u8 *h, next;

	if (data + 58 > data_end)
		return 0;
	type = LOAD16(data + 12);
#pragma unroll
	for (tags = 0; tags < MAX_TAGS; tags++) {
		if (type != 0x8100 && type != 0x88a8 && type != 0x9100)
			break;
		off += 4;
		type = LOAD16(data + off - 2);
	}
	l3 = off;
	h = data + off;
	if (type == 0x0800) {
		__u32 length, fragment;

		if (h + 20 > (__u8 *)data_end)
			return 0;
		length = (h[0] & 0xf) * 4;
		total = LOAD16(h + 2);
		fragment = LOAD16(h + 6);
		if (h[0] >> 4 != 4 || length < 20 || total < length || (fragment & 0x1fff))
			return 0;
		partial = !!(fragment & 0x2000);
		end = off + total;
		next = h[9];
		off += length;
	} else if (type == 0x86dd) {
		if (h + 40 > (__u8 *)data_end)
			return 0;
		if (h[0] >> 4 != 6)
			return 0;
		v6 = 1;
		next = h[6];
		off += 40;
		end = off + LOAD16(h + 4);
		for (i = 0; i < MAX_HEADERS; i++) {
			if (next != 0 && next != 60 && next != 43 && next != 51 && next != 44)
				break;
			if (off > 4096)
				return 0;
			h = data + off;
			if (h + 8 > (__u8 *)data_end || off + 8 > end)
				return 0;
			n = h[1] * 8 + 8;
			if (next == 43) {
				if (h[3])
					partial = 1;
			} else if (next == 51) {
				n = h[1] * 4 + 8;
			} else if (next == 44) {
				if (LOAD16(h + 2) & 0xfff8)
					return 0;
				if (h[3] & 1)
					partial = 1;
				n = 8;
			}
			if (off + n > end)
				return 0;
			next = h[0];
			off += n;
		}
	} else {
		return 0;
	}
	if (off > 8192)
		return 0;
	h = data + off;
	n = 8;
	if (h + 8 > (__u8 *)data_end || off + 8 > end)
		return 0;
	switch (next) {
	case 17:
		break;
	case 6:
		if (h + 20 > (__u8 *)data_end)
			return 0;
		n = (h[12] >> 4) * 4;
		if (n < 20)
			return 0;
		break;
	case 1:
		if (v6 || (h[0] != 8 && h[0] != 0))
			return 0;
		break;
	case 58:
		if (!v6 || (h[0] != 128 && h[0] != 129))
			return 0;
		break;
	default:
		return 0;
	}
	return PACK(l3, off, off + n, end, next, v6, partial);
}

// payload is where the payload begins, and ends; 0 where there is none. Where the
// headers are the usual ones it says so at once.
static __always_inline __u32 payload(struct xdp_md *ctx, __u32 *end)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u64 found;

	if (data + 58 > data_end)
		return 0;
	if (LOAD16(data + 12) == 0x0800 && *(__u8 *)(data + 14) == 0x45 && *(__u8 *)(data + 23) == 17 &&
	    !(LOAD16(data + 20) & 0x3fff)) {
		*end = 14 + LOAD16(data + 16);
		return 42;
	}
	found = headers(ctx);
	*end = found >> 34 & 0x3ffff;
	return found >> 20 & 0x3fff;
}

static __always_inline int ours(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end, *b;
	__u32 end = 0, off = payload(ctx, &end);

	if (!off || end > data_end - data)
		return 0;
	b = data + off;
	if (b + 16 > data_end || off + 16 > end)
		return 0;
	switch (LOAD16(b)) {
	case MAGIC_TEST:
	case MAGIC_CLOSING:
		return off + 18 <= end;
	case MAGIC_RETURNED:
		return off + 34 <= end;
	}
	return LOAD32(b) == MAGIC_KERNEL;
}

SEC("xdp")
int redirect(struct xdp_md *ctx)
{
	__u32 queue = ctx->rx_queue_index;
	void *data, *meta;

	if (!ours(ctx))
		return XDP_PASS;
	if (!bpf_map_lookup_elem(&sockets, &queue))
		return XDP_PASS;
	// When it was received, in front of the frame: where the driver leaves no room
	// for that, there stays what user space has put there.
	if (!bpf_xdp_adjust_meta(ctx, -(int)sizeof(__u64))) {
		data = (void *)(long)ctx->data;
		meta = (void *)(long)ctx->data_meta;
		if (meta + sizeof(__u64) <= data)
			*(__u64 *)meta = bpf_ktime_get_ns();
	}
	return bpf_redirect_map(&sockets, queue, XDP_PASS);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
const volatile char source_sum[] = SOURCE_SUM;
