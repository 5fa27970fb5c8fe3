//go:build ignore

// The sink in the driver: counts the frames that carry a stamp, and drops them;
// what is not ours goes on to the kernel. It does to each frame what the package
// sink does (frames.ParseStamp, stats.SeqWindow, stats.Latency, stats.Jitter),
// and is held to it by a test.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define be16(v) (v)
#define be32(v) (v)
#define be64(v) (v)
#else
#define be16(v) __builtin_bswap16(v)
#define be32(v) __builtin_bswap32(v)
#define be64(v) __builtin_bswap64(v)
#endif

#define MAGIC_TEST 0x9e37
#define MAGIC_CLOSING 0x9e38
#define MAGIC_KERNEL 0xbe9be955 // struct pktgen_hdr, net/core/pktgen.c

#define MAX_TAGS 4
#define MAX_HEADERS 8
#define FCS 4
#define WINDOW 65536 // sequence numbers, a power of two
#define WORDS (WINDOW / 32)
#define FAR_AHEAD (1 << 20)
#define DOUBTS 16
#define MAX_IPDV (1LL << 58)
#define MAX_LATENCY 10000000000LL // ns

// Buckets of latency: 32 in each power of two, up to 2^34 ns.
#define SUB_BITS 5
#define SUB (1 << SUB_BITS)
#define BUCKETS ((34 - SUB_BITS + 1) * SUB)

enum kind { OTHER, TEST, CLOSING, KERNEL };

const volatile __s64 epoch_ns; // CLOCK_REALTIME less CLOCK_MONOTONIC
const volatile __u32 own;      // 1: count these streams of this run only
const volatile __u16 own_run, own_first, own_count;
const volatile __u32 max_streams;
const volatile __u32 verify; // checksums
const volatile __u32 frags;  // a frame may be in several pieces

volatile __u32 counting;
__u32 streams_seen, streams_closed;

// A corrupt frame: its number may be among what is wrong.
struct doubt {
	__u32 seq, size;
	__u32 from; // NextExp then
	__u32 pad;
};

struct stream {
	struct bpf_spin_lock lock;
	__u32 id; // run and stream id, as the key
	__u32 kernel_gen;
	__u32 closed, claimed;
	__u64 expected;
	__u64 next, first; // NextExp (RFC 4737), the number seen first
	__u64 frames, bytes, duplicates, reordered, too_old, corrupt;
	__s64 first_ns, last_ns; // since the Unix epoch

	__u64 timed, sum_ns, negative, over;
	__s64 min_ns, max_ns;
	__s64 transit, j16; // jitter
	__u64 jitter_sum, jitter_count;
	__s64 jitter_max;
	__u32 transits, holds;
	__u32 doubted, settled; // corrupt frames that were put into doubtful, and taken out
	struct doubt held; // a frame whose number is far ahead and that nothing vouches for
	struct doubt doubtful[DOUBTS];
	__u64 buckets[BUCKETS];
	__u64 window[WORDS]; // of 32 numbers each: above, number / 32; below, a bit for each that was seen
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); // max_streams
	__type(key, __u32);
	__type(value, struct stream);
} streams SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u32);
} index_of SEC(".maps");

// Of a CPU, its own.
struct totals {
	__u64 frames, bytes, unique, duplicates, reordered, corrupt, too_old;
	__u64 stale, closing, other, other_bytes, overflow;
	__u64 last_key;
	__u32 last_index, pad;
	__u64 spare[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); // as many as there are CPUs
	__type(key, __u32);
	__type(value, struct totals);
} by_cpu SEC(".maps");

struct parsed {
	__u32 l3, l4, payload, end; // octets from the start of the frame
	__u32 proto, v6, partial;
};

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

// parse does the same, and at once where the headers are the usual ones.
static __always_inline int parse(struct xdp_md *ctx, struct parsed *p)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u64 found;

	if (data + 58 > data_end)
		return 0;
	if (LOAD16(data + 12) == 0x0800 && *(__u8 *)(data + 14) == 0x45 && *(__u8 *)(data + 23) == 17 &&
	    !(LOAD16(data + 20) & 0x3fff)) {
		p->l3 = 14;
		p->l4 = 34;
		p->payload = 42;
		p->end = 14 + LOAD16(data + 16);
		p->proto = 17;
		p->v6 = p->partial = 0;
		return 1;
	}
	found = headers(ctx);
	p->l3 = found & 0x3f;
	p->l4 = found >> 6 & 0x3fff;
	p->payload = found >> 20 & 0x3fff;
	p->end = found >> 34 & 0x3ffff;
	p->proto = found >> 52 & 0xff;
	p->v6 = found >> 60 & 1;
	p->partial = found >> 61 & 1;
	return found != 0;
}

static __always_inline __u32 fold(__u64 sum)
{
	sum = (sum >> 32) + (__u32)sum;
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return sum;
}

// sum_of adds up octets of the frame, as the machine's own words of 16 bits. What
// is beyond the frame's first piece is left out. Global, as headers.
__noinline __u64 sum_of(struct xdp_md *ctx, __u32 off, __u32 len)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end, *p;
	__u64 sum = 0, w;
	__u32 i;

	for (i = 0; i < 18; i++) { // pieces of 512: a frame of 9216
		if (len < 512 || off > 9216)
			break;
		p = data + off;
		if (p + 512 > data_end)
			break;
		sum += (__u32)bpf_csum_diff(0, 0, p, 512, 0);
		off += 512;
		len -= 512;
	}
	for (i = 0; i < 64; i++) {
		if (len < 8 || off > 9216)
			break;
		p = data + off;
		if (p + 8 > data_end)
			break;
		w = *(__u64 *)p;
		sum += (w >> 32) + (__u32)w;
		off += 8;
		len -= 8;
	}
	for (i = 0; i < 4; i++) {
		if (!len || off > 9216)
			break;
		p = data + off;
		if (p + 1 > data_end)
			break;
		w = (__u64)*(__u8 *)p << 8;
		off += 1;
		len -= 1;
		if (len) {
			p = data + off;
			if (p + 1 > data_end)
				break;
			w |= *(__u8 *)p;
			off += 1;
			len -= 1;
		}
		sum += be16((__u16)w);
	}
	return sum;
}

// HALVES is a word of 64 bits as two of 32, to be added up.
#define HALVES(w) (((w) >> 32) + (__u32)(w))

// right64 says the same of the smallest frame in which nothing is unusual; -1: it is
// another, or one without a checksum.
static __always_inline int right64(void *data, void *data_end)
{
	__u64 a, b, addresses, u, v, w, sum;

	if (data + 60 > data_end || LOAD16(data + 38) != 26 || !*(__u16 *)(data + 40))
		return -1;
	a = *(__u64 *)(data + 14);
	b = *(__u64 *)(data + 22);
	addresses = *(__u64 *)(data + 26);
	u = *(__u64 *)(data + 34);
	v = *(__u64 *)(data + 42);
	w = *(__u64 *)(data + 50);
	sum = HALVES(a) + HALVES(b) + *(__u32 *)(data + 30);
	if (fold(sum) != 0xffff)
		return 0;
	sum = HALVES(addresses) + HALVES(u) + HALVES(v) + HALVES(w) + *(__u16 *)(data + 58);
	return fold(sum + be16((__u16)17) + be16((__u16)26)) == 0xffff;
}

// right says that the checksums are (frames.VerifyChecksums). What is not in the
// first piece of the frame is taken as right.
static __always_inline int right(struct xdp_md *ctx, struct parsed *p)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end, *h;
	__u32 l3 = p->l3, l4 = p->l4, len = p->end - p->l4;
	__u64 sum = 0;

	if (l4 == 34 && p->end == 60 && !p->v6 && p->proto == 17 && !p->partial) {
		int known = right64(data, data_end);

		if (known >= 0)
			return known;
	}
	if (!p->v6 && fold(sum_of(ctx, l3, l4 - l3)) != 0xffff)
		return 0;
	if (p->partial || data + p->end > data_end)
		return 1;
	h = data + l4;
	if (h + 8 > data_end)
		return 0;
	if (p->proto == 17) {
		__u32 length = LOAD16(h + 4);

		if (length < 8 || length > len)
			return 0;
		len = length;
		if (*(__u16 *)(h + 6) == 0)
			return !p->v6;
	}
	if (p->proto != 1) {
		if (p->v6)
			sum = sum_of(ctx, l3 + 8, 32);
		else
			sum = sum_of(ctx, l3 + 12, 8);
		sum += be16((__u16)p->proto);
		sum += be16((__u16)len);
	}
	return fold(sum + sum_of(ctx, l4, len)) == 0xffff;
}

static __always_inline __u32 bucket(__u64 ns)
{
	__u32 v, msb = 0;

	if (ns < SUB)
		return ns;
	if (ns >> 32) {
		if (ns >> 34)
			return BUCKETS - 1;
		msb = 32;
		v = ns >> 32;
	} else {
		v = ns;
	}
	if (v >> 16) {
		v >>= 16;
		msb += 16;
	}
	if (v >> 8) {
		v >>= 8;
		msb += 8;
	}
	if (v >> 4) {
		v >>= 4;
		msb += 4;
	}
	if (v >> 2) {
		v >>= 2;
		msb += 2;
	}
	if (v >> 1)
		msb += 1;
	return (msb - SUB_BITS + 1) * SUB + ((ns >> (msb - SUB_BITS)) & (SUB - 1));
}

enum verdict { NEW, REORDERED, DUPLICATE, TOO_OLD };

// mark notes a number as seen, and says whether it was before. A word that is of
// numbers a window ago is one of which none was seen.
static __always_inline int mark(struct stream *s, __u64 n)
{
	__u64 *word = &s->window[n / 32 % WORDS], bit = 1ULL << (n % 32), tag = n / 32 << 32;

	if ((*word & ~0xffffffffULL) != tag)
		*word = tag;
	if (*word & bit)
		return 1;
	*word |= bit;
	return 0;
}

// observe takes the next sequence number (stats.SeqWindow). Of the window's last 32
// numbers it cannot tell those whose word has been taken by others: they are too old.
static __always_inline enum verdict observe(struct stream *s, __u32 seq)
{
	__s64 ahead = s->next ? (__s64)(__s32)(seq - (__u32)s->next) : (__s64)seq;
	__u64 n = s->next + ahead;

	if (ahead < 0) {
		if (-ahead > WINDOW || s->window[n / 32 % WORDS] >> 32 > (n / 32 & 0xffffffff))
			return TOO_OLD;
		return mark(s, n) ? DUPLICATE : REORDERED;
	}
	if (!s->next)
		s->first = seq;
	mark(s, n);
	s->next = n + 1;
	return NEW;
}

// settle takes the eldest corrupt frame out of those in doubt, and returns its size
// where its number is missing between what came before it and what has come since:
// it is the frame that was sent there. Else it is corrupt alone, and what was sent in
// its place is lost. One at a time: the verifier takes no longer loop here.
static __always_inline __u32 settle(struct stream *s)
{
	struct doubt *d = &s->doubtful[s->settled % DOUBTS];
	__u64 seq;

	s->settled++;
	seq = s->next - (__u32)((__u32)s->next - d->from) + (__u32)(d->seq - d->from);
	if (seq >= s->next || seq + WINDOW - 32 < s->next || mark(s, seq))
		return 0;
	s->frames++;
	s->bytes += d->size;
	return d->size;
}

// time records how long the frame took.
static __always_inline void time(struct stream *s, __s64 transit)
{
	if (s->transits) {
		__s64 d = transit > s->transit ? transit - s->transit : s->transit - transit;

		if (d < 0 || d > MAX_IPDV)
			d = MAX_IPDV;
		s->j16 += d - ((s->j16 + 8) >> 4);
		s->jitter_sum += d;
		s->jitter_count++;
		if (d > s->jitter_max)
			s->jitter_max = d;
	}
	s->transits = 1;
	s->transit = transit;
	if (transit < 0) {
		s->negative++;
		return;
	}
	if (!s->timed || transit < s->min_ns)
		s->min_ns = transit;
	if (transit > s->max_ns)
		s->max_ns = transit;
	s->timed++;
	s->sum_ns += transit;
	if (transit > MAX_LATENCY) {
		s->over++;
		transit = MAX_LATENCY;
	}
	__u32 b = bucket(transit);

	if (b < BUCKETS)
		s->buckets[b]++;
}

// find is the stream of a key; it makes it where there is none, and may.
static __always_inline struct stream *find(struct totals *t, __u64 key, int make)
{
	__u32 i, *known;
	struct stream *s;

	if (t->last_key == key) {
		i = t->last_index;
		return bpf_map_lookup_elem(&streams, &i);
	}
	known = bpf_map_lookup_elem(&index_of, &key);
	if (!known) {
		if (!make)
			return 0;
		if (streams_seen >= max_streams)
			return 0;
		i = __sync_fetch_and_add(&streams_seen, 1);
		if (i >= max_streams)
			return 0;
		if (bpf_map_update_elem(&index_of, &key, &i, BPF_NOEXIST)) {
			known = bpf_map_lookup_elem(&index_of, &key); // another CPU was first
			if (!known)
				return 0;
			i = *known;
		} else {
			s = bpf_map_lookup_elem(&streams, &i);
			if (!s)
				return 0;
			s->id = (__u32)key;
			s->kernel_gen = key >> 32 == KERNEL;
		}
	} else {
		i = *known;
	}
	t->last_key = key;
	t->last_index = i;
	return bpf_map_lookup_elem(&streams, &i);
}

static __always_inline int other(struct totals *t, __u32 size)
{
	if (counting) {
		t->other++;
		t->other_bytes += size;
	}
	return XDP_PASS;
}

SEC("xdp")
int count(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end, *b;
	__u32 cpu = bpf_get_smp_processor_id(), size, off, seq;
	struct totals *t = bpf_map_lookup_elem(&by_cpu, &cpu);
	struct parsed p = {};
	struct stream *s;
	__u64 key, value = 0, more_frames = 0, more_bytes = 0;
	enum verdict v;
	__s64 now;
	int kind, bad, unchecked, closes = 0, disbelieved;
	__u16 magic;

	if (!t)
		return XDP_PASS;
	size = FCS + (frags ? bpf_xdp_get_buff_len(ctx) : (__u32)(data_end - data));
	if (!parse(ctx, &p))
		return other(t, size);
	off = p.payload;
	if (p.end > size - FCS)
		return other(t, size);
	b = data + off;
	if (b + 16 > data_end || off + 16 > p.end)
		return other(t, size);
	magic = LOAD16(b);
	if (magic == MAGIC_TEST || magic == MAGIC_CLOSING) {
		__u16 run, id;

		if (b + 18 > data_end || off + 18 > p.end)
			return other(t, size);
		kind = magic == MAGIC_TEST ? TEST : CLOSING;
		run = LOAD16(b + 2);
		id = LOAD16(b + 4);
		seq = LOAD32(b + 6);
		value = be64(*(__u64 *)(b + 10));
		key = (__u64)TEST << 32 | (__u32)run << 16 | id;
		if (!counting)
			return XDP_DROP;
		if (own && (run != own_run || (__u16)(id - own_first) >= own_count)) {
			t->stale++;
			return XDP_DROP;
		}
	} else if (LOAD32(b) == MAGIC_KERNEL) {
		kind = KERNEL;
		seq = LOAD32(b + 4);
		value = (__u64)LOAD32(b + 8) * 1000000000 + (__u64)LOAD32(b + 12) * 1000;
		key = (__u64)KERNEL << 32;
		if (!counting)
			return XDP_DROP;
	} else {
		return other(t, size);
	}
	now = bpf_ktime_get_ns() + epoch_ns;
	bad = verify && !right(ctx, &p);
	unchecked = !verify || p.partial || data + p.end > data_end;
	if (p.proto == 17 && !unchecked) {
		void *h = data + p.l4;

		if (h + 8 > data_end)
			return XDP_DROP;
		unchecked = *(__u16 *)(h + 6) == 0;
	}
	if (kind == CLOSING && bad) {
		t->other++; // not a word of it can be believed
		t->other_bytes += size;
		return XDP_DROP;
	}
	s = find(t, key, !bad);
	if (!s) {
		if (bad)
			t->corrupt++;
		else
			t->overflow++;
		return XDP_DROP;
	}
	if (kind == CLOSING) {
		t->closing++;
		bpf_spin_lock(&s->lock);
		if (!s->closed) {
			int believed = !unchecked || (s->claimed && s->expected == value);

			s->claimed = 1;
			s->expected = value;
			if (believed) {
				s->closed = 1;
				closes = 1;
			}
		}
		bpf_spin_unlock(&s->lock);
		if (closes)
			__sync_fetch_and_add(&streams_closed, 1);
		return XDP_DROP;
	}
	if (bad) {
		t->corrupt++;
		bpf_spin_lock(&s->lock);
		s->corrupt++;
		if (s->doubted - s->settled < DOUBTS) {
			struct doubt *d = &s->doubtful[s->doubted % DOUBTS];

			d->seq = seq;
			d->size = size;
			d->from = s->next;
			s->doubted++;
		}
		bpf_spin_unlock(&s->lock);
		return XDP_DROP;
	}
	bpf_spin_lock(&s->lock);
	if (unchecked && (s->next ? (__s32)(seq - (__u32)s->next) > FAR_AHEAD : seq > FAR_AHEAD)) {
		if (!s->holds || seq - s->held.seq - 1 >= WINDOW) {
			disbelieved = s->holds;
			s->corrupt += disbelieved;
			s->holds = 1;
			s->held.seq = seq;
			s->held.size = size;
			bpf_spin_unlock(&s->lock);
			t->corrupt += disbelieved;
			return XDP_DROP;
		}
		s->holds = 0; // the one before is confirmed
		if (!s->frames)
			s->first_ns = now;
		s->frames++;
		s->bytes += s->held.size;
		more_frames = 1;
		more_bytes = s->held.size;
		observe(s, s->held.seq);
	}
	disbelieved = s->holds;
	s->corrupt += disbelieved;
	s->holds = 0;
	if (!s->frames)
		s->first_ns = now;
	s->frames++;
	s->bytes += size;
	s->last_ns = now;
	v = observe(s, seq);
	if (s->doubted != s->settled && s->frames > 1) {
		__u32 octets = settle(s);

		more_frames += octets > 0;
		more_bytes += octets;
	}
	if (v == DUPLICATE)
		s->duplicates++;
	if (v == TOO_OLD)
		s->too_old++;
	if (v == REORDERED || v == TOO_OLD)
		s->reordered++;
	if (value)
		time(s, now - (__s64)value);
	bpf_spin_unlock(&s->lock);

	t->corrupt += disbelieved;
	t->frames += 1 + more_frames;
	t->bytes += size + more_bytes;
	t->unique += more_frames;
	if (v == DUPLICATE)
		t->duplicates++;
	else
		t->unique++;
	if (v == TOO_OLD)
		t->too_old++;
	if (v == REORDERED || v == TOO_OLD)
		t->reordered++;
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
const volatile char source_sum[] = SOURCE_SUM;
