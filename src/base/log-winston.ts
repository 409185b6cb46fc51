// log-winston.ts - writes log lines with the package winston. weftd writes its first lines without winston, because
// loading winston takes a third of weftd's start time.

import { Writable } from 'node:stream'
import winston from 'winston'
import { writeToStderr } from './log.ts'

/** Makes a function that writes a log line with winston. The line is written before the function returns. */
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
