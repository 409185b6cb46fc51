// weftd.test.ts - what ends weftd before it is a daemon, and with which exit code.

import { afterEach, expect, it, vi } from 'vitest'
import { Superseded } from '../../src/node/restart/lender.ts'
import { LEAVE_MS } from '../../src/node/restart/protocol.ts'
import { main, STOP_MS } from '../../src/weftd.ts'

const { started, notify } = vi.hoisted(() => ({
  started: vi.fn<(options: unknown, log: unknown, stopping: AbortController) => Promise<never>>(),
  notify: vi.fn<(socket: string, message: string) => void>(),
}))
vi.mock('../../src/begin.ts', () => ({ runDaemon: started }))
vi.mock('../../src/host/addon.ts', () => ({ addon: { featureNames: ['tun-tso', 'udp-gso'], notify } }))
vi.mock('../../src/node/restart/rendezvous.ts', () => ({ rendezvousAt: () => ({ untilFree: async () => {} }) }))

const SIGNALS = ['SIGINT', 'SIGTERM'] as const
const before = new Map(SIGNALS.map((signal) => [signal, process.listeners(signal)]))
afterEach(() => {
  vi.useRealTimers()
  vi.restoreAllMocks()
  started.mockReset()
  // `main` does not remove its signal handlers, because weftd's process ends with `main`.
  for (const signal of SIGNALS)
    for (const handler of process.listeners(signal).filter((each) => !before.get(signal)!.includes(each)))
      process.off(signal, handler)
})

it.each([
  [
    ['--lease-dri', '/x'],
    {},
    'weftd: flag provided but not defined: -lease-dri; see --help; did you mean --lease-dir?\n',
  ],
  [['--nonsense'], {}, 'weftd: flag provided but not defined: -nonsense; see --help\n'],
  [['--without', 'magic'], {}, 'weftd: --without magic: unknown feature; choose from tun-tso, udp-gso\n'],
  [[], { FLANNELD_WITHOUT: 'magic' }, 'weftd: --without magic: unknown feature; choose from tun-tso, udp-gso\n'],
  [
    ['--engine', 'dgram', '--without', 'udp-gso'],
    {},
    'weftd: --without udp-gso: the engine dgram does not use kernel features; leave --without out, or use the native engine\n',
  ],
  [['--workers', '0'], {}, 'weftd: --workers is 0; give a number from 1 to 16\n'],
  [[], { FLANNELD_ENGINE: 'warp' }, 'weftd: unknown engine: warp; choose one of native, dgram\n'],
  [['--iface-wait', '-1'], {}, 'weftd: --iface-wait is -1; give a number of seconds, or 0 for no wait\n'],
])('%j with %j is one line and exit code 2, and no daemon is started', async (args, environment, line) => {
  const written: string[] = []
  vi.spyOn(process.stderr, 'write').mockImplementation((text) => written.push(String(text)) > 0)
  expect(await main('weftd', args, environment)).toBe(2)
  expect(written).toEqual([line])
  expect(started).not.toHaveBeenCalled()
})

it.each<[readonly string[], Record<string, string>, readonly string[]]>([
  [
    ['--ip-masq', 'false', '--etcd-endpoints', 'http://192.0.2.1:2379', '-etcd-password=CANARY'],
    {},
    ['"false" is not a flag, so --etcd-endpoints, --etcd-password have no effect; write --ip-masq=false'],
  ],
  [
    ['--subnet-file=/run/x', 'CANARY', '--CANARY'],
    {},
    [
      'The word after --subnet-file is not a flag, so what follows has no effect; write flags before all other words, or leave these out',
    ],
  ],
  [
    ['CANARY', '-v=9'],
    {},
    ['The first word is not a flag, so --v has no effect; write flags before all other words, or leave these out'],
  ],
  [[], { FLANNELD_IFCE: 'CANARY' }, ['No flag has the variable FLANNELD_IFCE; did you mean FLANNELD_IFACE?']],
  [[], { FLANNELD_COLOUR: 'CANARY', FLANNELD_IFCE: '', WEFT_X: '1' }, ['No flag has the variable FLANNELD_COLOUR']],
  [[], { FLANNELD_IP_MASQ: 'true' }, []],
])('of %j with %j it names what nobody reads, without its value', async (args, environment, lines) => {
  const written: string[] = []
  vi.spyOn(process.stderr, 'write').mockImplementation((text) => written.push(String(text)) > 0)
  expect(await main('weftd', args, { FLANNELD_SUBNET_LEASE_RENEW_MARGIN: '0', ...environment })).toBe(1)
  expect(written.flatMap((line) => /^W.*?\] (.*)\n$/.exec(line)?.[1] ?? [])).toEqual(lines)
  expect(written.join('')).not.toContain('CANARY')
  expect(started).not.toHaveBeenCalled()
})

it.each([
  [['-vmodule=a=2'], {}, ['vmodule']],
  [[], { FLANNELD_LOG_BACKTRACE_AT: 'a.go:1' }, ['log_backtrace_at']],
  [['-vmodule=a=2', '-log_backtrace_at', 'a.go:1'], {}, ['vmodule', 'log_backtrace_at']],
  [[], {}, []],
])('of %j with %j it says once what does nothing', async (args, environment, names) => {
  const written: string[] = []
  vi.spyOn(process.stderr, 'write').mockImplementation((text) => written.push(String(text)) > 0)
  // weftd must refuse the flag after it has set up its log, and before it starts anything.
  expect(await main('weftd', [...args, '--subnet-lease-renew-margin=0'], environment)).toBe(1)
  const said = written.flatMap((line) => /^W.*\] -(\w+) does nothing/.exec(line)?.[1] ?? [])
  expect(said).toEqual(names)
  expect(started).not.toHaveBeenCalled()
})

it('sends keep-alive messages while it starts again because its successor has ended', async () => {
  vi.spyOn(process.stderr, 'write').mockImplementation(() => true)
  let alive = 0
  notify.mockImplementation((_socket, message) => void (alive += message === 'WATCHDOG=1' ? 1 : 0))
  started.mockRejectedValueOnce(new Superseded('end', () => {})).mockImplementationOnce(async () => {
    // The second start waits for the store. systemd ends a process that sends no message for 30 s.
    const earlier = alive
    vi.advanceTimersByTime(60_000)
    expect(alive - earlier).toBe(4)
    throw new Error('the end of the test')
  })
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] })
  const environment = { NOTIFY_SOCKET: '/run/manager', WATCHDOG_USEC: '30000000' }
  expect(await main('weftd', [], environment)).toBe(1)
  expect(started).toHaveBeenCalledTimes(2)
  expect(alive).toBe(5)
})

it.each([
  ['a signal', new Error('stopped by a signal'), STOP_MS],
  ['a weftd that takes over', new Superseded('end', () => {}), STOP_MS],
  // The removal of a route from a cloud may take 10 s, and the deletion of the lease 3 s more (node/end.ts).
  ['weftd --leave', new Superseded('leave', () => {}), LEAVE_MS],
])('kills its process if a stop for %s takes too long, but not earlier', async (_why, reason, limitMs) => {
  vi.spyOn(process.stderr, 'write').mockImplementation(() => true)
  const kill = vi.spyOn(process, 'kill').mockReturnValue(true)
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance'] })
  started.mockImplementationOnce(async (_options, _log, stopping) => {
    stopping.abort(reason)
    vi.advanceTimersByTime(limitMs - 100)
    expect(kill).not.toHaveBeenCalled()
    vi.advanceTimersByTime(200)
    expect(kill).toHaveBeenCalledExactlyOnceWith(process.pid, 'SIGKILL')
    throw reason
  })
  await main('weftd', [], {})
  expect(started).toHaveBeenCalledTimes(1)
})
