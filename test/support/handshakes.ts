// handshakes.ts - what of WireGuard is on a host's cable: its datagrams, and how many handshakes are begun.

import { createInterface } from 'node:readline'
import { expect } from 'vitest'
import { ended } from '../../lab/command.ts'
import type { Host } from '../../lab/lab.ts'
import { eventually } from './event.ts'

/** The datagrams from now on that a filter of tcpdump lets through, a line of its text for each; `stop` resolves with all. */
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

/** Counts the initiations of handshakes that are on a host's cable from now on, by whomever. */
export async function watchHandshakes(host: Host): Promise<() => Promise<number>> {
  const { stop } = await watchDatagrams(host, 'udp port 51820 and udp[8:4] = 0x01000000')
  return async () => (await stop()).length
}
