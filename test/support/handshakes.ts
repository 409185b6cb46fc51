// handshakes.ts - how many handshakes of WireGuard hosts begin, by what is on their cable.

import { expect } from 'vitest'
import { ended } from '../../lab/command.ts'
import type { Host } from '../../lab/lab.ts'
import { eventually } from './event.ts'

/** Counts the initiations of handshakes that are on a host's cable from now on, by whomever. */
export async function watchHandshakes(host: Host): Promise<() => Promise<number>> {
  const isInitiation = 'udp port 51820 and udp[8:4] = 0x01000000'
  const child = host.spawn(['tcpdump', '-i', 'eth0', '--immediate-mode', '-nlt', isInitiation])
  let seen = ''
  let said = ''
  child.stdout!.on('data', (text: Buffer) => (seen += text.toString()))
  child.stderr!.on('data', (text: Buffer) => (said += text.toString()))
  await eventually(() => expect(said).toContain('listening on'))
  return async () => {
    child.kill('SIGINT')
    await ended(child)
    return seen.split('\n').filter(Boolean).length
  }
}
