// core-jobs.ts - writes the jobs and reads the answers of test/native/core_jobs.h.

import { decodeVirtio, encodeVirtio, type Virtio } from './packet-model.ts'

const bigEndian = new Uint8Array(new Uint16Array([1]).buffer)[0] === 0
const REFUSED = 0xffff_ffff
const VIRTIO_BYTES = 10

function word(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  if (bigEndian) bytes.writeUInt32BE(value)
  else bytes.writeUInt32LE(value)
  return bytes
}

const sized = (packet: Buffer): Buffer => Buffer.concat([word(packet.length), packet])

export const segmentJob = (virtio: Virtio, packet: Buffer): Buffer =>
  Buffer.concat([Buffer.from('S'), encodeVirtio(virtio), sized(packet)])

export const finishJob = (virtio: Virtio, packet: Buffer): Buffer =>
  Buffer.concat([Buffer.from('F'), encodeVirtio(virtio), sized(packet)])

export const coalesceJob = (packets: readonly Buffer[]): Buffer =>
  Buffer.concat([Buffer.from('C'), word(packets.length), ...packets.map(sized)])

/** Reads answers in the order of their jobs. */
export function answersOf(bytes: Buffer): {
  packets(): Buffer[] | undefined
  writes(): { virtio: Virtio; packet: Buffer }[]
  done(): boolean
} {
  let at = 0
  const take = (size: number): Buffer => {
    if (at + size > bytes.length) throw new RangeError('the core gave fewer answers than it had jobs')
    at += size
    return bytes.subarray(at - size, at)
  }
  const takeWord = (): number => (bigEndian ? take(4).readUInt32BE() : take(4).readUInt32LE())
  return {
    /** Returns the packets of a segment or finish job; undefined if the job was refused. */
    packets() {
      const count = takeWord()
      return count === REFUSED ? undefined : Array.from({ length: count }, () => take(takeWord()))
    },
    writes: () =>
      Array.from({ length: takeWord() }, () => ({
        virtio: decodeVirtio(take(VIRTIO_BYTES)),
        packet: take(takeWord()),
      })),
    done: () => at === bytes.length,
  }
}
