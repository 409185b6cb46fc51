// make-folder.ts - creates a folder and its parents.
//
// weft does not use the recursive mkdir of Node.js, which never ends under /proc, and reports ENOENT instead of EROFS
// for a read-only file system.

import { mkdir, stat } from 'node:fs/promises'
import { dirname } from 'node:path'

/** Creates a folder and its parents. Resolves with false if the folder existed. Rejects with the system's error. */
export async function makeFolder(path: string): Promise<boolean> {
  const make = (): Promise<void> => mkdir(path, { mode: 0o755 })
  try {
    await make()
    return true
  } catch (error) {
    const isThere = await stat(path).then(
      (info) => info.isDirectory(),
      () => false,
    )
    if (isThere) return false
    const parent = dirname(path)
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT' || parent === path) throw error
    await makeFolder(parent)
  }
  return make().then(
    () => true,
    (error: NodeJS.ErrnoException) => {
      if (error.code === 'EEXIST') return false // another process made it meanwhile
      throw error
    },
  )
}
