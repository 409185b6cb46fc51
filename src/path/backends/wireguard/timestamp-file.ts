// timestamp-file.ts - the file that keeps, across restarts, the last tick that this node may have used for the
// timestamp of an initiation (tai64n.ts).

import { readFileSync, renameSync, writeFileSync } from 'node:fs'
import { messageOf } from '../../../base/errors.ts'
import type { Log } from '../../../base/log.ts'

export class TimestampFile {
  readonly #path: string
  readonly #log: Log

  constructor(path: string, log: Log) {
    this.#path = path
    this.#log = log
  }

  /** Returns the tick (tai64n.ts) in the file; -1 if the file is missing or invalid. */
  read(): number {
    try {
      const text = readFileSync(this.#path, 'utf8').trim()
      return /^\d{1,15}$/.test(text) ? Number(text) : -1
    } catch {
      return -1 // first start
    }
  }

  /** Stores a tick (tai64n.ts) in the file. Logs a failure. */
  write(tick: number): void {
    try {
      writeFileSync(`${this.#path}.new`, String(tick), { mode: 0o600 })
      renameSync(`${this.#path}.new`, this.#path)
    } catch (error) {
      this.#log.warn(
        `Cannot write ${this.#path} (${messageOf(error)}): if the clock is set back, peers will refuse handshakes of this node after a restart`,
      )
    }
  }
}
