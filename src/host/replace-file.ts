// replace-file.ts - replaces a file atomically, so that readers see the old content or the new content.

import { randomBytes } from 'node:crypto'
import { lstat, open, readdir, rename, unlink, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'

/**
 * The maximum age of a temporary file in use, in ms. An older file was left behind by a process that was killed while
 * it wrote.
 */
const STALE_MS = 60_000

type Data = string | Uint8Array | AsyncIterable<string>

/**
 * For each path, the promise of the last write. Writes to the same path run one after another, in the order of the
 * calls.
 */
const last = new Map<string, Promise<void>>()

/**
 * Replaces a file atomically: writes a temporary file next to `path`, syncs it to disk, and renames it to `path`.
 * `mode` applies regardless of the umask. If several calls write the same path, the last call wins. Rejects with the
 * file system's error. Also rejects if `path` is a device, a socket or a pipe, because replacing /dev/null would break
 * the host.
 */
export function replaceFile(path: string, data: Data, mode: number): Promise<void> {
  const write = (): Promise<void> => replaceNow(path, data, mode)
  const written = (last.get(path) ?? Promise.resolve()).then(write, write)
  last.set(path, written)
  const forget = (): void => void (last.get(path) === written && last.delete(path))
  written.then(forget, forget)
  return written
}

async function replaceNow(path: string, data: Data, mode: number): Promise<void> {
  const there = await lstat(path).catch(() => undefined)
  if (there && !there.isFile() && !there.isSymbolicLink() && !there.isDirectory())
    throw new Error(`${path} is a device, a socket or a pipe, not a file`)
  // The name of the temporary file begins with a dot, so that programs that read configuration folders skip the file. A
  // part of the name is random, because processes in different containers may have the same process id.
  const prefix = `.${basename(path)}.tmp`
  await removeStale(dirname(path), prefix)
  const temporary = join(dirname(path), prefix + randomBytes(8).toString('hex'))
  try {
    const file = await open(temporary, 'wx', mode)
    try {
      await file.chmod(mode)
      await writeFile(file, data)
      await file.sync()
    } finally {
      await file.close()
    }
    await rename(temporary, path)
  } catch (error) {
    await unlink(temporary).catch(() => {})
    // Name `path` in the error instead of the random temporary name, so that the same failure has the same text each
    // time.
    if (error instanceof Error) error.message = error.message.replaceAll(temporary, path)
    throw error
  }
}

async function removeStale(folder: string, prefix: string): Promise<void> {
  for (const name of await readdir(folder).catch(() => [])) {
    if (!name.startsWith(prefix)) continue
    const path = join(folder, name)
    const written = await lstat(path).catch(() => undefined)
    if (written?.isFile() && Date.now() - written.mtimeMs > STALE_MS) await unlink(path).catch(() => {})
  }
}
