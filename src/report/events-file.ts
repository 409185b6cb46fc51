// events-file.ts - the file of what befell the peers, beside subnet.env.

import { readFile, stat } from 'node:fs/promises'
import { replaceFile } from '../host/replace-file.ts'
import { eventsText, parseEvents, type PeerEvent } from './peer-events.ts'

/** No such file is longer: of a thousand events each has a few hundred bytes. */
const MOST_BYTES = 1_000_000

/** Rejects with the reason why it cannot be read or understood; a file that is not there has no events. */
export async function readEvents(path: string): Promise<readonly PeerEvent[]> {
  const there = await stat(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw error
  })
  if (!there) return []
  // Reading a pipe would wait for ever.
  if (!there.isFile()) throw new Error('it is no file')
  if (there.size > MOST_BYTES) throw new Error(`it has ${there.size} bytes`)
  return parseEvents(await readFile(path, 'utf8'))
}

/** Rejects with the file system's error; what stood there stays then. */
export const writeEvents = (path: string, events: readonly PeerEvent[]): Promise<void> =>
  replaceFile(path, eventsText(events), 0o600)
