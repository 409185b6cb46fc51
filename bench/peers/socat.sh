#!/bin/sh
# socat.sh - a tunnel with socat, which reads and writes one packet at a time: --peer bench/peers/socat.sh
set -e
socat "TUN:10.99.0.$WEFT_HOST/24,tun-name=tunnel,iff-no-pi,up" \
  "UDP-DATAGRAM:$WEFT_REMOTE:7000,bind=$WEFT_LOCAL:7000" &
trap 'kill $!; exit 0' TERM
until ip link show dev tunnel up 2>/dev/null | grep -q LOWER_UP; do
  kill -0 $! # fails, and ends this script, if socat has ended
  sleep 0.1
done
ip link set tunnel mtu 1472
echo ready
wait $!
