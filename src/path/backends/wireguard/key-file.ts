// key-file.ts - the private key of this node, in flannel's file.
//
// File and format are flanneld's (pkg/backend/wireguard/device.go): base64 as `wg genkey` writes it, made where there is none.

import { randomBytes } from 'node:crypto'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { messageOf, WeftError } from '../../../base/errors.ts'
import { Secret } from '../../../base/secret.ts'
import { WIREGUARD_KEY } from '../../catalog.ts'
import { KEY_BYTES, keyPairOf } from './x25519.ts'

const DEFAULT_KEY_FILE = '/run/flannel/wgkey'
/** The file of this process, as flanneld's. */
export const keyFilePath = (): string => process.env['WIREGUARD_KEY_FILE'] || DEFAULT_KEY_FILE

/** A new private key, with the bits set that X25519 sets anyway (RFC 7748 section 5), as others print it. */
function newKey(): Secret {
  const bytes = randomBytes(KEY_BYTES)
  bytes[0] = (bytes[0] ?? 0) & 0xf8
  bytes[31] = ((bytes[31] ?? 0) & 0x7f) | 0x40
  const key = new Secret(bytes.toString('base64'))
  bytes.fill(0)
  return key
}

/** In base64, as the private one is. */
export function publicKeyTo(privateKey: Secret): string {
  const bytes = Buffer.from(privateKey.reveal(), 'base64')
  try {
    return Buffer.from(keyPairOf(bytes).publicKey).toString('base64')
  } finally {
    bytes.fill(0)
  }
}

async function makeKeyFile(file: string, key: Secret): Promise<void> {
  try {
    await mkdir(dirname(file), { recursive: true })
    await writeFile(file, key.reveal(), { mode: 0o400, flag: 'wx' })
  } catch (error) {
    throw new WeftError('PERMISSION', `the key file ${file} cannot be made: ${messageOf(error)}`, {
      remedy: 'make its folder writable for weftd, or name another file with WIREGUARD_KEY_FILE',
      cause: error,
    })
  }
}

/** The private key in this file; undefined where there is none. Throws WeftError PERMISSION, CONFIG. */
async function readKeyFile(file: string): Promise<Secret | undefined> {
  const key = await readFile(file, 'utf8').then(
    (text) => new Secret(text.trim()),
    (error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return undefined
      throw new WeftError('PERMISSION', `the key file ${file} cannot be read: ${error.message}`, {
        remedy: 'make it readable for weftd, or name another file with WIREGUARD_KEY_FILE',
      })
    },
  )
  if (key && !WIREGUARD_KEY.test(key.reveal()))
    throw new WeftError('CONFIG', `the key file ${file} holds no WireGuard key`, {
      remedy: 'delete it, and weftd makes another; or put a key of `wg genkey` there',
    })
  return key
}

/** The private key in this file, which is made where there is none. Throws WeftError PERMISSION, CONFIG. */
export async function privateKeyOf(file: string): Promise<Secret> {
  const known = await readKeyFile(file)
  if (known) return known
  const key = newKey()
  await makeKeyFile(file, key)
  return key
}

/** What became of the file of this key, which was read from it; undefined where it is still there. */
export async function changeOf(file: string, key: Secret): Promise<string | undefined> {
  try {
    const now = await readKeyFile(file)
    if (now === undefined) return `the key file ${file} is gone`
    return now.identity === key.identity ? undefined : `the key file ${file} holds another key`
  } catch (error) {
    return messageOf(error)
  }
}
