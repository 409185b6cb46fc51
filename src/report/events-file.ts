// events-file.ts - reads and writes the file of the peers' events, which is next to subnet.env.

import { readFile, stat } from 'node:fs/promises'
import { replaceFile } from '../host/replace-file.ts'
import { eventsText, parseEvents, type PeerEvent } from './peer-events.ts'

/**
 * The maximum size, in bytes, of an events file that weftd reads. weftd writes at most a thousand events of a few
 * hundred bytes each.
 */
const MOST_BYTES = 1_000_000

/**
 * Reads the peers' events from the file. Returns no events if the file does not exist. Rejects if the file cannot be
 * read or parsed.
 */
export async function readEvents(path: string): Promise<readonly PeerEvent[]> {
  const there = await stat(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw error
  })
  if (!there) return []
  // Reject a named pipe, because reading a pipe would block forever.
  if (!there.isFile()) throw new Error('it is not a regular file')
  if (there.size > MOST_BYTES) throw new Error(`it has ${there.size} bytes`)
  return parseEvents(await readFile(path, 'utf8'))
}

/** Replaces the events file atomically. Rejects with the file system's error; the old file then remains. */
export const writeEvents = (path: string, events: readonly PeerEvent[]): Promise<void> =>
  replaceFile(path, eventsText(events), 0o600)
