// key-file.test.ts - the file of the private key: it is created once, readable only for root, in the usual format.

import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import type * as promises from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { Secret } from '../../../../../src/base/secret.ts'
import { changeOf, privateKeyOf, publicKeyTo } from '../../../../../src/path/backends/wireguard/key-file.ts'

/** The error of each write to a file; undefined if the disk has space. */
let full: Error | undefined
vi.mock('node:fs/promises', async (load) => {
  const real = await load<typeof promises>()
  const writeFile: typeof real.writeFile = async (file, ...rest) => {
    if (full && typeof file === 'string') writeFileSync(file, '', { flag: 'wx' }) // the kernel creates the file
    if (full) throw full
    return real.writeFile(file, ...rest)
  }
  return { ...real, writeFile }
})

let folder: string
beforeEach(() => {
  full = undefined
  folder = mkdtempSync(join(tmpdir(), 'weft-key-'))
})
afterEach(() => rmSync(folder, { recursive: true, force: true }))

it('creates a key that only this user can read, and reads it the next time', async () => {
  const file = join(folder, 'deep', 'wgkey')
  const key = await privateKeyOf(file)
  expect(statSync(file).mode & 0o777).toBe(0o400)
  expect(readFileSync(file, 'utf8')).toBe(key.reveal())
  expect(String(key)).toBe('<hidden>')
  const bytes = Buffer.from(key.reveal(), 'base64')
  expect([bytes.length, bytes[0]! & 7, bytes[31]! & 0xc0]).toEqual([32, 0, 0x40])
  expect((await privateKeyOf(file)).reveal()).toBe(key.reveal())
  expect((await privateKeyOf(join(folder, 'other'))).reveal()).not.toBe(key.reveal())
})

it('leaves nothing behind on a full disk, so that the next try creates the key', async () => {
  const file = join(folder, 'wgkey')
  full = Object.assign(new Error('ENOSPC: no space left on device, write'), { code: 'ENOSPC' })
  for (let tries = 0; tries < 2; tries++)
    await expect(privateKeyOf(file)).rejects.toMatchObject({
      code: 'PERMISSION',
      message: `the key file ${file} cannot be created: ENOSPC: no space left on device, write`,
    })
  expect(readdirSync(folder)).toEqual([])
  full = undefined
  const key = await privateKeyOf(file)
  expect([readdirSync(folder), readFileSync(file, 'utf8')]).toEqual([['wgkey'], key.reveal()])
})

it('makes one key if two processes create the file simultaneously', async () => {
  const file = join(folder, 'wgkey')
  const keys = await Promise.all([privateKeyOf(file), privateKeyOf(file), privateKeyOf(file)])
  expect(new Set(keys.map((key) => key.reveal()))).toEqual(new Set([readFileSync(file, 'utf8')]))
})

it('is not replaced by a key without a file, if a symbolic link leads to no file', async () => {
  const file = join(folder, 'wgkey')
  symlinkSync(join(folder, 'gone'), file)
  await expect(privateKeyOf(file)).rejects.toMatchObject({
    code: 'PERMISSION',
    message: `the key file ${file} cannot be created: ENOENT: no such file or directory, access '${file}'`,
  })
  expect(readdirSync(folder)).toEqual(['wgkey'])
})

// The vectors are from RFC 7748, section 6.1.
it.each([
  ['dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=', 'hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo='],
  ['XasIfmJKikt54X+Lg4AO5m87sSkmGLb9HC+LJ/+I4Os=', '3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08='],
])('computes the public key of a private key: case %#', (privateKey, publicKey) => {
  expect(publicKeyTo(new Secret(privateKey))).toBe(publicKey)
})

it('refuses a file without a key, and one that cannot be read or created, with a remedy', async () => {
  const file = join(folder, 'wgkey')
  writeFileSync(file, 'no key\n')
  await expect(privateKeyOf(file)).rejects.toMatchObject({
    code: 'CONFIG',
    message: `the key file ${file} holds no WireGuard key`,
    remedy: expect.stringContaining('delete the file') as string,
  })
  await expect(privateKeyOf(folder)).rejects.toMatchObject({ code: 'PERMISSION' })
  await expect(privateKeyOf(join(file, 'below'))).rejects.toMatchObject({ code: 'PERMISSION' })
  chmodSync(file, 0o600)
  writeFileSync(file, `${'A'.repeat(42)}A=\n`)
  expect((await privateKeyOf(file)).reveal()).toBe(`${'A'.repeat(42)}A=`)
})

it('reports how the file of a key has changed, and creates none', async () => {
  const file = join(folder, 'wgkey')
  const key = await privateKeyOf(file)
  expect(await changeOf(file, key)).toBeUndefined()
  chmodSync(file, 0o600)
  writeFileSync(file, `\n${key.reveal()}\n`)
  expect(await changeOf(file, key)).toBeUndefined()
  writeFileSync(file, 'XasIfmJKikt54X+Lg4AO5m87sSkmGLb9HC+LJ/+I4Os=')
  expect(await changeOf(file, key)).toBe(`the key file ${file} holds another key`)
  writeFileSync(file, '')
  expect(await changeOf(file, key)).toBe(`the key file ${file} holds no WireGuard key`)
  rmSync(file)
  expect([await changeOf(file, key), existsSync(file)]).toEqual([`the key file ${file} is gone`, false])
  mkdirSync(file)
  expect(await changeOf(file, key)).toContain(`the key file ${file} cannot be read: EISDIR`)
})
