// log-winston.ts - the log's lines by winston, which takes a third of the time of a start to load: lines before that are written directly.

import { Writable } from 'node:stream'
import winston from 'winston'
import { writeToStderr } from './log.ts'

/** Writes a line before it returns. */
export function createWinstonWriter(write: (line: string) => void = writeToStderr): (line: string) => void {
  const stream = new Writable({
    decodeStrings: false,
    write(line: string, _encoding, done) {
      write(line)
      done()
    },
  })
  const logger = winston.createLogger({
    format: winston.format.printf(({ message }) => String(message)),
    transports: [new winston.transports.Stream({ stream, eol: '' })],
  })
  return (line) => void logger.info(line)
}
