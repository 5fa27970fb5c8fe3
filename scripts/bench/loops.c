//go:build ignore

// The kernel calls that pktgen is built on, with nothing around them: what it could
// reach at most. Each frame has a new number and time, as ours have.
//
//   loops ring IFACE CPU OCTETS        TPACKET_V2, 64 frames a call
//   loops gso IFACE CPU OCTETS         PACKET_VNET_HDR, UDP_L4, 64 frames a call
//   loops untouched IFACE CPU OCTETS   live frames, redirected as they are
//   loops stamp IFACE CPU OCTETS       live frames, each with number, time, checksum
//
// Runs until it is killed. BPF by hand, so that it needs gcc alone.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static unsigned char frame[9216];
static int octets, ifindex;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void put16(unsigned char *p, unsigned v) { p[0] = v >> 8; p[1] = v; }

static uint16_t fold(uint64_t sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static uint64_t add(const unsigned char *p, int n)
{
	uint64_t sum = 0;
	for (int i = 0; i < n; i += 2)
		sum += p[i] << 8 | (i + 1 < n ? p[i + 1] : 0);
	return sum;
}

static void build(unsigned char *f, int udp)
{
	static const unsigned char head[] = { 2, 0, 0, 0, 0, 0x99, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17,
		0, 0, 198, 18, 0, 1, 198, 18, 0, 2, 4, 0, 0, 9, 0, 0, 0, 0, 0x9e, 0x37 };
	memcpy(f, head, sizeof head);
	put16(f + 16, 28 + udp);
	put16(f + 24, (uint16_t)~fold(add(f + 14, 20)));
	put16(f + 38, 8 + udp);
}

static uint64_t pseudo(int udp) { return add(frame + 26, 8) + 17 + 8 + udp; }

static void stamp(unsigned char *f, uint32_t n, uint64_t now)
{
	uint32_t be = htonl(n);
	uint64_t t = __builtin_bswap64(now);
	memcpy(f + 48, &be, 4);
	memcpy(f + 52, &t, 8);
}

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int packet(void)
{
	int fd = socket(AF_PACKET, SOCK_RAW, 0);
	if (fd < 0)
		fail("socket");
	return fd;
}

static void bound(int fd)
{
	struct sockaddr_ll a = { .sll_family = AF_PACKET, .sll_ifindex = ifindex };
	if (bind(fd, (void *)&a, sizeof a))
		fail("bind");
}

static void ring(void)
{
	enum { FRAMES = 1024, BATCH = 64 };
	int fd = packet(), one = 1, version = TPACKET_V2, size = octets + 32 <= 2048 ? 2048 : 16384;
	struct tpacket_req req = { .tp_block_size = FRAMES * size, .tp_block_nr = 1, .tp_frame_size = size, .tp_frame_nr = FRAMES };
	if (setsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) || setsockopt(fd, SOL_PACKET, PACKET_LOSS, &one, sizeof one) ||
	    setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one) || setsockopt(fd, SOL_PACKET, PACKET_TX_RING, &req, sizeof req))
		fail("setsockopt");
	unsigned char *mem = mmap(0, FRAMES * size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mem == MAP_FAILED)
		fail("mmap");
	bound(fd);
	uint64_t fixed = pseudo(octets - 42) + add(frame + 34, octets - 34);
	for (int i = 0; i < FRAMES; i++)
		memcpy(mem + i * size + 32, frame, octets);
	for (uint32_t n = 0;;) {
		uint64_t t = now();
		int i;
		for (i = 0; i < BATCH; i++, n++) {
			struct tpacket2_hdr *h = (void *)(mem + n % FRAMES * size);
			if (__atomic_load_n(&h->tp_status, __ATOMIC_ACQUIRE) != TP_STATUS_AVAILABLE)
				break;
			unsigned char *f = (void *)h;
			stamp(f + 32, n, t);
			put16(f + 32 + 40, (uint16_t)~fold(fixed + (n >> 16) + (n & 0xffff) + (t >> 48) + (t >> 32 & 0xffff) + (t >> 16 & 0xffff) + (t & 0xffff)));
			h->tp_len = octets;
			__atomic_store_n(&h->tp_status, TP_STATUS_SEND_REQUEST, __ATOMIC_RELEASE);
		}
		if (send(fd, 0, 0, MSG_DONTWAIT) < 0 && errno != EAGAIN && errno != ENOBUFS)
			fail("send");
	}
}

static void gso(void)
{
	int fd = packet(), one = 1, big = 1 << 24, data = octets - 42, segments = 64;
	if (segments * data > 65507)
		segments = 65507 / data;
	static unsigned char b[70000];
	if (setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one))
		fail("PACKET_VNET_HDR");
	setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &big, sizeof big);
	bound(fd);
	struct { uint8_t flags, type; uint16_t hdr_len, size, start, offset; } *v = (void *)b;
	v->flags = 1, v->type = 5, v->hdr_len = 42, v->size = data, v->start = 34, v->offset = 6;
	unsigned char *f = b + 10;
	memcpy(f, frame, 42);
	build(f, segments * data);
	memcpy(frame, f, 42);
	put16(f + 40, fold(pseudo(segments * data)));
	for (uint32_t n = 0;;) {
		uint64_t t = now();
		for (int i = 0; i < segments; i++, n++) {
			memcpy(f + 42 + i * data, "\x9e\x37", 2);
			stamp(f + i * data, n, t);
		}
		while (send(fd, b, 10 + 42 + segments * data, MSG_DONTWAIT) < 0)
			if (errno != EAGAIN && errno != ENOBUFS)
				fail("send");
	}
}

static long bpf(int cmd, union bpf_attr *a) { return syscall(SYS_bpf, cmd, a, sizeof *a); }

#define I(c, d, s, o, i) { .code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i) }
#define MOV(d, s) I(BPF_ALU64 | BPF_MOV | BPF_X, d, s, 0, 0)
#define MOVI(d, i) I(BPF_ALU64 | BPF_MOV | BPF_K, d, 0, 0, i)
#define ADD(d, s) I(BPF_ALU64 | BPF_ADD | BPF_X, d, s, 0, 0)
#define SHR(d, i) I(BPF_ALU64 | BPF_RSH | BPF_K, d, 0, 0, i)
#define AND(d, i) I(BPF_ALU64 | BPF_AND | BPF_K, d, 0, 0, i)
#define CALL(i) I(BPF_JMP | BPF_CALL, 0, 0, 0, i)
#define FOLD MOV(4, 9), SHR(4, 16), AND(9, 0xffff), ADD(9, 4)

static void live(int stamped)
{
	union bpf_attr a = { .map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 16, .max_entries = 1 };
	int map = bpf(BPF_MAP_CREATE, &a);
	if (map < 0)
		fail("BPF_MAP_CREATE");
	uint64_t fixed = pseudo(octets - 42) + add(frame + 34, octets - 34);
	struct bpf_insn plain[] = { MOVI(1, ifindex), MOVI(2, 0), CALL(BPF_FUNC_redirect), I(BPF_JMP | BPF_EXIT, 0, 0, 0, 0) };
	struct bpf_insn all[] = {
		I(BPF_LDX | BPF_MEM | BPF_W, 7, 1, 0, 0), I(BPF_LDX | BPF_MEM | BPF_W, 8, 1, 4, 0),
		MOV(2, 7), I(BPF_ALU64 | BPF_ADD | BPF_K, 2, 0, 0, 60), I(BPF_JMP | BPF_JLE | BPF_X, 2, 8, 2, 0),
		MOVI(0, 1), I(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
		CALL(BPF_FUNC_ktime_get_ns), MOV(6, 0),
		I(BPF_LD | BPF_DW | BPF_IMM, 1, BPF_PSEUDO_MAP_VALUE, 0, map), I(0, 0, 0, 0, 0),
		I(BPF_LDX | BPF_MEM | BPF_DW, 2, 1, 0, 0), MOV(3, 2), I(BPF_ALU64 | BPF_ADD | BPF_K, 3, 0, 0, 1), I(BPF_STX | BPF_MEM | BPF_DW, 1, 3, 0, 0),
		MOVI(9, (int)fold(fixed)), ADD(9, 2), MOV(4, 6), SHR(4, 32), ADD(9, 4), MOV(4, 6), I(BPF_ALU64 | BPF_LSH | BPF_K, 4, 0, 0, 32), SHR(4, 32), ADD(9, 4),
		MOV(4, 9), SHR(4, 32), I(BPF_ALU | BPF_MOV | BPF_X, 9, 9, 0, 0), ADD(9, 4), FOLD, FOLD, FOLD,
		I(BPF_ALU64 | BPF_XOR | BPF_K, 9, 0, 0, 0xffff), I(BPF_ALU | BPF_END | BPF_TO_BE, 9, 0, 0, 16), I(BPF_STX | BPF_MEM | BPF_H, 7, 9, 40, 0),
		I(BPF_ALU | BPF_END | BPF_TO_BE, 2, 0, 0, 32), I(BPF_STX | BPF_MEM | BPF_W, 7, 2, 48, 0),
		I(BPF_ALU | BPF_END | BPF_TO_BE, 6, 0, 0, 64), I(BPF_STX | BPF_MEM | BPF_DW, 7, 6, 52, 0),
		MOVI(1, ifindex), MOVI(2, 0), CALL(BPF_FUNC_redirect), I(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
	};
	static char log[1 << 16];
	a = (union bpf_attr){ .prog_type = BPF_PROG_TYPE_XDP, .license = (uintptr_t)"MIT", .log_buf = (uintptr_t)log, .log_size = sizeof log, .log_level = 1 };
	a.insns = (uintptr_t)(stamped ? all : plain);
	a.insn_cnt = (stamped ? sizeof all : sizeof plain) / sizeof *all;
	int prog = bpf(BPF_PROG_LOAD, &a);
	if (prog < 0) {
		fputs(log, stderr);
		fail("BPF_PROG_LOAD");
	}
	for (;;) {
		a = (union bpf_attr){ .test = { .prog_fd = prog, .data_in = (uintptr_t)frame, .data_size_in = octets, .repeat = 1 << 30, .flags = BPF_F_TEST_XDP_LIVE_FRAMES } };
		if (bpf(BPF_PROG_RUN, &a) && errno != EINTR)
			fail("BPF_PROG_RUN");
	}
}

int main(int argc, char **argv)
{
	cpu_set_t set;
	struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY };
	if (argc != 5 || !(ifindex = if_nametoindex(argv[2])))
		return 2;
	CPU_ZERO(&set);
	CPU_SET(atoi(argv[3]), &set);
	sched_setaffinity(0, sizeof set, &set);
	setrlimit(RLIMIT_MEMLOCK, &all);
	octets = atoi(argv[4]);
	build(frame, octets - 42);
	if (!strcmp(argv[1], "ring"))
		ring();
	if (!strcmp(argv[1], "gso"))
		gso();
	if (!strcmp(argv[1], "untouched"))
		live(0);
	if (!strcmp(argv[1], "stamp"))
		live(1);
	return 2;
}
