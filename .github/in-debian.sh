#!/bin/sh
# in-debian.sh - runs a command in a Debian 12 of Docker's, as root and with this machine's Node.js, in the clone that is checked out:
# a release has the same bytes by the same compiler, and a host's packages are nobody's to change.
set -e
npm=$(readlink -f "$(dirname "$(readlink -f "$(command -v npm)")")/..")
exec docker run --rm --privileged --network host --volume "$PWD:/weft" --workdir /weft \
  --volume "$(readlink -f "$(command -v node)"):/usr/local/bin/node:ro" --volume "$npm:/usr/local/lib/node_modules/npm:ro" \
  --env CI --env WEFT_RELEASE_DIR docker.io/library/debian:bookworm sh -ec '
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends ca-certificates git
    git config --global --add safe.directory /weft
    for name in npm npx; do ln -s ../lib/node_modules/npm/bin/$name-cli.js /usr/local/bin/$name; done
    exec "$@"' sh "$@"
