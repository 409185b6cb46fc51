// notify.test.ts - the messages to the service manager, and the effect of an invalid environment.

import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { takeNotifier, type Notifier } from '../../../src/report/notify.ts'
import { readingOf } from '../../../src/report/states.ts'

let sent: [socket: string, message: string][]
let given: (readonly number[])[]
let lines: string[]
let failure: Error | undefined
beforeEach(() => {
  sent = []
  given = []
  lines = []
  failure = undefined
})

afterEach(() => void vi.useRealTimers())

const log = { info: () => {}, warn: (text: string) => void lines.push(text), error: () => {}, v: () => false }
const send = (socket: string, message: string, fds: readonly number[]): void => {
  if (failure) throw failure
  sent.push([socket, message])
  given.push(fds)
}
const take = (environment: NodeJS.ProcessEnv): Promise<Notifier | undefined> =>
  takeNotifier(environment, 77, log, async () => send)
const refusal = (code: string): Error => Object.assign(new Error(`sendto: ${code}`), { code })

describe('the notifier', () => {
  it('sends each change once', async () => {
    const notifier = (await take({ NOTIFY_SOCKET: '/run/manager' }))!
    notifier.report({ ready: false, status: 'waiting' })
    notifier.report({ ready: false, status: 'waiting' })
    notifier.report({ ready: true, status: '3 peers' })
    notifier.report({ ready: true, status: '3 peers' })
    notifier.report({ ready: true, status: '4 peers\nREADY=0' })
    notifier.alive()
    notifier.stopping()
    expect(new Set(sent.map(([socket]) => socket))).toEqual(new Set(['/run/manager']))
    expect(sent.map(([, message]) => message)).toEqual([
      'STATUS=waiting',
      'READY=1\nSTATUS=3 peers',
      'STATUS=4 peers READY=0',
      'WATCHDOG=1',
      `STOPPING=1\nSTATUS=${readingOf({ state: 'leaving', impairments: [] }).words}`,
    ])
    expect(lines).toEqual([])
  })

  it('hands over descriptors by name, and makes the manager forget them', async () => {
    const notifier = (await take({ NOTIFY_SOCKET: '/run/manager' }))!
    await notifier.keep([
      { fd: 7, name: 'weft-0' },
      { fd: 9, name: 'weft-1' },
    ])
    await notifier.forget(['weft-0'])
    expect(sent.map(([, message]) => message)).toEqual([
      'FDSTORE=1\nFDPOLL=0\nFDNAME=weft-0',
      'FDSTORE=1\nFDPOLL=0\nFDNAME=weft-1',
      'FDSTOREREMOVE=1\nFDNAME=weft-0',
    ])
    expect(given).toEqual([[7], [9], []])
  })

  it.each(['alive', 'stopping'] as const)('sends keep-alive messages by itself until %s is called', async (end) => {
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] })
    const notifier = (await take({ NOTIFY_SOCKET: '/run/manager', WATCHDOG_USEC: '30000000' }))!
    notifier.aliveMeanwhile()
    notifier.aliveMeanwhile()
    sent = []
    vi.advanceTimersByTime(14_999)
    expect(sent).toEqual([])
    vi.advanceTimersByTime(15_001)
    expect(sent.map(([, message]) => message)).toEqual(['WATCHDOG=1', 'WATCHDOG=1'])
    notifier[end]()
    sent = []
    vi.advanceTimersByTime(60_000)
    expect(sent).toEqual([])
  })

  it('sends no keep-alive messages by itself to a manager without a watchdog', async () => {
    const notifier = (await take({ NOTIFY_SOCKET: '/run/manager' }))!
    notifier.aliveMeanwhile()
    expect(sent).toEqual([])
  })

  it('sends again what a busy manager did not receive, and keeps no descriptor before it forgot an earlier one', async () => {
    const notifier = (await take({ NOTIFY_SOCKET: '/run/manager' }))!
    failure = refusal('EAGAIN')
    const done = Promise.all([notifier.forget(['weft-0']), notifier.keep([{ fd: 7, name: 'weft-0' }])])
    await new Promise((resolve) => setImmediate(resolve))
    failure = undefined
    await done
    expect(sent.map(([, message]) => message)).toEqual([
      'FDSTOREREMOVE=1\nFDNAME=weft-0',
      'FDSTORE=1\nFDPOLL=0\nFDNAME=weft-0',
    ])
  })

  it('repeats later the changes that a busy manager did not receive', async () => {
    const notifier = (await take({ NOTIFY_SOCKET: '@manager' }))!
    failure = refusal('EAGAIN')
    notifier.report({ ready: true, status: 'fine' })
    failure = undefined
    notifier.report({ ready: true, status: 'fine' })
    expect(sent).toEqual([['@manager', 'READY=1\nSTATUS=fine']])
    expect(lines).toEqual([])
  })

  it('logs one line about a missing socket, and continues', async () => {
    const notifier = (await take({ NOTIFY_SOCKET: '/run/nobody' }))!
    failure = refusal('ENOENT')
    notifier.report({ ready: true, status: 'fine' })
    notifier.alive()
    notifier.stopping()
    expect(lines).toEqual(['Cannot notify the service manager at /run/nobody: sendto: ENOENT'])
  })

  it('removes its variables from the environment, so that no child can send messages for the daemon', async () => {
    const environment = { NOTIFY_SOCKET: '/run/manager', WATCHDOG_USEC: '1000000', WATCHDOG_PID: '77', PATH: '/bin' }
    await take(environment)
    expect(environment).toEqual({ PATH: '/bin' })
  })

  it.each([undefined, ''])('does not exist if NOTIFY_SOCKET is %j', async (socket) => {
    const unused = async (): Promise<never> => {
      throw new Error('the addon was loaded for nothing')
    }
    const environment = socket === undefined ? {} : { NOTIFY_SOCKET: socket }
    expect(await takeNotifier(environment, 77, log, unused)).toBeUndefined()
    expect(lines).toEqual([])
  })

  it.each(['run/manager', 'vsock:2:1234', '/', '@'])('does not exist, and logs why, for %s', async (socket) => {
    expect(await take({ NOTIFY_SOCKET: socket })).toBeUndefined()
    expect(lines).toEqual([expect.stringMatching(/^NOTIFY_SOCKET is /)])
  })

  it.each([
    [{ WATCHDOG_USEC: '30000000', WATCHDOG_PID: '77' }, 15_000, 0],
    [{ WATCHDOG_USEC: '3000000' }, 1_500, 0],
    [{ WATCHDOG_USEC: '30000000', WATCHDOG_PID: '78' }, undefined, 0],
    [{ WATCHDOG_USEC: '0' }, undefined, 1],
    [{ WATCHDOG_USEC: '30s' }, undefined, 1],
    [{}, undefined, 0],
  ])('sends, for %j, a keep-alive message every %j ms', async (variables, aliveMs, complaints) => {
    const notifier = (await take({ NOTIFY_SOCKET: '/run/manager', ...variables }))!
    expect(notifier.aliveMs).toBe(aliveMs)
    expect(lines).toHaveLength(complaints)
  })
})
