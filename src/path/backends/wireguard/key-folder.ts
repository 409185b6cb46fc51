// key-folder.ts - removes the directories in which earlier versions of weftd passed keys to the program `wg`.

import { lstat, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'

/** Returns the directories in which earlier versions of weftd created a directory for key files. */
const placesFor = (keyFile: string): readonly string[] => ['/dev/shm', dirname(keyFile), tmpdir()]
const FOLDER = '.weft-'

/**
 * Removes the key directories of processes that were killed. The name of a directory contains the pid of the process
 * that created it. A directory with this process's pid is from a process in an earlier container, which had the same
 * pid.
 */
export async function removeLeftovers(keyFile: string): Promise<void> {
  for (const place of new Set(placesFor(keyFile))) {
    const names = await readdir(place).catch(() => [])
    for (const name of names.filter((each) => each.startsWith(FOLDER))) {
      const path = join(place, name)
      const pid = Number(/^(\d+)-/.exec(name.slice(FOLDER.length))?.[1] ?? process.pid)
      // Skip a directory that belongs to another user, because weftd did not make it.
      const isOurs = await lstat(path).then(
        (found) => found.isDirectory() && found.uid === process.geteuid?.(),
        () => false,
      )
      if (isOurs && (pid === process.pid || !isAlive(pid)))
        await rm(path, { recursive: true, force: true }).catch(() => {})
    }
  }
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ESRCH'
  }
}
