// read-plain-file.ts - reads a file whose path another user may have chosen.

import { constants } from 'node:fs'
import { open } from 'node:fs/promises'

/**
 * The flag of open(2) that opens a path without opening the file behind it. Opening some files has an effect: the open
 * of a named pipe waits for a writer, and the open of /dev/watchdog starts the watchdog of the host.
 */
const O_PATH = 0o10000000

/**
 * Returns the text of a regular file of at most `most` bytes. Rejects if a system call fails. Also rejects for a longer
 * file and for a file of another kind, without opening the file.
 */
export async function readPlainFile(path: string, most: number): Promise<string> {
  const place = await open(path, O_PATH)
  try {
    const info = await place.stat()
    if (!info.isFile()) throw new Error(`${path} is not a file`)
    if (info.size > most) throw new Error(`${path} has ${info.size} bytes`)
    // The path in /proc leads to the checked file, even if the user has replaced `path` meanwhile.
    const file = await open(`/proc/self/fd/${place.fd}`, constants.O_RDONLY)
    try {
      const { bytesRead, buffer } = await file.read(Buffer.alloc(most), 0, most, 0)
      return buffer.toString('utf8', 0, bytesRead)
    } finally {
      await file.close()
    }
  } finally {
    await place.close()
  }
}
