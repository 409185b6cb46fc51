// store-name.test.ts - the name that identifies a store: of whatever address, and before the file server of a lease directory answers.

import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { isSameStore, storeNameOf } from '../../../../src/node/restart/last-known.ts'
import { optionsOf } from '../../../support/options.ts'

/** Calls for paths below this folder never end, as on a file server that is gone. */
let gone = '/nowhere'
vi.mock('node:fs/promises', async (load) => {
  const real = await load<{ readlink(path: string): Promise<string> }>()
  const readlink = (path: string): Promise<string> =>
    path.startsWith(`${gone}/`) ? new Promise(() => {}) : real.readlink(path)
  return { ...real, readlink }
})

let folder: string
beforeEach(() => (folder = realpathSync(mkdtempSync(join(tmpdir(), 'weft-store-name-')))))
afterEach(() => {
  gone = '/nowhere'
  rmSync(folder, { recursive: true })
})

const nameFor = (...flags: readonly string[]): Promise<string> => storeNameOf(optionsOf(...flags).store)

it.each([
  [
    'the Kubernetes API at another address',
    ['--kube-subnet-mgr', '--kube-api-url', 'https://192.0.2.1:6443'],
    ['--kube-subnet-mgr'],
  ],
  [
    'another kubeconfig',
    ['--kube-subnet-mgr', '--kubeconfig-file', '/etc/a'],
    ['--kube-subnet-mgr', '--kubeconfig-file', '/etc/b'],
  ],
  ['etcd with a slash behind the prefix', ['--etcd-prefix', '/a/b/'], ['--etcd-prefix', '/a//b']],
  [
    'etcd at another address',
    ['--etcd-endpoints', 'http://192.0.2.1:2379'],
    ['--etcd-endpoints', 'http://192.0.2.2:2379'],
  ],
])('%s is the same store', async (_what, some, others) => {
  expect(isSameStore(await nameFor(...some), await nameFor(...others))).toBe(true)
})

it.each([
  [
    ['--etcd-prefix', '/a'],
    ['--etcd-prefix', '/b'],
  ],
  [
    ['--etcd-prefix', '/a'],
    ['--etcd-prefix', 'a'],
  ],
  [
    ['--lease-dir', '/a'],
    ['--lease-dir', '/b'],
  ],
  [['--lease-dir', '/a'], ['--kube-subnet-mgr']],
])('%j and %j are two stores', async (some, others) => {
  expect(isSameStore(await nameFor(...some), await nameFor(...others))).toBe(false)
})

// The names in the second column are those that weft 0.2.0 wrote.
it.each([
  [['--kube-subnet-mgr'], 'kubernetes  '],
  [['--kube-subnet-mgr'], 'kubernetes https://192.0.2.1:6443 /etc/kubeconfig'],
  [['--etcd-prefix', '/a/b'], 'etcd /a/b/'],
  [['--lease-dir', '/no/such'], 'directory /no/such'],
])('with %j reads the name that an earlier version wrote: %s', async (flags, written) => {
  expect(isSameStore(written, await nameFor(...flags))).toBe(true)
})

// weft 0.2.0 compares the name as a text, with the name that it makes itself of the flags.
it.each([
  [['--kube-subnet-mgr'], 'kubernetes  '],
  [
    ['--kube-subnet-mgr', '--kube-api-url', 'https://192.0.2.1:6443', '--kubeconfig-file', '/etc/kubeconfig'],
    'kubernetes https://192.0.2.1:6443 /etc/kubeconfig',
  ],
  [['--etcd-prefix', '/a//b/'], 'etcd /a//b/'],
])('with %j has the form that weft 0.2.0 accepts after a downgrade: %s', async (flags, expected) => {
  expect(await nameFor(...flags)).toBe(expected)
})

it('is that of the folder to which a link leads, even while the folder is missing', async () => {
  mkdirSync(join(folder, 'a'))
  symlinkSync('a/leases', join(folder, 'relative'))
  symlinkSync(join(folder, 'relative'), join(folder, 'absolute'))
  for (const path of ['a/leases', 'relative', 'absolute', 'absolute/', 'a/../relative'])
    expect(await nameFor('--lease-dir', `${folder}/${path}`)).toBe(`directory ${folder}/a/leases`)
  expect(await nameFor('--lease-dir', join(folder, 'absolute', 'b'))).toBe(`directory ${folder}/a/leases/b`)
})

it('has an end if links lead in a circle', async () => {
  symlinkSync('b', join(folder, 'a'))
  symlinkSync('a', join(folder, 'b'))
  expect(await nameFor('--lease-dir', join(folder, 'a'))).toMatch(/^directory .*\/[ab]$/)
})

it('is known, and the process goes on, while the file server of a lease directory does not answer', async () => {
  mkdirSync(join(folder, 'mount'))
  symlinkSync('mount/leases', join(folder, 'leases'))
  const known = await nameFor('--lease-dir', join(folder, 'leases'))
  gone = join(folder, 'mount')
  expect(await nameFor('--lease-dir', join(folder, 'leases'))).toBe(known)
})
