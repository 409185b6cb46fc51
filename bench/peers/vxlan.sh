#!/bin/sh
# vxlan.sh - a vxlan that learns, as a peer of the benchmark: --peer bench/peers/vxlan.sh
set -e
ip link add tunnel type vxlan id 7 dstport 4789 local "$WEFT_LOCAL" remote "$WEFT_REMOTE" dev eth0
ip link set tunnel up
ip address add "10.99.0.$WEFT_HOST/24" dev tunnel
echo ready
# In the foreground until SIGTERM; the namespace ends with the benchmark, and the tunnel with it.
trap 'exit 0' TERM
while :; do
  sleep 3600 &
  wait $!
done
