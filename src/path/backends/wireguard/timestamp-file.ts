// timestamp-file.ts - the file that keeps, across restarts, the last tick that this node may have used for the
// timestamp of an initiation (tai64n.ts).

import { closeSync, fsyncSync, openSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { messageOf } from '../../../base/errors.ts'
import { seldom, type Log } from '../../../base/log.ts'

export class TimestampFile {
  readonly #path: string
  /** Drops repeated lines, because weftd writes the file again every ten seconds. */
  readonly #log: Log

  constructor(path: string, log: Log) {
    this.#path = path
    this.#log = seldom(log)
  }

  /**
   * Returns the tick (tai64n.ts) in the file; -1 if the file is missing or unusable. Logs why the file is unusable. A
   * missing file is normal at the first start.
   */
  read(): number {
    try {
      const text = readFileSync(this.#path, 'utf8').trim()
      if (/^\d{1,15}$/.test(text)) return Number(text)
      this.#warnOfUnusable('it contains no timestamp')
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') this.#warnOfUnusable(messageOf(error))
    }
    return -1
  }

  #warnOfUnusable(why: string): void {
    this.#log.warn(
      `Cannot use ${this.#path} (${why}): if the clock is behind, peers refuse handshakes of this node until the clock has passed the time of its last handshake`,
    )
  }

  /**
   * Stores a tick (tai64n.ts) in the file, and returns when the file would survive a power failure. If the tick cannot
   * be written, logs the reason, and the file keeps the earlier tick.
   */
  write(tick: number): void {
    const temporary = `${this.#path}.new`
    try {
      withOpen(temporary, 'w', (file) => {
        writeFileSync(file, String(tick))
        fsyncSync(file)
      })
      renameSync(temporary, this.#path)
      withOpen(dirname(this.#path), 'r', fsyncSync) // makes the rename durable
    } catch (error) {
      this.#log.warn(
        `Cannot write ${this.#path} (${messageOf(error)}): if the clock is set back, peers will refuse handshakes of this node after a restart`,
      )
    }
  }
}

/** Runs `use` with an open file or folder, and closes the file afterwards. A new file has the mode 0600. */
function withOpen(path: string, flags: 'r' | 'w', use: (file: number) => void): void {
  const file = openSync(path, flags, 0o600)
  try {
    use(file)
  } finally {
    closeSync(file)
  }
}
