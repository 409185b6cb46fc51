// forge.ts - sends datagrams as fast as a host can, with test/native/forge.cc.

import type { ChildProcess } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Host, Place } from '../../lab/lab.ts'
import { buildNative } from './native-program.ts'

/** The source port of the datagrams, and their source address, which may belong to another host. */
export interface Sender {
  readonly port: number
  readonly address?: string
}

export interface Forge {
  /** Sends `count` datagrams, taking `datagrams` in turn; returns the number that the kernel accepted. */
  send(
    from: Place,
    to: Host | string,
    port: number,
    datagrams: readonly Buffer[],
    count: number,
    by?: Sender,
  ): Promise<number>
  /** Sends the datagrams in turn until the process is ended. */
  flood(from: Place, to: Host | string, port: number, datagrams: readonly Buffer[], by?: Sender): ChildProcess
  /** Removes the compiled program. */
  close(): void
}

const FOR_EVER = 1e12

export async function buildForge(): Promise<Forge> {
  const folder = mkdtempSync(join(tmpdir(), 'weft-forge-'))
  const program = join(folder, 'forge')
  await buildNative('forge', program, ['-O2'], [])
  const command = (to: Host | string, port: number, count: number, by?: Sender): string[] => [
    program,
    typeof to === 'string' ? to : to.address,
    String(port),
    String(count),
    ...(by ? [String(by.port), ...(by.address ? [by.address] : [])] : []),
  ]
  const lines = (datagrams: readonly Buffer[]): string => datagrams.map((each) => `${each.toString('hex')}\n`).join('')
  return {
    async send(from, to, port, datagrams, count, by) {
      return Number(await from.output(command(to, port, count, by), { input: lines(datagrams) }))
    },
    flood(from, to, port, datagrams, by) {
      const child = from.spawn(command(to, port, FOR_EVER, by), { stdin: true })
      child.stdin!.end(lines(datagrams))
      return child
    },
    close: () => rmSync(folder, { recursive: true, force: true }),
  }
}
