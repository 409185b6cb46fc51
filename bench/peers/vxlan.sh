#!/bin/sh
# vxlan.sh - a kernel vxlan device with learning: --peer bench/peers/vxlan.sh
set -e
ip link add tunnel type vxlan id 7 dstport 4789 local "$WEFT_LOCAL" remote "$WEFT_REMOTE" dev eth0
ip link set tunnel up
ip address add "10.99.0.$WEFT_HOST/24" dev tunnel
echo ready
# Runs in the foreground until SIGTERM. The benchmark removes the namespace, and so the tunnel.
trap 'exit 0' TERM
while :; do
  sleep 3600 &
  wait $!
done
