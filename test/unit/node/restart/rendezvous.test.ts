// rendezvous.test.ts - the lock for a subnet file, and the files that are removed with it.

import { execFileSync, spawnSync } from 'node:child_process'
import type * as Fs from 'node:fs'
import { existsSync, mkdirSync, mkdtempSync, openSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { addon } from '../../../../src/host/addon.ts'
import { selinuxRemedy } from '../../../../src/host/kernel-errors.ts'
import { handoverLock, rendezvousAt, type Rendezvous } from '../../../../src/node/restart/rendezvous.ts'

vi.mock('../../../../src/host/kernel-errors.ts', () => ({ selinuxRemedy: vi.fn<() => string | undefined>() }))
vi.mock('node:fs', { spy: true })

let folder: string
let rendezvous: Rendezvous
const options = () => ({ 'subnet-file': join(folder, 'subnet.env') })
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-rendezvous-'))
  rendezvous = rendezvousAt(options(), (message) => expect.fail(message))
})
afterEach(() => {
  vi.restoreAllMocks()
  rmSync(folder, { recursive: true })
})

it('has one owner at a time, and no file of it remains after it was removed', async () => {
  const lock = rendezvous.tryLock()!
  rendezvous.listen().close()
  expect(rendezvous.owner()).toBe(process.pid)
  expect(rendezvous.tryLock()).toBeUndefined()
  rendezvous.remove()
  lock.close()
  expect(readdirSync(folder)).toEqual([])
  await rendezvous.untilFree()
  expect(readdirSync(folder)).toEqual([])
})

it('makes the missing folders of the subnet file', () => {
  const deep = { 'subnet-file': join(folder, 'a/b/subnet.env') }
  const lock = rendezvousAt(deep, (message) => expect.fail(message)).tryLock()!
  expect(existsSync(handoverLock(deep))).toBe(true)
  lock.close()
})

it('has a lock although another weftd makes the missing folders at the same time', async () => {
  const { mkdirSync: make } = await vi.importActual<typeof Fs>('node:fs')
  const deep = { 'subnet-file': join(folder, 'a/b/subnet.env') }
  const making = vi.mocked(mkdirSync).mockImplementation((path, wish) => {
    make(path, wish)
    if (path === join(folder, 'a')) make(join(folder, 'a/b'))
    return undefined
  })
  const lock = rendezvousAt(deep, (message) => expect.fail(message)).tryLock()!
  expect(making).toHaveBeenCalledWith(join(folder, 'a'), expect.anything())
  expect(lock.fd).toBeGreaterThan(0)
  lock.close()
})

it.skipIf(process.getuid?.() !== 0)('names a read-only file system', () => {
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'ro', 'tmpfs', folder])
  try {
    const warnings: string[] = []
    rendezvousAt({ 'subnet-file': join(folder, 'a/b/subnet.env') }, (message) => warnings.push(message)).tryLock()
    expect(warnings).toEqual([expect.stringMatching(/^Cannot watch for another weftd .*: EROFS/)])
  } finally {
    spawnSync('umount', [folder])
  }
})

it('warns about a folder that cannot exist', () => {
  const warn = vi.fn<(message: string) => void>()
  rendezvousAt({ 'subnet-file': '/proc/nonexistent/x/subnet.env' }, warn).tryLock()
  expect(warn).toHaveBeenCalledExactlyOnceWith(expect.stringContaining('ENOENT'))
})

it('is not acquired with a file that its owner has removed meanwhile', () => {
  const { tryLockFile } = addon
  const trying = vi.spyOn(addon, 'tryLockFile').mockImplementationOnce((fd) => {
    rmSync(handoverLock(options()))
    return tryLockFile(fd)
  })
  expect(rendezvous.tryLock()).toBeUndefined()
  expect(trying).toHaveBeenCalledOnce()
  const lock = rendezvous.tryLock()!
  expect(existsSync(handoverLock(options()))).toBe(true)
  lock.close()
})

it('names no process of another PID namespace, because its number means another process here', () => {
  const lock = rendezvous.tryLock()!
  expect(rendezvous.owner()).toBe(process.pid)
  writeFileSync(handoverLock(options()), `${process.pid} pid:[1]\n`)
  expect(rendezvous.owner()).toBeUndefined()
  writeFileSync(handoverLock(options()), '7\n') // as it is written if /proc does not tell the namespace
  expect(rendezvous.owner()).toBe(7)
  lock.close()
})

it.each([
  ['without SELinux', undefined, 'run weftd as the user that ran before, or remove what that one left: `weft cleanup`'],
  [
    'with SELinux, which may forbid the file of a pod with other categories',
    'SELinux may forbid it',
    'SELinux may forbid it; otherwise run weftd as the user that ran before, or remove what that one left: `weft cleanup`',
  ],
])('says why the lock file may not be opened: %s', (_, selinux, remedy) => {
  vi.mocked(selinuxRemedy).mockReturnValue(selinux)
  vi.mocked(openSync).mockImplementationOnce(() => {
    throw Object.assign(new Error('EACCES: permission denied'), { code: 'EACCES' })
  })
  expect(() => rendezvous.tryLock()).toThrow(
    expect.objectContaining({
      code: 'PERMISSION',
      message: 'cannot find out whether another weftd runs: EACCES: permission denied',
      remedy,
    }),
  )
})
