// pcapng.test.ts - the blocks of a capture file, byte by byte by draft-ietf-opsawg-pcapng.

import { expect, it } from 'vitest'
import { interfaceDescription, packetBlock, sectionHeader } from '../../../../src/tool/weft/pcapng.ts'

const hex = (text: string): Buffer => Buffer.from(text.replaceAll(/\s|#.*/g, ''), 'hex')

it('begins with the section and its interface', () => {
  expect(sectionHeader('weft 1')).toEqual(
    hex(`
      0a0d0d0a 2c000000                  # Section Header Block, 44 bytes
      4d3c2b1a 0100 0000                 # little-endian, version 1.0
      ffffffffffffffff                   # as long as it is
      0400 0600 77656674 2031 0000       # shb_userappl, padded
      0000 0000                          # opt_endofopt
      2c000000`),
  )
  expect(interfaceDescription('tun0', 128)).toEqual(
    hex(`
      01000000 20000000                  # Interface Description Block, 32 bytes
      6500 0000 80000000                 # LINKTYPE_RAW, SnapLen
      0200 0400 74756e30                 # if_name
      0000 0000
      20000000`),
  )
})

it.each([
  ['in', 1],
  ['out', 2],
] as const)('writes a packet with time, lengths, direction and comment: %s', (direction, flags) => {
  const bytes = Buffer.from([0x45, 1, 2, 3, 4])
  const timeUs = 0x0006_1234 * 2 ** 32 + 0x89ab_cdef
  expect(packetBlock({ timeUs, bytes, length: 1500, direction, comment: 'ß' })).toEqual(
    hex(`
      06000000 3c000000                  # Enhanced Packet Block, 60 bytes
      00000000 34120600 efcdab89         # of the first interface; upper and lower half of the time
      05000000 dc050000                  # of 1500 bytes 5
      45010203 04000000                  # padded
      0100 0200 c39f0000                 # opt_comment, UTF-8, padded
      0200 0400 0${flags}000000                 # epb_flags
      0000 0000
      3c000000`),
  )
})

it('never writes a length that is smaller than the stored bytes', () => {
  const block = packetBlock({ timeUs: 0, bytes: Buffer.alloc(8), length: 3, direction: 'in', comment: '' })
  expect([block.readUInt32LE(20), block.readUInt32LE(24)]).toEqual([8, 8])
})
