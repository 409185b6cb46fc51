// ownership.test.ts - the states of the data path's owner and the changes between them, and data paths that cannot be
// closed or have nothing to lend.

import { closeSync, fstatSync, mkdtempSync, openSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { describe, expect, it } from 'vitest'
import { WeftError } from '../../../src/base/errors.ts'
import { connect, listen } from '../../../src/host/unix-socket.ts'
import type { DataPaths } from '../../../src/node/data-paths.ts'
import { Ownership } from '../../../src/node/ownership.ts'
import { serveSuccessors } from '../../../src/node/restart/lender.ts'
import { fdsOf } from '../../../src/node/restart/open-path.ts'
import { predecessorAt } from '../../../src/node/restart/predecessor.ts'
import type { OpenPath } from '../../../src/path/engine/engine.ts'

function recorder() {
  const lines: string[] = []
  const say = (line: string): void => void lines.push(line)
  return { lines, log: { info: say, warn: say, error: say, v: () => false } }
}

/** Returns a data path with an engine that can be lent, and the calls that it got. */
function lendable() {
  const calls: string[] = []
  const fds = [openSync('/dev/null', 'r'), openSync('/dev/null', 'r')] as const
  const path = {
    tunName: 'flannel0',
    loops: [{ tun: fds[0], sockets: { ipv4: { receiver: fds[1] } } }],
  } as unknown as OpenPath
  const dataPath = {
    handover: {
      isLendable: true,
      leave: async () => (calls.push('leave'), [path]),
      takeBack: async () => void calls.push('take back'),
    },
    close: async () => {
      calls.push('close')
      fds.forEach(closeSync)
    },
  } as unknown as DataPaths
  const areOpen = (): boolean => {
    try {
      fds.forEach((fd) => fstatSync(fd))
      return true
    } catch {
      return false
    }
  }
  return { calls, path, dataPath, areOpen }
}

describe('a data path that can be lent', () => {
  /** Brings an ownership into each state. */
  const STATES: Readonly<Record<string, (ownership: Ownership) => Promise<unknown>>> = {
    closed: async () => {},
    forwarding: (ownership) => ownership.open(async () => lendable().dataPath),
    lent: async (ownership) => {
      await ownership.open(async () => lendable().dataPath)
      await ownership.lend()
    },
    released: (ownership) => ownership.release(),
    ended: (ownership) => ownership.end(async () => {}),
  }
  const TRANSITIONS = {
    open: (ownership: Ownership) => ownership.open(async () => lendable().dataPath),
    close: (ownership: Ownership) => ownership.close(),
    replace: (ownership: Ownership) => ownership.replace(async () => lendable().dataPath),
    lend: (ownership: Ownership) => ownership.lend(),
    release: (ownership: Ownership) => ownership.release(),
    takeBack: (ownership: Ownership) => ownership.takeBack(),
    end: (ownership: Ownership) => ownership.end(async () => {}),
  }
  /** The state that each operation leads to. An operation that is not listed changes nothing. */
  const LEADS_TO: Readonly<Record<string, Readonly<Record<string, string>>>> = {
    closed: { open: 'forwarding', replace: 'forwarding', release: 'released', end: 'ended' },
    forwarding: { close: 'closed', lend: 'lent', release: 'released', end: 'ended' },
    lent: { takeBack: 'forwarding', release: 'released', end: 'ended' },
    released: { takeBack: 'closed', end: 'ended' },
    ended: {},
  }

  it.each(Object.keys(STATES).flatMap((state) => Object.keys(TRANSITIONS).map((name) => [state, name] as const)))(
    '%s, %s',
    async (state, name) => {
      const { lines, log } = recorder()
      const ownership = new Ownership(log)
      await STATES[state]!(ownership)
      expect(ownership.state.is).toBe(state)
      await TRANSITIONS[name as keyof typeof TRANSITIONS](ownership)
      expect(ownership.state.is).toBe(LEADS_TO[state]![name] ?? state)
      expect(ownership.dataPath !== undefined).toBe(['forwarding', 'lent'].includes(ownership.state.is))
      expect(lines).toEqual([])
    },
  )

  it('is lent, taken back, and released, which closes everything and keeps the device', async () => {
    const { calls, path, dataPath, areOpen } = lendable()
    const ownership = new Ownership(recorder().log)
    await ownership.open(async () => dataPath)
    expect(await ownership.lend()).toEqual([path])
    await ownership.takeBack()
    expect(await ownership.lend()).toEqual([path])
    expect(areOpen()).toBe(true)
    await ownership.release()
    expect([calls, areOpen()]).toEqual([['leave', 'take back', 'leave'], false])
  })

  it('is passed on at the end only once; a lent path is closed only in this process', async () => {
    const first = lendable()
    const ownership = new Ownership(recorder().log)
    await ownership.open(async () => first.dataPath)
    const kept: unknown[] = []
    const keep = async (path: unknown): Promise<void> => void kept.push(path)
    await ownership.end(keep)
    await ownership.end(keep)
    expect([kept, first.areOpen()]).toEqual([[[first.path]], true])

    const second = lendable()
    const lent = new Ownership(recorder().log)
    await lent.open(async () => second.dataPath)
    await lent.lend()
    await lent.end(keep)
    expect([kept.length, second.areOpen()]).toEqual([1, false])
  })

  it('is closed before another one takes its place, and a call that names another data path closes nothing', async () => {
    const [first, second] = [lendable(), lendable()]
    const ownership = new Ownership(recorder().log)
    await ownership.open(async () => first.dataPath)
    await ownership.replace(async () => (first.calls.push('open the next'), second.dataPath))
    expect([first.calls, ownership.dataPath === second.dataPath]).toEqual([['close', 'open the next'], true])
    await ownership.close(first.dataPath)
    expect([second.calls, ownership.state.is]).toEqual([[], 'forwarding'])
    await ownership.close(second.dataPath)
    expect([second.calls, ownership.state.is]).toEqual([['close'], 'closed'])
  })

  it('is replaced although it cannot be closed, which is logged', async () => {
    const { lines, log } = recorder()
    const [stuck, next] = [lendable(), lendable()]
    const close = async (): Promise<void> => {
      throw new WeftError('COMMAND', '`ip link del flannel.1` failed: no answer within 10 s')
    }
    const ownership = new Ownership(log)
    await ownership.open(async () => Object.assign(stuck.dataPath, { close }))
    await ownership.replace(async () => next.dataPath)
    expect(ownership.dataPath).toBe(next.dataPath)
    expect(lines).toEqual(['Cannot close the data path: `ip link del flannel.1` failed: no answer within 10 s'])
    fdsOf([stuck.path]).forEach((fd) => closeSync(fd))
  })

  it('wakes each caller that waits for its return', async () => {
    const ownership = new Ownership(recorder().log)
    await ownership.open(async () => lendable().dataPath)
    await ownership.lend()
    const { signal } = new AbortController()
    const waiting = [ownership.untilOurs(signal), ownership.untilOurs(signal), ownership.recheck.wait(signal)]
    await setImmediate()
    await ownership.takeBack()
    await Promise.all(waiting)
  })

  it('runs its operations in order: a data path that was released before it was opened is not opened', async () => {
    const ownership = new Ownership(recorder().log)
    let opened = 0
    const releasing = ownership.release()
    const opening = ownership.open(async () => (opened++, lendable().dataPath))
    await Promise.all([releasing, opening])
    expect([opened, ownership.state.is]).toEqual([0, 'released'])
  })

  it('is closed, and opened again, if it cannot be lent', async () => {
    const { lines, log } = recorder()
    const { calls, dataPath } = lendable()
    const ownership = new Ownership(log)
    const leave = async () => {
      throw new WeftError('FAULT', 'the engine is gone')
    }
    await ownership.open(async () => Object.assign(dataPath, { handover: { ...dataPath.handover, leave } }))
    expect(await ownership.lend()).toEqual([])
    expect([ownership.state.is, calls]).toEqual(['closed', ['close']])
    expect(lines).toEqual(['The data path cannot be handed over: the engine is gone'])
  })

  it('has its descriptors closed if it is released and cannot be stopped as a whole', async () => {
    const { lines, log } = recorder()
    const { calls, dataPath, areOpen } = lendable()
    const ownership = new Ownership(log)
    const leave = async () => {
      throw new WeftError('FAULT', 'the engine is gone')
    }
    await ownership.open(async () => Object.assign(dataPath, { handover: { ...dataPath.handover, leave } }))
    await ownership.release()
    expect([ownership.state.is, calls, areOpen()]).toEqual(['released', ['close'], false])
    expect(lines).toEqual(['Cannot close the data path: the engine is gone'])
  })
})

it('a data path that cannot be closed is released nevertheless, and taken back when the successor goes away', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'weft-ownership-'))
  const stopping = new AbortController()
  try {
    const { lines, log } = recorder()
    const ownership = new Ownership(log)
    const close = async (): Promise<void> => {
      throw new WeftError('COMMAND', '`ip link del flannel-wg` failed: no answer within 10 s')
    }
    await ownership.open(async () => ({ close }) as unknown as DataPaths)
    const path = join(folder, 'handover')
    const lender = {
      lend: () => ownership.lend(),
      release: () => ownership.release(),
      takeBack: () => ownership.takeBack(),
      about: () => ({ version: '1', store: 's', healthPort: 0 }),
      refusal: () => undefined,
      attend: (isThere: boolean) => void (ownership.hasSuccessor = isThere),
      write: async () => {},
      lock: () => undefined,
      kill: () => false,
    }
    let ended: unknown
    const serving = serveSuccessors(listen(path), lender, stopping.signal).catch((error: unknown) => (ended = error))
    const predecessor = predecessorAt(connect(path)!)
    await predecessor.about()
    await predecessor.release()
    expect([predecessor.isGone, ownership.state.is, ownership.hasSuccessor]).toEqual([false, 'released', true])
    expect(lines).toEqual(['Cannot close the data path: `ip link del flannel-wg` failed: no answer within 10 s'])
    predecessor.close()
    await ownership.untilOurs(stopping.signal)
    expect(ended).toBeUndefined()
    stopping.abort(new Error('enough'))
    await serving
  } finally {
    stopping.abort()
    rmSync(folder, { recursive: true })
  }
})

it('a data path without descriptors to lend belongs to this process again immediately, and wakes the waiting loop', async () => {
  const ownership = new Ownership(recorder().log)
  const stopping = new AbortController()
  let stop!: () => void
  const stopped = new Promise<readonly OpenPath[]>((resolve) => (stop = () => resolve([])))
  await ownership.open(
    async () =>
      ({ handover: { isLendable: true, leave: () => stopped, takeBack: async () => {} } }) as unknown as DataPaths,
  )
  const lending = ownership.lend()
  await setImmediate()
  const waiting = ownership.untilOurs(stopping.signal).then(
    () => 'ours',
    () => 'waits',
  )
  stop()
  expect(await lending).toEqual([])
  await setImmediate()
  stopping.abort(new Error('enough'))
  expect(await waiting).toBe('ours')
})
