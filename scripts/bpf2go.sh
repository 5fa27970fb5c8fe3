#!/usr/bin/env bash
# Compiles a BPF source in C into the two objects (either byte order) and the Go
# file that carry it, for go generate: scripts/bpf2go.sh NAME FILE [TYPE...]
# The objects keep the sum of their source, by which a test knows that they are
# of it. Needs clang and libbpf's headers, which users of pktgen do not.
set -eu
name=$1 source=$2
shift 2
types=()
for t in "$@"; do types+=(-type "$t"); done
sum=$(sha256sum "$source" | cut -d' ' -f1)
tools=$(cd "$(dirname "$0")/../tools" && pwd)
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go -C "$tools" build -o "$bin/bpf2go" github.com/cilium/ebpf/cmd/bpf2go
cc=${BPF_CLANG:-clang}
"$bin/bpf2go" -cc "$cc" -strip "${cc/clang/llvm-strip}" "${types[@]}" "$name" "$source" -- \
	-O2 -g -mcpu=v3 -Wall -Werror -DSOURCE_SUM="\"$sum\"" -I"/usr/include/$(uname -m)-linux-gnu"
