// key-folder.ts - passes keys to `wg` in files that only weftd's user can read and that exist only during the call.

import { lstat, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { messageOf, WeftError } from '../../../base/errors.ts'
import type { Secret } from '../../../base/secret.ts'

/**
 * Returns the directories in which weftd may create a directory for key files, in order of preference: /dev/shm, which
 * is in memory and so cleared by a reboot; the key file's directory; and the system's directory for temporary files.
 */
const placesFor = (keyFile: string): readonly string[] => ['/dev/shm', dirname(keyFile), tmpdir()]
const FOLDER = '.weft-'

/** The key directories that this process has created and not removed yet. */
const inUse = new Set<string>()

/**
 * Creates a directory that only this user can open, and whose name contains the pid of this process. Throws WeftError
 * PERMISSION if no directory in `placesFor` allows that.
 */
async function privateFolder(keyFile: string): Promise<string> {
  const failures: unknown[] = []
  for (const place of placesFor(keyFile)) {
    try {
      const folder = await mkdtemp(join(place, `${FOLDER}${process.pid}-`))
      inUse.add(folder)
      return folder
    } catch (error) {
      failures.push(error)
    }
  }
  throw new WeftError('PERMISSION', `cannot pass a key to wg: ${failures.map(messageOf).join('; ')}`, {
    remedy: `make the folder of the key file writable for weftd: ${dirname(keyFile)}`,
    cause: failures[0],
  })
}

/**
 * Removes the key directories of processes that were killed. A directory with this process's pid that is not in `inUse`
 * is from a process in an earlier container, which had the same pid.
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
      if (isOurs && !inUse.has(path) && (pid === process.pid || !isAlive(pid)))
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

/**
 * Writes a key to a file for `wg`, calls `work` with the file's path, and deletes the file. `keyFile` is the path of
 * the private key's file; the temporary file may be created in the same directory.
 */
export async function withKeyFile(
  keyFile: string,
  as: string,
  key: Secret,
  work: (file: string) => Promise<void>,
): Promise<void> {
  const folder = await privateFolder(keyFile)
  try {
    const file = join(folder, as)
    await writeFile(file, key.reveal(), { mode: 0o600, flag: 'wx' })
    await work(file)
  } finally {
    await rm(folder, { recursive: true, force: true })
    inUse.delete(folder)
  }
}
