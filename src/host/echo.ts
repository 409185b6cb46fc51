// echo.ts - ICMP echo requests from an address of this host, and what answers them.

import { closeSync } from 'node:fs'
import type { Ipv4 } from '../net/ipv4.ts'
import { addon } from './addon.ts'

export interface Echo {
  /** A packet of `bytes`, or of as few as it takes, that nobody may fragment. Throws an Error with `code`, EMSGSIZE among them. */
  send(to: Ipv4, sequence: number, bytes?: number): void
  close(): void
}

export type OpenEcho = (source: Ipv4, onAnswer: (from: Ipv4, sequence: number, roundTripMs: number) => void) => Echo

/** Throws an Error with `code`: EPERM or EACCES where this host does not allow it to us, EADDRNOTAVAIL when it has no such address. */
export const openEcho: OpenEcho = (source, onAnswer) => {
  const socket = addon.openEcho(source)
  const watcher = addon.watchReadable(socket.fd, () => {
    const answers = addon.takeEchoes(socket)
    for (let at = 0; at + 2 < answers.length; at += 3)
      onAnswer(answers[at] ?? 0, answers[at + 1] ?? 0, (answers[at + 2] ?? 0) / 1000)
  })
  return {
    send: (to, sequence, bytes = 0) => addon.sendEcho(socket, to, sequence, bytes),
    close() {
      watcher.stop()
      closeSync(socket.fd)
    },
  }
}
