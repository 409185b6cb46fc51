// replace-file.ts - writes a file that others read: they see the old text or the new one, never half of it.

import { randomBytes } from 'node:crypto'
import { lstat, open, readdir, rename, unlink, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'

/** An older file was left by a process that was killed as it wrote. */
const STALE_MS = 60_000

/** The content to write: whole, or in pieces that come one by one. */
type Data = string | Uint8Array | AsyncIterable<string>

/** The last write of each path: who asks later writes later. */
const last = new Map<string, Promise<void>>()

/**
 * Temporary file beside it, fsync, rename. `mode` holds whatever the umask. Of several writes of one path the one that was asked for
 * last stays. Rejects with the file system's error, and for a device, a socket or a pipe: one such as /dev/null would be gone for
 * the whole host.
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
  // A name that no reader of a configuration folder takes for one of its own, and that no other process has: their ids may be equal,
  // where each is in a container.
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
    // The same failure has the same text each time, whatever the file was called meanwhile.
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
