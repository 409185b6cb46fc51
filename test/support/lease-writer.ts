// lease-writer.ts - a process that takes, renews and releases a lease in a directory again and again, until a test kills it: `node
// lease-writer.js <directory> <public IP>`. It prints `+ <key> <ns>` when it has a subnet and `- <key> <ns>` before it releases it, with
// the monotonic clock, which all processes share.

import { parseNetworkConfig } from '../../src/control/config/network-config.ts'
import { encodeLeaseValue } from '../../src/control/lease/lease.ts'
import { acquireLease, renewLease } from '../../src/control/lease/own-lease.ts'
import { DirectoryStore } from '../../src/control/store/directory/directory.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'

const RENEWALS = 3

const [, , directory = '', address = ''] = process.argv
const publicIp = parseIpv4(address)
if (publicIp === undefined) throw new Error(`no address: ${address}`)
const store = new DirectoryStore({ directory })
const config = parseNetworkConfig('{"Network":"10.5.0.0/16"}')
const { signal } = new AbortController()
const log = { info() {}, warn() {}, error() {}, v: () => false }
const say = (sign: string, key: string): void =>
  void process.stdout.write(`${sign} ${key} ${process.hrtime.bigint()}\n`)

for (;;) {
  // All processes draw the same subnet, so the second one must notice.
  const options = { random: () => 0, log, signal }
  let lease = await acquireLease(store, config, { publicIp: { ipv4: publicIp }, backendType: '' }, options)
  say('+', lease.key)
  for (let times = 0; times < RENEWALS; times++) lease = await renewLease(store, lease, options)
  say('-', lease.key)
  await store.delete(lease.key, { ...lease, value: encodeLeaseValue(lease.attrs) }, signal)
}
