// handover.test.ts - which paths of a running daemon or of the service manager are used, which are closed, and who is refused.

import { closeSync, fstatSync, openSync } from 'node:fs'
import { setImmediate as turn } from 'node:timers/promises'
import { describe, expect, it, vi } from 'vitest'
import { parseLeaseKey } from '../../../../src/control/lease/lease.ts'
import type { Connection, Parcel } from '../../../../src/host/unix-socket.ts'
import { familyOfText } from '../../../../src/net/address.ts'
import { earlierRun, type EarlierRun } from '../../../../src/node/restart/earlier-run.ts'
import { enterHandover, type WantedPath } from '../../../../src/node/restart/handover.ts'
import { fdsOf, packPaths } from '../../../../src/node/restart/open-path.ts'
import type { Rendezvous } from '../../../../src/node/restart/rendezvous.ts'
import type { OpenPath } from '../../../../src/path/engine/engine.ts'
import { STOP_MS } from '../../../../src/weftd.ts'

const open = (): number => openSync('/dev/null', 'r')
function isOpen(fd: number): boolean {
  try {
    fstatSync(fd)
    return true
  } catch {
    return false
  }
}

const wanted: WantedPath = {
  tunName: 'flannel%d',
  bindAddresses: ['192.0.2.1'],
  port: 8285,
  workers: 2,
  without: ['udp-gso'],
}
const path = (tunName = 'flannel0', bindAddress = '192.0.2.1'): OpenPath => ({
  tunName,
  bindAddresses: [bindAddress],
  port: 8285,
  features: ['tun-csum'],
  without: ['udp-gso'],
  loops: [
    { tun: open(), sockets: { [familyOfText(bindAddress)]: { receiver: open(), sender: open() } } },
    { tun: open(), sockets: { [familyOfText(bindAddress)]: { receiver: open() } } },
  ],
})

/** A predecessor with these answers, the requests that it got, and the descriptors that it sent. */
const running = (answers: Readonly<Record<string, object>>, ...has: OpenPath[]) => predecessorOf(answers, has)

/** With `isDenied` the kernel does not give the successor the descriptors of the data path. */
function predecessorOf(answers: Readonly<Record<string, object>>, has: readonly OpenPath[], isDenied = false) {
  const asked: string[] = []
  const sent: number[] = []
  const waiting: Parcel[] = []
  let wake = (): void => {}
  const end = { isClosed: false, hasLost: false }
  const connection: Connection = {
    peerPid: 42,
    get hasLostDescriptors() {
      return end.hasLost
    },
    send(text) {
      const { want } = JSON.parse(text) as { want: string }
      if (want !== 'still') asked.push(want)
      if (want === 'path' && isDenied) {
        end.hasLost = true
        return wake()
      }
      const answer = answers[want]
      if (!answer) return
      const { descriptions, fds } = packPaths(want === 'path' ? has : [])
      const hasLock = 'lock' in answer
      const all = [...(hasLock ? [open()] : []), ...fds]
      sent.push(...all)
      waiting.push({ text: JSON.stringify({ weft: 2, ...answer, paths: descriptions }), fds: all })
      wake()
    },
    async receive() {
      while (waiting.length === 0 && !end.isClosed && !end.hasLost)
        await new Promise<void>((resolve) => (wake = resolve))
      return waiting.shift()
    },
    close() {
      end.isClosed = true
      wake()
    },
  }
  return {
    connection,
    asked,
    sent,
    say(message: object) {
      waiting.push({ text: JSON.stringify({ weft: 2, ...message }), fds: [] })
      wake()
    },
    end: () => connection.close(),
    get isClosed() {
      return end.isClosed
    },
  }
}

const ABOUT = { version: '9', store: 'etcd /x', healthPort: 0 }
const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }

/**
 * A successor of that predecessor. Without one, a daemon that is alone and uses the kept paths. `differs` replaces functions of the
 * rendezvous.
 */
async function enter(
  predecessor?: ReturnType<typeof running>,
  kept: EarlierRun = earlierRun([], undefined, 'etcd /x'),
  differs: Partial<Rendezvous> = {},
  stopping = new AbortController(),
  resume: () => Promise<'nothing' | 'failed'> = async () => 'nothing',
) {
  const signed: number[] = []
  const lockOf = (fd: number) => ({ fd, sign: () => void signed.push(fd), close: () => closeSync(fd) })
  const rendezvous: Rendezvous = {
    path: 'here',
    tryLock: () => (predecessor ? undefined : lockOf(open())),
    untilFree: async () => {},
    receivedLock: lockOf,
    owner: () => 42,
    remove: () => {},
    connect: () => predecessor?.connection,
    listen: () => ({ accept: () => new Promise(() => {}), close: () => {} }),
    kill: () => false,
    ...differs,
  }
  const lender = {
    about: () => ABOUT,
    refusal: () => undefined,
    attend: () => {},
    write: async () => {},
  }
  const parts = {
    rendezvous,
    lender,
    dataPath: { lend: async () => [], release: async () => {}, takeBack: async () => {} },
    earlierRun: async () => kept,
    resume,
    log,
    stopping,
  }
  return Object.assign(await enterHandover(parts), { stopping })
}

it('tries to forward with the last known state every second, and the tries leave nothing in memory', async () => {
  vi.useFakeTimers()
  const race = vi.spyOn(Promise, 'race')
  try {
    const resume = vi.fn<() => Promise<'failed'>>(async () => 'failed')
    const handover = await enter(undefined, undefined, undefined, undefined, resume)
    await vi.advanceTimersByTimeAsync(5_500)
    expect(resume).toHaveBeenCalledTimes(6)
    // A promise that waits for the store must not be in a race for each try, because it keeps an entry of each race.
    expect(race).not.toHaveBeenCalled()
    await handover.opening()
    await vi.advanceTimersByTimeAsync(5_000)
    expect(resume).toHaveBeenCalledTimes(6)
    handover.close(true)
  } finally {
    vi.useRealTimers()
    race.mockRestore()
  }
})

describe('what fits', () => {
  it('is taken with the lock from the running process, which is ended when this process is the node', async () => {
    const has = path()
    const before = running({ meet: ABOUT, path: { lock: 1 }, end: { ended: true } }, has)
    const handover = await enter(before)
    await handover.opening()
    const taken = await handover.take(wanted)
    expect(taken && fdsOf([taken])).toEqual(fdsOf([has]))
    expect(before.asked).toEqual(['meet', 'meet', 'path'])
    handover.settle()
    await handover.free
    expect(before.asked.at(-1)).toBe('end')
    expect(fdsOf([has]).every(isOpen)).toBe(true)
    handover.close(false)
    expect(isOpen(before.sent[0]!)).toBe(false)
  })

  it.each([
    ['the network now', '10.5.1.0-24', true],
    ['another network', '10.6.96.0-24', false],
  ])('is taken from the kept paths, and from a running daemon, for %s', async (_of, key, isTaken) => {
    const subnets = parseLeaseKey(key)!
    const [was, forNow] = [parseLeaseKey('10.5.1.0-24')!, { ...wanted, subnets }]
    const { descriptions, fds } = packPaths([path()])
    const lease = { key: '10.5.1.0-24', subnet: was, attrs: { publicIp: {}, backendType: '' } }
    const alone = await enter(
      undefined,
      earlierRun(fds, { tunNames: ['flannel0'], paths: descriptions, lease }, 'etcd /x'),
    )
    const taken = await alone.take(forNow)
    expect([taken !== undefined, fds.every(isOpen)]).toEqual([isTaken, isTaken])
    alone.close(false)
    if (isTaken) fds.forEach(closeSync)

    const about = { ...ABOUT, lease: { key: '10.5.1.0-24', publicIp: '192.0.2.1' } }
    const before = running(
      { meet: about, path: { lock: 1 }, release: { released: true }, end: { ended: true } },
      path(),
    )
    const successor = await enter(before)
    await successor.opening()
    expect((await successor.take(forNow)) !== undefined).toBe(isTaken)
    expect(before.asked.includes('release')).toBe(!isTaken)
    successor.close(false)
  })

  it('is closed if it belongs to another store, or if the backend uses no part of it', async () => {
    const [others, own] = [packPaths([path()]).fds, packPaths([path()])]
    earlierRun(others, { tunNames: ['flannel0'], store: 'etcd /x' }, 'etcd /y')
    expect(others.some(isOpen)).toBe(false)
    const known = { tunNames: ['flannel0'], paths: own.descriptions, store: 'etcd /x' }
    const handover = await enter(undefined, earlierRun(own.fds, known, 'etcd /x'))
    expect(own.fds.every(isOpen)).toBe(true)
    await handover.release()
    expect(own.fds.some(isOpen)).toBe(false)
    handover.close(false)
  })

  it('is taken from the kept paths, once', async () => {
    const { descriptions, fds } = packPaths([path()])
    const handover = await enter(undefined, earlierRun(fds, { tunNames: ['flannel0'], paths: descriptions }, 'etcd /x'))
    const taken = await handover.take(wanted)
    expect(taken && fdsOf([taken])).toEqual(fds)
    expect(await handover.take(wanted)).toBeUndefined()
    handover.close(false)
    expect(fds.every(isOpen)).toBe(true)
    fds.forEach(closeSync)
  })

  it.each(['runs', 'has ended'])(
    'can be two paths, each taken by the backend that asks for it, from an owner that %s',
    async (how) => {
      const has = [path('flannel.1'), path('flannel-v6.1', 'fd77::1')] as const
      const { descriptions, fds } = packPaths(has)
      const before = running({ meet: ABOUT, path: { lock: 1 }, end: { ended: true } }, ...has)
      const handover = await (how === 'runs'
        ? enter(before)
        : enter(
            undefined,
            earlierRun(fds, { tunNames: ['flannel.1', 'flannel-v6.1'], paths: descriptions }, 'etcd /x'),
          ))
      await handover.opening()
      // Takes both paths at the same time, because their order does not matter.
      const taken = await Promise.all([
        handover.take({ ...wanted, tunName: 'flannel-v6.1', bindAddresses: ['fd77::1'] }),
        handover.take({ ...wanted, tunName: 'flannel.1' }),
      ])
      expect(taken.map((each) => each && fdsOf([each]))).toEqual(has.toReversed().map((each) => fdsOf([each])))
      expect(before.asked).toEqual(how === 'runs' ? ['meet', 'meet', 'path'] : [])
      handover.settle()
      await handover.free
      handover.close(false)
      expect(fds.every(isOpen)).toBe(true)
      fds.forEach(closeSync)
    },
  )

  it('is taken even if another path does not fit, which both processes close', async () => {
    const [fit, other] = [path('flannel.1'), path('flannel-v6.1', 'fd77::1')]
    const before = running({ meet: ABOUT, path: { lock: 1 }, release: { released: true, lock: 1 } }, fit, other)
    const handover = await enter(before)
    await handover.opening()
    // The new process has another address by now.
    expect(await handover.take({ ...wanted, tunName: 'flannel-v6.1', bindAddresses: ['fd77::a1'] })).toBeUndefined()
    expect(before.asked).toEqual(['meet', 'meet', 'path', 'release'])
    expect(fdsOf([other]).some(isOpen)).toBe(false)
    const taken = await handover.take({ ...wanted, tunName: 'flannel.1' })
    expect(taken && fdsOf([taken])).toEqual(fdsOf([fit]))
    expect(before.asked).toHaveLength(4)
    handover.close(false)
    expect(fdsOf([fit]).every(isOpen)).toBe(true)
    expect(isOpen(before.sent[0]!)).toBe(false)
    fdsOf([fit]).forEach(closeSync)
  })

  it.each(['this one is the node', 'this one ends'])('is closed if no backend asks for it when %s', async (when) => {
    const [fit, other] = [path('flannel.1'), path('flannel-v6.1', 'fd77::1')]
    const handover = await enter(running({ meet: ABOUT, path: { lock: 1 }, end: { ended: true } }, fit, other))
    await handover.opening()
    await handover.take({ ...wanted, tunName: 'flannel.1' })
    expect(fdsOf([other]).every(isOpen)).toBe(true)
    if (when === 'this one ends') handover.close(false)
    else handover.settle()
    expect(fdsOf([other]).some(isOpen)).toBe(false)
    expect(fdsOf([fit]).every(isOpen)).toBe(true)
    if (when !== 'this one ends') handover.close(false)
    fdsOf([fit]).forEach(closeSync)
  })
})

it('a path whose device was renamed fits, unless another backend gives that name', async () => {
  for (const [name, fitsWell] of [
    ['other0', true],
    ['flannel.1', false],
  ] as const) {
    const before = running({ meet: ABOUT, path: { lock: 1 }, release: { released: true, lock: 1 } }, path(name))
    const handover = await enter(before)
    await handover.opening()
    const taken = await handover.take(wanted)
    expect(taken?.tunName).toBe(fitsWell ? 'other0' : undefined)
    if (taken) fdsOf([taken]).forEach(closeSync)
    handover.close(false)
  }
})

describe('what does not fit', () => {
  it.each<[string, Partial<WantedPath>]>([
    ['another device', { tunName: 'flannel.1' }],
    ['a device of another kind', { tunName: 'flannel.%d' }],
    ['another address', { bindAddresses: ['192.0.2.2'] }],
    ['another port', { port: 9000 }],
    ['other lanes', { workers: 8 }],
    ['other features', { without: [] }],
  ])('%s: it is closed at both ends before anything is opened', async (_what, other) => {
    const before = running({ meet: ABOUT, path: { lock: 1 }, release: { released: true, lock: 1 } }, path())
    const handover = await enter(before)
    await handover.opening()
    expect(await handover.take({ ...wanted, ...other })).toBeUndefined()
    expect(before.asked).toEqual(['meet', 'meet', 'path', 'release'])
    const [lock = 0] = before.sent
    // A number that was closed is given out again.
    expect([...new Set(before.sent.filter(isOpen))]).toEqual([lock])
    handover.close(false)
    expect(isOpen(lock)).toBe(false)
  })

  it('is closed when it was kept without a description', async () => {
    const fds = fdsOf([path()])
    const handover = await enter(undefined, earlierRun(fds, undefined, 'etcd /x'))
    expect(await handover.take(wanted)).toBeUndefined()
    expect(fds.some(isOpen)).toBe(false)
    handover.close(false)
  })

  it('is closed if another daemon runs, because its paths are newer', async () => {
    const fds = fdsOf([path()])
    const handover = await enter(running({ meet: ABOUT }), earlierRun(fds, undefined, 'etcd /x'))
    expect(fds.some(isOpen)).toBe(false)
    handover.close(false)
  })
})

describe('a daemon that runs', () => {
  it('is described by its own answer', async () => {
    const handover = await enter(running({ meet: ABOUT }))
    expect(await handover.predecessor()).toEqual({ ...ABOUT, lease: undefined, pid: 42 })
    handover.close(false)
  })

  it.each([
    [
      { refused: 'no' },
      'does not let this one take over: no',
      'read the log of the running weftd, or stop the running weftd first',
    ],
    [{ refused: 'weft 9 does not hand over to that version', version: '9' }, 'does not hand over', 'stop weft 9 first'],
  ])('that refuses is an error: %j', async (answer, message, remedy) => {
    await expect(enter(running({ meet: answer }))).rejects.toMatchObject({
      message: expect.stringContaining(message) as string,
      remedy,
    })
  })

  it('may take STOP_MS to end after the takeover, and is killed only if it takes longer', async () => {
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance'] })
    try {
      const killed: number[] = []
      const kill = (pid: number): boolean => killed.push(pid) > 0
      const before = running({ meet: ABOUT, path: { lock: 1 } }, path())
      const handover = await enter(before, undefined, { kill })
      await handover.opening()
      const taken = await handover.take(wanted)
      handover.settle()
      expect(before.asked.at(-1)).toBe('end')
      await vi.advanceTimersByTimeAsync(STOP_MS)
      expect(killed).toEqual([])
      await vi.advanceTimersByTimeAsync(2_000)
      expect(killed).toEqual([42])
      before.end()
      await handover.free
      handover.close(false)
      fdsOf([taken!]).forEach(closeSync)
    } finally {
      vi.useRealTimers()
    }
  })

  it.each(['at the start of this process', 'while this process prepares'])(
    'is not reported as hung if it is stopping %s, even if the stop takes STOP_MS',
    async (when) => {
      vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'performance'] })
      try {
        const stopping = new AbortController()
        let isFree = false
        const before = running({ meet: ABOUT })
        let listens = when === 'while this process prepares'
        const tryLock = () => (isFree ? { fd: undefined, sign: () => {}, close: () => {} } : undefined)
        const connect = () => (listens ? before.connection : undefined)
        const entering = enter(before, undefined, { tryLock, connect }, stopping)
        const failed = vi.fn<(error: unknown) => void>()
        entering.catch(failed)
        if (listens) await entering
        listens = false
        before.end()
        await vi.advanceTimersByTimeAsync(STOP_MS)
        isFree = true
        await vi.advanceTimersByTimeAsync(1_000)
        expect(failed).not.toHaveBeenCalled()
        expect(stopping.signal.aborted).toBe(false)
        const handover = await entering
        await handover.free
        handover.close(false)
      } finally {
        vi.useRealTimers()
      }
    },
  )

  it.each(['path', 'release'])('and took the data path back after %s ends this process', async (want) => {
    const before = running({ meet: ABOUT, path: { lock: 1 }, release: { lock: 1 } }, path())
    const handover = await enter(before)
    await handover.opening()
    await (want === 'path' ? handover.take(wanted) : handover.release())
    const { signal } = handover.stopping
    expect(signal.aborted).toBe(false)
    before.say({ takenBack: true })
    await turn()
    expect(signal.aborted).toBe(true)
    expect(signal.reason).toMatchObject({
      message: 'the previous weftd forwards again, because this one did not respond for too long',
      remedy: 'start the new weftd again',
    })
    handover.close(false)
  })

  it('of another network is not changed', async () => {
    const before = running({ meet: { ...ABOUT, store: 'etcd /y' } })
    await expect(enter(before)).rejects.toThrow("runs on this host for the store etcd /y; this one's is etcd /x")
    expect(before.asked).toEqual(['meet'])
  })

  it('of an earlier version, which named its store in another way, hands over', async () => {
    const handover = await enter(running({ meet: { ...ABOUT, store: 'etcd /x/' } }))
    expect(await handover.predecessor()).toMatchObject({ store: 'etcd /x/' })
  })
})

describe('AppArmor or SELinux', () => {
  const lockOf = (fd: number) => ({ fd, sign: () => {}, close: () => closeSync(fd) })
  /** A lock that another process has until `release`. */
  const lockOfOther = () => {
    const state = { isFree: false, tries: 0 }
    const tryLock = () => {
      state.tries++
      return state.isFree ? lockOf(open()) : undefined
    }
    return { state, tryLock }
  }
  const denied = (code: string) => () => {
    throw Object.assign(new Error(`connect: ${code}`), { code })
  }

  it.each(['EACCES', 'EPERM'])(
    'may forbid the connection (%s): waits until the other weftd has ended',
    async (code) => {
      const { state, tryLock } = lockOfOther()
      let connections = 0
      const connect = () => (connections++, denied(code)())
      let handover: Awaited<ReturnType<typeof enter>> | undefined
      const entering = enter(undefined, undefined, { tryLock, connect }).then((made) => (handover = made))
      await vi.waitFor(() => expect(state.tries).toBeGreaterThan(2))
      expect([handover, connections]).toEqual([undefined, 1]) // each denied connection is a line in the host's audit log
      state.isFree = true
      await entering
      expect(handover!.isSuccessor).toBe(false)
      await handover!.free
      handover!.close(false)
    },
  )

  it('may forbid the connection to a socket that an ended weftd left: this process owns the data path', async () => {
    const handover = await enter(undefined, undefined, { connect: denied('EACCES') })
    await handover.free
    expect(await handover.take(wanted)).toBeUndefined()
    handover.close(false)
  })

  it('may withhold the descriptors: the other weftd forwards again immediately, and this one follows its end', async () => {
    const { state, tryLock } = lockOfOther()
    const before = predecessorOf({ meet: ABOUT }, [], true)
    const handover = await enter(before, undefined, { tryLock })
    await handover.opening()
    let isOver = false
    const taking = handover.take(wanted).finally(() => (isOver = true))
    await vi.waitFor(() => expect(before.isClosed).toBe(true))
    await vi.waitFor(() => expect(state.tries).toBeGreaterThan(3))
    expect([isOver, handover.isOnLoan]).toEqual([false, false])
    state.isFree = true
    expect(await taking).toBeUndefined()
    await handover.free
    expect(before.asked).toEqual(['meet', 'meet', 'path'])
    handover.settle()
    handover.close(false)
  })

  it('does not keep a waiting weftd from ending after a signal', async () => {
    const { tryLock } = lockOfOther()
    const stopping = new AbortController()
    const entering = enter(undefined, undefined, { tryLock, connect: denied('EACCES') }, stopping)
    stopping.abort(new Error('stopped by a signal'))
    await expect(entering).rejects.toThrow('stopped by a signal')
  })
})
