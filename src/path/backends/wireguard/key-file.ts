// key-file.ts - reads and creates the file with this node's private key.
//
// The file and its format are those of flanneld (pkg/backend/wireguard/device.go): base64 as `wg genkey` prints it. If
// the file is missing, weftd creates it.

import { randomBytes } from 'node:crypto'
import { access, link, open, readFile, rename, unlink, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { messageOf, WeftError } from '../../../base/errors.ts'
import { Secret } from '../../../base/secret.ts'
import { makeFolder } from '../../../host/make-folder.ts'
import { WIREGUARD_KEY } from '../../catalog.ts'
import { KEY_BYTES, keyPairOf } from './x25519.ts'

const DEFAULT_KEY_FILE = '/run/flannel/wgkey'
/** Returns the path of the key file, by the same rule as flanneld. */
export const keyFilePath = (): string => process.env['WIREGUARD_KEY_FILE'] || DEFAULT_KEY_FILE

/**
 * Returns a new private key in base64. Like `wg genkey`, sets the key's fixed bits, although X25519 ignores their
 * values (RFC 7748, section 5).
 */
function newKey(): Secret {
  const bytes = randomBytes(KEY_BYTES)
  bytes[0] = (bytes[0] ?? 0) & 0xf8
  bytes[31] = ((bytes[31] ?? 0) & 0x7f) | 0x40
  const key = new Secret(bytes.toString('base64'))
  bytes.fill(0)
  return key
}

/** Returns the public key that belongs to a private key, both in base64. */
export function publicKeyTo(privateKey: Secret): string {
  const bytes = Buffer.from(privateKey.reveal(), 'base64')
  try {
    return Buffer.from(keyPairOf(bytes).publicKey).toString('base64')
  } finally {
    bytes.fill(0)
  }
}

/** Creates the key file. Does nothing if another process has created the file meanwhile. */
async function makeKeyFile(file: string, key: Secret): Promise<void> {
  try {
    await makeFolder(dirname(file))
    await writeWhole(file, key)
    await access(file) // rejects if the file is a symbolic link to a missing file
  } catch (error) {
    throw new WeftError('PERMISSION', `the key file ${file} cannot be created: ${messageOf(error)}`, {
      remedy: 'make the folder of the key file writable for weftd, or name another file with WIREGUARD_KEY_FILE',
      cause: error,
    })
  }
}

/**
 * Writes the key to a new file. The file gets its name only when the whole key is on the disk. Otherwise a full disk or a
 * power failure could leave an empty key file, with which weftd does not start.
 */
async function writeWhole(file: string, key: Secret): Promise<void> {
  const temporary = join(dirname(file), `.${basename(file)}.${randomBytes(8).toString('hex')}`)
  try {
    const written = await open(temporary, 'wx', 0o400)
    try {
      await writeFile(written, key.reveal())
      await written.sync()
    } finally {
      await written.close()
    }
    // `link` never replaces the key of another process that was faster. If the file system has no hard links, rename.
    await link(temporary, file).catch((error: NodeJS.ErrnoException) =>
      error.code === 'EEXIST' ? undefined : rename(temporary, file),
    )
  } catch (error) {
    // Name `file` in the error instead of the random temporary name, so that the same failure has the same text each
    // time.
    if (error instanceof Error) error.message = error.message.replaceAll(temporary, file)
    throw error
  } finally {
    await unlink(temporary).catch(() => {})
  }
}

/** Reads the private key from the file; undefined if the file is missing. Throws WeftError PERMISSION or CONFIG. */
async function readKeyFile(file: string): Promise<Secret | undefined> {
  const key = await readFile(file, 'utf8').then(
    (text) => new Secret(text.trim()),
    (error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return undefined
      throw new WeftError('PERMISSION', `the key file ${file} cannot be read: ${error.message}`, {
        remedy: 'make the file readable for weftd, or name another file with WIREGUARD_KEY_FILE',
      })
    },
  )
  if (key && !WIREGUARD_KEY.test(key.reveal()))
    throw new WeftError('CONFIG', `the key file ${file} holds no WireGuard key`, {
      remedy: 'delete the file, so that weftd creates a key, or write a key of `wg genkey` to the file',
    })
  return key
}

/**
 * Reads the private key from the file. If the file is missing, creates the file with a new key. Throws WeftError
 * PERMISSION or CONFIG.
 */
export async function privateKeyOf(file: string): Promise<Secret> {
  const known = await readKeyFile(file)
  if (known) return known
  const key = newKey()
  await makeKeyFile(file, key)
  return (await readKeyFile(file)) ?? key // the key of another process, if that process was faster
}

/**
 * Describes how the key file differs from `key`, which weftd read from the file at the start; undefined if the file
 * still contains `key`.
 */
export async function changeOf(file: string, key: Secret): Promise<string | undefined> {
  try {
    const now = await readKeyFile(file)
    if (now === undefined) return `the key file ${file} is gone`
    return now.identity === key.identity ? undefined : `the key file ${file} holds another key`
  } catch (error) {
    return messageOf(error)
  }
}
