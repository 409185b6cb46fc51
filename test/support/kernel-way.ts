// kernel-way.ts - what tests of FastPath have in common: they wait for the promotion of peers, and send bytes.

import { expect } from 'vitest'
import { EVENT_MS, type Daemon, type Host, type Place } from '../../lab/lab.ts'
import { eventually } from './event.ts'
import { statusOf } from './hosts.ts'

/** Receives bytes until the sender ends, and prints their digest. */
const RECEIVE = `
import hashlib, socket, sys
s = socket.create_server((sys.argv[1], 7000), family=socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET)
print('listening', flush=True)
c, _ = s.accept()
digest = hashlib.sha256()
while True:
    data = c.recv(1 << 20)
    if not data:
        break
    digest.update(data)
print(digest.hexdigest(), flush=True)
`
const SEND = `
import hashlib, random, socket, sys
s = socket.create_connection((sys.argv[1], 7000), source_address=(sys.argv[3], 0) if len(sys.argv) > 3 else None)
digest = hashlib.sha256()
for number in range(int(sys.argv[2])):
    data = random.Random(number).randbytes(1 << 20)
    digest.update(data)
    s.sendall(data)
s.close()
print(digest.hexdigest())
`

/** Sends pings to an address until all of these daemons have promoted their peer. */
export async function promoted(
  from: Place,
  to: string,
  daemons: readonly Daemon[],
  what = /FastPath: the kernel carries/,
): Promise<void> {
  const pings = from.spawn(['ping', '-q', '-i', '0.05', to])
  await Promise.all(daemons.map((daemon) => daemon.line(what)))
  pings.kill()
}

/** Sends some MiB of random bytes by TCP, and checks their digest. `source` is the sender's address; if left out, the kernel chooses it. */
export async function transfer(
  from: Place,
  to: Place,
  address: string,
  mebibytes: number,
  source?: string,
): Promise<void> {
  const receiver = to.spawn(['python3', '-c', RECEIVE, address])
  let text = ''
  receiver.stdout!.on('data', (data: Buffer) => (text += String(data)))
  await eventually(() => expect(text).toContain('listening'))
  const how = [address, String(mebibytes), ...(source === undefined ? [] : [source])]
  const sent = await from.output(['python3', '-c', SEND, ...how], { timeoutMs: EVENT_MS })
  await eventually(() => expect(text.split('\n')[1]).toBe(sent.trim()))
}

/** The numbers of packets that the eBPF programs of a host have carried. */
export async function carriedByKernel(host: Host): Promise<{ readonly sent: number; readonly received: number }> {
  const { counters } = (await statusOf(host)).dataPath!
  return { sent: counters['kernel_tx_packets'] ?? 0, received: counters['kernel_rx_packets'] ?? 0 }
}
