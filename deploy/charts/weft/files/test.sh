# test.sh - `helm test` runs this program in two pods with weft's image.
# - With `node`, on the network of a node: waits until weftd of the node reports that it works and reaches all other nodes.
# - With `pod`, on the pod network: waits until weftd answers at the gateway of the pod, so that the node gave the pod an address and a route.
# The program prints what it finds, and exits with 1 after WAIT_S seconds without success. It uses only programs of weft's images.

port=${HEALTH_PORT:?}
wait_s=${WAIT_S:-60}

get() {
  if command -v busybox >/dev/null; then
    busybox wget -q -T 5 -O - "$1" 2>&1
  else
    node -e 'fetch(process.argv[1]).then(async (answer) => {
      if (!answer.ok) throw new Error(`it answers ${answer.status}`)
      process.stdout.write(await answer.text())
    }).catch(({ message, cause }) => { console.log(cause?.message ?? message); process.exitCode = 1 })' "$1"
  fi
}

# Prints the first value of a member of a JSON object. weftd escapes quotes in texts, so the value ends at the next quote.
member() { printf '%s' "$2" | grep -o "\"$1\":\"[^\"]*\"" | head -n 1; }

check_node() {
  status=$(get "http://127.0.0.1:$port/status.json") || { found="weftd does not answer: $status"; return 1; }
  found=$(member summary "$status")
  [ "$(member state "$status")" = '"state":"working"' ]
}

check_pod() {
  # `default via ADDRESS dev NAME`, of IPv4 or else of IPv6
  set -- $(ip route show default) $(ip -6 route show default)
  gateway=$3
  [ -n "$gateway" ] || { found='the pod has no default route'; return 1; }
  case $gateway in *:*) host="[$gateway]" ;; *) host=$gateway ;; esac
  answer=$(get "http://$host:$port/readyz") && found="weftd is ready at the gateway $gateway" ||
    { found="weftd is not ready at the gateway $gateway: $answer"; return 1; }
}

waited=0
until "check_$1"; do
  if [ "$waited" -ge "$wait_s" ]; then
    echo "failed: $found"
    exit 1
  fi
  sleep 2
  waited=$((waited + 2))
done
echo "ok: $found"
