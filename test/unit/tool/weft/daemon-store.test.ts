// daemon-store.test.ts - the tool finds the store and the credentials of the daemon.

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import { applyEnvironment, parseFlags } from '../../../../src/base/go-flags.ts'
import { STORE_FLAGS } from '../../../../src/options.ts'
import {
  daemonStore,
  explained,
  parseEnvironmentFile,
  withDefaultsOf,
  type Places,
} from '../../../../src/tool/weft/daemon-store.ts'
import { soundStatus } from '../../../support/facts.ts'

let places: Places
let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-daemon-store-'))
  places = { proc: join(folder, 'proc'), defaults: join(folder, 'default') }
  mkdirSync(join(places.proc, String(soundStatus.daemon.pid)), { recursive: true })
})
afterEach(() => rmSync(folder, { recursive: true }))

const FILES = { caFile: '/etc/etcd/ca.pem', certFile: '/etc/etcd/node.pem', keyFile: '/etc/etcd/node-key.pem' }
const status = {
  ...soundStatus,
  daemon: { ...soundStatus.daemon, leases: 'https://192.0.2.9:2379 /n', etcdFiles: FILES },
}

/** Makes the files of a daemon process with this environment. */
function runs(name: string, environment: readonly string[]): void {
  const own = join(places.proc, String(soundStatus.daemon.pid))
  writeFileSync(join(own, 'cmdline'), `${name}\0\0\0`)
  writeFileSync(join(own, 'environ'), environment.map((line) => `${line}\0`).join(''))
}

/** Returns the options with secrets in plain text, without those that have default values. */
async function found(told: typeof status | undefined, given: NodeJS.Dict<string> = {}) {
  const flags = applyEnvironment(STORE_FLAGS, parseFlags(STORE_FLAGS, []), 'FLANNELD', given, () => {})
  const options = withDefaultsOf(flags, (await daemonStore(told, places)).options)
  return {
    ...options,
    'etcd-endpoints': options['etcd-endpoints'].reveal(),
    'etcd-password': options['etcd-password'].reveal(),
  }
}

it("takes the store's endpoint and files from the status, and the credentials from the environment of the process", async () => {
  runs('weftd', [
    'PATH=/bin',
    'FLANNELD_ETCD_USERNAME=node',
    'FLANNELD_ETCD_PASSWORD=a=b c',
    'FLANNELD_ETCD_PREFIX=/other',
  ])
  writeFileSync(places.defaults, 'FLANNELD_ETCD_PASSWORD=older\n')
  const wanted = {
    'etcd-endpoints': 'https://192.0.2.9:2379',
    'etcd-prefix': '/n',
    'lease-dir': '',
    'etcd-cafile': FILES.caFile,
    'etcd-certfile': FILES.certFile,
    'etcd-keyfile': FILES.keyFile,
    'etcd-username': 'node',
    'etcd-password': 'a=b c',
  }
  expect(await found(status)).toEqual(wanted)
  // Options on the command line must take precedence.
  expect(await found(status, { FLANNELD_ETCD_PASSWORD: 'mine' })).toEqual({ ...wanted, 'etcd-password': 'mine' })
})

it('ignores a process that is not a daemon and has the pid by chance', async () => {
  runs('/usr/bin/mysqld', ['FLANNELD_ETCD_PASSWORD=not-ours'])
  writeFileSync(places.defaults, 'FLANNELD_ETCD_PASSWORD=ours\n')
  expect(await found(status)).toMatchObject({ 'etcd-endpoints': 'https://192.0.2.9:2379', 'etcd-password': 'ours' })
})

it('takes the files from the environment if an older daemon does not report them', async () => {
  runs('flanneld', ['FLANNELD_ETCD_CAFILE=/ca'])
  const { etcdFiles: _, ...daemon } = status.daemon
  expect(await found({ ...status, daemon } as typeof status)).toMatchObject({
    'etcd-cafile': '/ca',
    'etcd-prefix': '/n',
  })
})

it('takes the store from /etc/default/weftd if no daemon answers', async () => {
  writeFileSync(
    places.defaults,
    ['FLANNELD_ETCD_ENDPOINTS=https://192.0.2.8:2379', 'FLANNELD_ETCD_CAFILE=/ca', 'FLANNELD_IP_MASQ=true'].join('\n'),
  )
  expect(await found(undefined)).toMatchObject({ 'etcd-endpoints': 'https://192.0.2.8:2379', 'etcd-cafile': '/ca' })
  writeFileSync(places.defaults, 'FLANNELD_LEASE_DIR=/srv/weft\n')
  expect(await found(undefined)).toMatchObject({ 'lease-dir': '/srv/weft' })
  rmSync(places.defaults)
  expect((await daemonStore(undefined, places)).options).toEqual({})
})

it('shows no password that it found', async () => {
  runs('weftd', ['FLANNELD_ETCD_PASSWORD=sesame'])
  expect(JSON.stringify(await daemonStore(status, places))).not.toContain('sesame')
})

it('names the file that it could not read if credentials may be missing', () => {
  const refused = new WeftError('STORE', 'etcd denied access', { remedy: 'give --etcd-username' })
  const unread = { unread: '/proc/7/environ' }
  expect(explained(refused, unread)).toMatchObject({
    code: 'STORE',
    message: 'etcd denied access',
    remedy: "run this as root, which may read weftd's credentials (/proc/7/environ), or give --etcd-username",
  })
  const away = new WeftError('STORE_UNAVAILABLE', 'etcd cannot be reached', { remedy: 'check that etcd runs' })
  expect(explained(away, unread)).toBe(away)
  expect(explained(refused, { unread: undefined })).toBe(refused)
})

it.each([
  ['A=1\nB=2\n', { A: '1', B: '2' }],
  ['# A=0\n;B=0\n  C = 3  \r\nD=4\r\n', { C: '3', D: '4' }],
  [`A="a 'b' \\" $c"\nB='a "b" \\n'\n`, { A: `a 'b' " $c`, B: 'a "b" \\n' }],
  ['A=one \\\ntwo\nB=a\\ b\n', { A: 'one two', B: 'a b' }],
  ['A=\nexport B=1\nnot a variable\nC=x#y', { A: '', C: 'x#y' }],
  ['A="open\nB=1', { B: '1' }],
])('parses a systemd environment file: %j', (text, variables) => {
  expect(parseEnvironmentFile(text)).toEqual(variables)
})
