// weftd.test.ts - what ends weftd before it is a daemon, and with which exit code.

import { afterEach, expect, it, vi } from 'vitest'
import { main } from '../../../src/cli/weftd.ts'

const started = vi.hoisted(() => vi.fn<() => Promise<never>>())
vi.mock('../../../src/begin.ts', () => ({ runDaemon: started }))
vi.mock('../../../src/host/addon.ts', () => ({ addon: { featureNames: ['tun-tso', 'udp-gso'] } }))

afterEach(() => {
  vi.restoreAllMocks()
})

it.each([
  [['--nonsense'], {}, 'weftd: flag provided but not defined: -nonsense; see --help\n'],
  [['--without', 'magic'], {}, 'weftd: --without magic: there is no such feature; choose from tun-tso, udp-gso\n'],
  [
    [],
    { FLANNELD_WITHOUT: 'magic' },
    'weftd: --without magic: there is no such feature; choose from tun-tso, udp-gso\n',
  ],
  [
    ['--engine', 'dgram', '--without', 'udp-gso'],
    {},
    'weftd: --without udp-gso: the engine dgram uses no such feature; leave it out, or take the native engine\n',
  ],
  [['--workers', '0'], {}, 'weftd: --workers is 0; give it 1 to 16\n'],
  [[], { FLANNELD_ENGINE: 'warp' }, 'weftd: unknown engine: warp; choose one of native, dgram, naive\n'],
  [['--iface-wait', '-1'], {}, 'weftd: --iface-wait is -1; give it seconds, 0 for no wait\n'],
])('%j with %j is one line and exit code 2, and no daemon is started', async (args, environment, line) => {
  const written: string[] = []
  vi.spyOn(process.stderr, 'write').mockImplementation((text) => written.push(String(text)) > 0)
  expect(await main('weftd', args, environment)).toBe(2)
  expect(written).toEqual([line])
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
  // Refused when the log is there, before anything is started.
  expect(await main('weftd', [...args, '--subnet-lease-renew-margin=0'], environment)).toBe(1)
  const said = written.flatMap((line) => /^W.*\] -(\w+) does nothing/.exec(line)?.[1] ?? [])
  expect(said).toEqual(names)
  expect(started).not.toHaveBeenCalled()
})
