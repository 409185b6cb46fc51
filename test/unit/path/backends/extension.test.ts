// extension.test.ts - parsing and running the commands of the extension backend.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { readSettings } from '../../../../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import type { Lease } from '../../../../src/control/lease/lease.ts'
import { run, type Run, type RunOptions } from '../../../../src/host/command.ts'
import { parseNet } from '../../../../src/net/address.ts'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { createExtensionBackend, wordsOf } from '../../../../src/path/backends/extension.ts'
import { openPaths } from '../../../support/data-paths.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

afterEach(() => vi.unstubAllEnvs())

it.each([
  ['', []],
  ['  /bin/true  ', ['/bin/true']],
  ["post one 'two three'", ['post', 'one', "'two", "three'"]],
  ['a; rm -rf / && $(b) `c` | d', ['a;', 'rm', '-rf', '/', '&&', '$(b)', '`c`', '|', 'd']],
  ['add $SUBNET ${PUBLIC_IP}x $NONE. $', ['add', '10.5.2.0/24', '192.0.2.2x', '.', '$']],
  // A value stays one word, regardless of its content.
  ['say $SPACED', ['say', 'two words']],
  // The results of Go's os.Expand, by which flanneld replaces variables.
  ['$$SUBNET $$ $1x ${1} $10', ['SUBNET', '', 'x', '', '0']],
  ['${SUBNET:-none} ${NONE-x}y ${SUBNET', ['', 'y', 'SUBNET']],
  ['$?! $*a $@ $#b $-c $!d', ['!', 'a', '', 'b', 'c', 'd']],
  ['${}a ${$} $/b $.c $}d $SUBNET/x', ['a', '', '$/b', '$.c', '$}d', '10.5.2.0/24/x']],
  ['$toString ${constructor}', ['', '']],
])('the command %j has the words %j', (command, words) => {
  vi.stubEnv('SPACED', 'two words')
  vi.stubEnv('NONE', undefined)
  expect(wordsOf(command, { SUBNET: '10.5.2.0/24', PUBLIC_IP: '192.0.2.2' })).toEqual(words)
})

it('reads commands regardless of the case of their names, and refuses values that are not text', () => {
  const commands = Object.entries(readSettings('extension', { type: 'extension', subnetaddcommand: 'add' }))
  expect(commands.map(([name, command]) => [name, command.reveal()])).toEqual([
    ['PreStartupCommand', ''],
    ['PostStartupCommand', ''],
    ['SubnetAddCommand', 'add'],
    ['SubnetRemoveCommand', ''],
  ])
  expect(() => readSettings('extension', { prestartupcommand: ['a', 'b'] })).toThrow(
    'Backend.PreStartupCommand is ["a","b"]',
  )
})

describe('a command', () => {
  const lines: string[] = []
  const quiet = { info: () => {}, warn: (line: string) => void lines.push(line), error: () => {}, v: () => false }
  afterEach(() => {
    vi.useRealTimers()
    lines.length = 0
  })
  const external = {
    name: 'lo',
    index: 1,
    mtu: 1500,
    address: { ipv4: parseIpv4('192.0.2.1')! },
    publicIp: { ipv4: parseIpv4('192.0.2.1')! },
  }
  const lease = (n: number): Lease => ({
    key: `10.5.${n}.0-24`,
    subnet: { ipv4: parseNet(`10.5.${n}.0/24`) as never },
    attrs: { publicIp: { ipv4: parseIpv4(`192.0.2.${n}`)! }, backendType: 'extension' },
  })
  function backend(commands: object, how: Run = run) {
    const text = JSON.stringify({ Network: '10.5.0.0/16', Backend: { Type: 'extension', ...commands } })
    const config = parseNetworkConfig(text)
    const settings = readSettings('extension', config.backend)
    return createExtensionBackend({
      config,
      settings,
      external: external as never,
      run: how,
      kernel: new ModelKernel(),
      log: quiet,
    })
  }
  const own = { ...lease(1), expiresAt: undefined, revision: 1n }

  it('reads a line feed as its input, and only its standard output is the data of the node', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'extension-'))
    const script = join(folder, 'pre')
    writeFileSync(script, 'read -r data || exit 7; echo "<$data>"; echo noise >&2')
    const extension = backend({ PreStartupCommand: `sh ${script}` })
    // ModelKernel has no interface, so the backend keeps the given one.
    const attrs = await extension.prepare(new AbortController().signal)
    rmSync(folder, { recursive: true })
    expect(attrs.backendData).toBe('<>')
  })

  it('logs a peer like flanneld, with its address', () => {
    expect(backend({}).words?.added?.(lease(2))).toEqual(['Subnet added: 10.5.2.0/24 via 192.0.2.2'])
  })

  it('has no time limit, and is logged with its peer while it still runs', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
    const given: (RunOptions | undefined)[] = []
    let end!: () => void
    const slow: Run = (file, _args, options) => {
      if (file !== 'post') return Promise.resolve('[]')
      given.push(options)
      return new Promise((resolve) => (end = () => resolve('done')))
    }
    const { signal } = new AbortController()
    const opening = openPaths(backend({ PostStartupCommand: 'post $SUBNET' }, slow), own, new ModelKernel(), { signal })
    await vi.advanceTimersByTimeAsync(71_000)
    expect(given).toMatchObject([{ patient: true, signal }])
    expect(lines).toEqual([10, 30, 70].map((at) => `Backend.PostStartupCommand still runs after ${at} s: post $SUBNET`))
    end()
    await opening
    await vi.advanceTimersByTimeAsync(600_000)
    expect(lines).toHaveLength(3)
  })

  it('is logged once a day while it runs for months', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
    const endless: Run = (file) => (file === 'post' ? new Promise(() => {}) : Promise.resolve('[]'))
    const { signal } = new AbortController()
    void openPaths(backend({ PostStartupCommand: 'post' }, endless), own, new ModelKernel(), { signal })
    const dayMs = 86_400_000
    await vi.advanceTimersByTimeAsync(50 * dayMs)
    const before = lines.length
    await vi.advanceTimersByTimeAsync(10 * dayMs)
    expect(lines.length - before).toBe(10)
  })

  it('is ended when the start is aborted', async () => {
    const stopping = new AbortController()
    const opening = openPaths(backend({ PostStartupCommand: 'sleep 600' }), own, new ModelKernel(), stopping)
    stopping.abort(new Error('over'))
    await expect(opening).rejects.toThrow('over')
  })

  it('is ended when its data path is closed, and no command for a peer starts after that', async () => {
    const begun: string[] = []
    const counting: Run = (file, args, options) => {
      if (file === 'sleep') begun.push(options?.env?.['SUBNET'] ?? '')
      return run(file, args, options)
    }
    const { signal } = new AbortController()
    const path = await openPaths(backend({ SubnetAddCommand: 'sleep 600' }, counting), own, new ModelKernel(), {
      signal,
    })
    const applying = path.apply(new Map([2, 3].map((n) => [lease(n).key, lease(n)])), own.key)
    await vi.waitFor(() => expect(begun).toEqual(['10.5.2.0/24']))
    await path.close()
    await applying
    expect(begun).toEqual(['10.5.2.0/24'])
    expect(path.counters()['command_failures']).toBe(0n)
  })
})

it('does not run PreStartupCommand again after a rename of the external interface', async () => {
  const kernel = new ModelKernel()
  const before = { address: parseIpv4('192.0.2.1')!, prefixLength: 24 }
  kernel.addLink({ name: 'eth0', index: 2 }, [before])
  const ran: string[] = []
  const host: Run = async (file) => {
    ran.push(file)
    return 'data'
  }
  const text = JSON.stringify({ Network: '10.5.0.0/16', Backend: { Type: 'extension', PreStartupCommand: 'pre' } })
  const config = parseNetworkConfig(text)
  const address = { ipv4: parseIpv4('192.0.2.1')! }
  const named = { address: {}, publicIp: {} }
  const backend = createExtensionBackend({
    config,
    settings: readSettings('extension', config.backend),
    external: { name: 'eth0', index: 2, mtu: 1500, address, publicIp: address, named },
    run: host,
    kernel,
    log: { info: () => {}, warn: () => {}, error: () => {}, v: () => false },
  })
  const { signal } = new AbortController()
  const attrs = await backend.prepare(signal)
  kernel.rename('eth0', 'uplink0')
  expect([await backend.prepare(signal), backend.external?.name, ran]).toEqual([attrs, 'uplink0', ['pre']])
  await backend.prepare(signal)
  expect(ran).toEqual(['pre', 'pre'])
  // The interface gets another name and another address between two calls.
  kernel.rename('uplink0', 'lan0')
  kernel.act({ kind: 'delete address', device: { name: 'lan0' }, ...before })
  kernel.addAddress('lan0', { address: parseIpv4('192.0.2.7')!, prefixLength: 24 })
  expect((await backend.prepare(signal)).publicIp).toEqual({ ipv4: parseIpv4('192.0.2.7') })
  expect(ran).toEqual(['pre', 'pre', 'pre'])
})
