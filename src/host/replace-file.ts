// replace-file.ts - writes a file that others read: they see the old text or the new one, never half of it.

import { lstat, open, rename, unlink } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'

/**
 * Temporary file beside it, fsync, rename. `mode` holds whatever the umask. Rejects with the file system's error, and for a
 * device, a socket or a pipe: one such as /dev/null would be gone for the whole host.
 */
export async function replaceFile(path: string, data: string | Uint8Array, mode: number): Promise<void> {
  const there = await lstat(path).catch(() => undefined)
  if (there && !there.isFile() && !there.isSymbolicLink() && !there.isDirectory())
    throw new Error(`${path} is a device, a socket or a pipe, not a file`)
  // A name that no reader of a configuration folder takes for one of its own.
  const temporary = join(dirname(path), `.${basename(path)}.tmp${process.pid}`)
  try {
    const file = await open(temporary, 'w', mode)
    try {
      await file.chmod(mode)
      await file.writeFile(data)
      await file.sync()
    } finally {
      await file.close()
    }
    await rename(temporary, path)
  } catch (error) {
    await unlink(temporary).catch(() => {})
    throw error
  }
}
