// wireguard-device.test.ts - passing keys to wg in a file that only root can read and that exists only during the call.

import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs'
import { symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import { Secret } from '../../../../src/base/secret.ts'
import { run as runForReal, type Run } from '../../../../src/host/command.ts'
import { FollowedLink } from '../../../../src/host/links.ts'
import { hostKernel } from '../../../../src/host/no-kernel.ts'
import { openWireguardDevice } from '../../../../src/path/backends/wireguard-device.ts'
import { log } from '../../../support/fake-host.ts'

const PSK = 'MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY='
/** The private key of the node. */
const KEY = 'dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo='
const PEER = { publicKey: 'K', endpoint: '192.0.2.1:51820', allowedIps: ['10.5.2.0/24'] }

let folder: string
/** The content of the file when wg ran, the modes of the file and its folder, and its path. */
let seen: { readonly text: string; readonly modes: readonly number[]; readonly folder: string }[]
let refuses: boolean
/** The peers that wg prints. */
let dumped: readonly string[]
/** Called when `wg` starts. */
let meanwhile: () => Promise<void>
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-wg-'))
  vi.stubEnv('TMPDIR', '/nowhere') // as with a read-only root
  ;[seen, refuses, meanwhile, dumped] = [[], false, async () => {}, []]
  host = { name: undefined, calls: [] }
})
afterEach(() => {
  vi.unstubAllEnvs()
  rmSync(folder, { recursive: true })
})

/** The device's name, and the commands of wg. */
let host: { name: string | undefined; readonly calls: string[] }
const run: Run = async (file, args) => {
  if (file === 'ip' && args.includes('show')) {
    const isAsked = !args.includes('dev') || args.at(-1) === host.name
    return host.name !== undefined && isAsked ? JSON.stringify([{ ifindex: 9, ifname: host.name }]) : '[]'
  }
  if (file === 'wg') host.calls.push(args.join(' '))
  if (file === 'wg' && args[0] === 'show') return ['priv\tPUB\t51820\toff', ...dumped, ''].join('\n')
  const at = args.findIndex((word) => word === 'preshared-key' || word === 'private-key')
  if (at < 0) return ''
  if (args[at] === 'preshared-key') await meanwhile()
  const path = args[at + 1]!
  const modes = [path, dirname(path)].map((each) => statSync(each).mode & 0o777)
  seen.push({ text: readFileSync(path, 'utf8'), modes, folder: dirname(dirname(path)) })
  if (refuses) throw new WeftError('COMMAND', 'wg failed')
  return ''
}
const open = (keyFile: string, device = new FollowedLink('flannel-wg')) =>
  openWireguardDevice({
    link: device,
    keyFile,
    privateKey: new Secret(KEY),
    ownKey: 'PUB',
    port: 51_820,
    psk: new Secret(PSK),
    keepalive: 0,
    run,
    kernel: hostKernel,
    log,
  })

/** Returns weftd's key folders in memory. */
const inMemory = (): string[] => readdirSync('/dev/shm').filter((name) => name.startsWith(`.weft-${process.pid}-`))

it('the key file stays until wg has read it, even if another device is opened meanwhile', async () => {
  const keyFile = join(folder, 'wgkey')
  const device = await open(keyFile)
  meanwhile = async () => void (await open(keyFile))
  await device.setPeers([PEER])
  expect(seen.map(({ text }) => text)).toEqual([KEY, KEY, PSK]) // the key of the first device, of the second, and the psk of the first device's peer
})

it('the key file is in memory, readable only for root, and is removed, also if wg fails', async () => {
  const device = await open(join(folder, 'wgkey'))
  for (refuses of [false, true]) {
    const failure = await device.setPeers([PEER]).then(() => undefined, String)
    expect(failure).toBe(refuses ? 'WeftError: wg failed' : undefined)
    expect(seen.at(-1)).toEqual({ text: PSK, modes: [0o600, 0o700], folder: '/dev/shm' })
    expect([readdirSync(folder), inMemory()]).toEqual([[], []])
  }
})

it('reports the state of each session, and the age of its keys while they are valid', async () => {
  vi.useFakeTimers({ toFake: ['Date'], now: 1_000_000_000_000 })
  try {
    const device = await open(join(folder, 'wgkey'))
    const none = 'K1\t(none)\t(none)\t10.5.2.0/24\t0\t0\t148\toff'
    const line = (key: string, at: number): string => `${key}\t${PSK}\t192.0.2.2:1\t10.5.3.0/24\t${at}\t600\t700\t25`
    dumped = [none, line('K2', 999_999_980), line('K3', 999_999_820), line('K4', 1_000_000_007)]
    const traffic = await device.traffic()
    const counted = { txBytes: 700, rxBytes: 600 }
    expect([...traffic].map(([key, { session }]) => [key, session])).toEqual([
      ['K1', { publicKey: 'K1', handshakeAt: undefined, ageMs: undefined, txBytes: 148, rxBytes: 0 }],
      ['K2', { publicKey: 'K2', handshakeAt: 999_999_980_000, ageMs: 20_000, ...counted }],
      ['K3', { publicKey: 'K3', handshakeAt: 999_999_820_000, ageMs: undefined, ...counted }],
      // The clock was set back after this handshake.
      ['K4', { publicKey: 'K4', handshakeAt: 1_000_000_007_000, ageMs: 0, ...counted }],
    ])
    expect(JSON.stringify([...traffic])).not.toContain(PSK)
  } finally {
    vi.useRealTimers()
  }
})

it('a key file is removed at the next start if a killed process left it, but not that of a running process', async () => {
  const dead = spawnSync('true').pid
  const left = [`.weft-${dead}-abcdef`, '.weft-abcdef', `.weft-${process.pid}-abcdef`]
  for (const name of [...left, `.weft-${process.ppid}-abcdef`, 'weft-1']) {
    mkdirSync(join(folder, name))
    writeFileSync(join(folder, name, 'psk'), PSK)
  }
  const elsewhere = mkdtempSync('/tmp/weft-wg-')
  symlinkSync(elsewhere, join(folder, `.weft-${dead}-ghijkl`))
  writeFileSync(join(elsewhere, 'kept'), '')
  mkdirSync(`/dev/shm/.weft-${dead}-abcdef`)
  try {
    await open(join(folder, 'wgkey'))
    expect(readdirSync(folder).toSorted()).toEqual(
      [`.weft-${process.ppid}-abcdef`, `.weft-${dead}-ghijkl`, 'weft-1'].toSorted(),
    )
    expect(existsSync(`/dev/shm/.weft-${dead}-abcdef`)).toBe(false)
    expect(readdirSync(elsewhere)).toEqual(['kept'])
  } finally {
    rmSync(elsewhere, { recursive: true })
    rmSync(`/dev/shm/.weft-${dead}-abcdef`, { recursive: true, force: true })
  }
})

it('an invalid key is not in the error of wg', async ({ skip }) => {
  const path = join(folder, 'key')
  writeFileSync(path, `${'sesame'.repeat(8).slice(0, 42)}!=\n`)
  const said = await runForReal('wg', ['set', 'lo', 'private-key', path]).catch((error: Error) => error.message)
  skip(said.includes('not installed'), 'wg is not installed')
  expect(said).toMatch(/not the correct length or format$/)
})

it('a peer is set under the new name of a renamed device, and deleted under that name', async () => {
  const link = new FollowedLink('flannel-wg')
  const commands: string[] = []
  host.name = 'flannel-wg' // a device of an earlier run, and then the new one
  const device = await open(join(folder, 'wgkey'), link)
  host.name = 'other0'
  await link.find(run)
  host.calls.length = 0
  await device.setPeers([PEER])
  await device.traffic()
  for (const call of host.calls) commands.push(call.split(' ').slice(0, 2).join(' '))
  expect(commands).toEqual(['show other0', 'set other0', 'show other0'])
})
