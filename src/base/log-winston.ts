// log-winston.ts - writes log lines by winston. Loading winston takes a third of weftd's start time, so earlier lines
// are written directly.

import { Writable } from 'node:stream'
import winston from 'winston'
import { writeToStderr } from './log.ts'

/** Makes a function that writes a log line by winston. The line has been written when the function returns. */
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
