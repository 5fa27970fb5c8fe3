// Package gso sends many UDP datagrams as one frame: an AF_PACKET socket with
// PACKET_VNET_HDR takes a frame of up to 64 KiB behind a struct virtio_net_hdr of
// type VIRTIO_NET_HDR_GSO_UDP_L4, which the kernel, or the NIC, cuts into frames
// of one size (udp_gso, net/ipv4/udp_offload.c). The way from the socket to the
// driver is walked once for up to 128 frames.
//
// The frames of a batch share their headers but for lengths, checksums and, of
// IPv4, the identification, which counts up. Payloads are their own.
package gso
