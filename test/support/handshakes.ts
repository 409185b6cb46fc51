// handshakes.ts - captures WireGuard datagrams on a host's underlay, and counts the handshakes that start.

import { createInterface } from 'node:readline'
import { expect } from 'vitest'
import { ended } from '../../lab/command.ts'
import type { Host } from '../../lab/lab.ts'
import { eventually } from './event.ts'

/** Captures datagrams that match a filter of tcpdump, one line of its text for each; `stop` resolves with all lines. */
export async function watchDatagrams(
  host: Host,
  filter: string,
): Promise<{ readonly lines: readonly string[]; readonly stop: () => Promise<readonly string[]> }> {
  const child = host.spawn(['tcpdump', '-i', 'eth0', '--immediate-mode', '-nlt', filter])
  const lines: string[] = []
  const read = createInterface({ input: child.stdout! }).on('line', (line) => {
    if (line !== '') lines.push(line)
  })
  const end = new Promise<void>((resolve) => read.once('close', resolve))
  let said = ''
  child.stderr!.on('data', (text: Buffer) => (said += text.toString()))
  await eventually(() => expect(said).toContain('listening on'))
  return {
    lines,
    async stop() {
      child.kill('SIGINT')
      await ended(child)
      await end
      return lines
    },
  }
}

/** Counts the handshake initiations on a host's underlay, from any sender. */
export async function watchHandshakes(host: Host): Promise<() => Promise<number>> {
  const { stop } = await watchDatagrams(host, 'udp port 51820 and udp[8:4] = 0x01000000')
  return async () => (await stop()).length
}
