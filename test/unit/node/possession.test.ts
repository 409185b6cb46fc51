// possession.test.ts - what a successor asks of a data path that cannot be closed, or has nothing to lend, ends no daemon and no loop.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { expect, it } from 'vitest'
import type { DataPath } from '../../../src/backend/backend.ts'
import { WeftError } from '../../../src/errors.ts'
import { connect, listen } from '../../../src/host/unix-socket.ts'
import { createPossession, estateOf, untilOurs } from '../../../src/node/possession.ts'
import { serveSuccessors } from '../../../src/restart/predecessor.ts'
import { predecessorAt } from '../../../src/restart/successor.ts'

function recorder() {
  const lines: string[] = []
  const say = (line: string): void => void lines.push(line)
  return { lines, log: { info: say, warn: say, error: say, v: () => false } }
}

it('one that cannot be closed is released all the same, and taken back when the successor goes away', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'weft-possession-'))
  const stopping = new AbortController()
  try {
    const { lines, log } = recorder()
    const held = createPossession()
    const close = async (): Promise<void> => {
      throw new WeftError('COMMAND', '`ip link del flannel-wg` failed: no answer within 10 s')
    }
    held.dataPath = { close } as unknown as DataPath
    const path = join(folder, 'handover')
    const estate = {
      ...estateOf(() => held, log),
      about: () => ({ version: '1', store: 's', healthPort: 0 }),
      refusal: () => undefined,
      write: async () => {},
      lock: () => undefined,
      kill: () => false,
    }
    let ended: unknown
    const serving = serveSuccessors(listen(path), estate, stopping.signal).catch((error: unknown) => (ended = error))
    const predecessor = predecessorAt(connect(path)!)
    await predecessor.about()
    await predecessor.release()
    expect(predecessor.isGone).toBe(false)
    expect(held).toMatchObject({ dataPath: undefined, lent: {} })
    expect(lines).toEqual(['Cannot close the data path: `ip link del flannel-wg` failed: no answer within 10 s'])
    predecessor.close()
    await untilOurs(held, stopping.signal)
    expect(ended).toBeUndefined()
    stopping.abort(new Error('enough'))
    await serving
  } finally {
    stopping.abort()
    rmSync(folder, { recursive: true })
  }
})

it('one that has nothing to lend is at once ours again, for a loop that waited for that', async () => {
  const held = createPossession()
  const stopping = new AbortController()
  let stop!: () => void
  const stopped = new Promise<undefined>((resolve) => (stop = () => resolve(undefined)))
  held.dataPath = { leave: () => stopped, takeBack: async () => {} } as unknown as DataPath
  const lending = estateOf(() => held, recorder().log).lend()
  await setImmediate()
  const waiting = untilOurs(held, stopping.signal).then(
    () => 'ours',
    () => 'waits',
  )
  stop()
  expect(await lending).toBeUndefined()
  await setImmediate()
  stopping.abort(new Error('enough'))
  expect(await waiting).toBe('ours')
})
