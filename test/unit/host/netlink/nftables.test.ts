// nftables.test.ts - the listing of nftables' tables and the generation of its rules, to the byte.

import { endianness } from 'node:os'
import fc from 'fast-check'
import { expect, it } from 'vitest'
import { MessageWriter } from '../../../../src/host/netlink/message.ts'
import { generationIn, generationRequest, tablesIn, tablesRequest } from '../../../../src/host/netlink/nftables.ts'

const NEW_TABLE = 0xa00
const tableOf = (family: number, name: string, use: number): Buffer => {
  const number = Buffer.alloc(4)
  number.writeUInt32BE(use)
  return new MessageWriter(NEW_TABLE)
    .raw(Uint8Array.of(family, 0, 0, 7))
    .text(1, name)
    .bytes(3, number)
    .finish()
}

it.skipIf(endianness() === 'BE')('requests the tables of all families', () => {
  // struct nlmsghdr with NFT_MSG_GETTABLE, NLM_F_REQUEST | NLM_F_DUMP, then struct nfgenmsg
  expect(tablesRequest().toString('hex')).toBe('14000000010a0103000000000000000000000000')
})

it('reads the family, the name and the number of objects of each table', () => {
  const other = new MessageWriter(0xa03).raw(new Uint8Array(4)).text(1, 'a chain').finish()
  expect(
    tablesIn(Buffer.concat([tableOf(2, 'nat', 300), other, tableOf(10, 'filter', 3), tableOf(1, 'own', 0)])),
  ).toEqual([
    { family: 'ip', name: 'nat', objects: 300 },
    { family: 'ip6', name: 'filter', objects: 3 },
    { family: 'inet', name: 'own', objects: 0 },
  ])
})

it.skipIf(endianness() === 'BE')('requests the generation and reads it', () => {
  // struct nlmsghdr with NFT_MSG_GETGEN, NLM_F_REQUEST | NLM_F_ACK, then struct nfgenmsg
  expect(generationRequest().toString('hex')).toBe('14000000100a0500000000000000000000000000')
  // The answer of Linux 6.18: NFT_MSG_NEWGEN with the generation, the process and the name of the last change.
  const answer = '300000000f0a0000000000000000000000000005080001008000000508000200000076c40c000300707974686f6e3300'
  expect(generationIn(Buffer.from(answer, 'hex'))).toBe(0x80000005)
  expect(generationIn(tableOf(2, 'nat', 300))).toBeUndefined()
})

it('accepts any bytes', () => {
  const sound = tableOf(2, 'nat', 300)
  fc.assert(
    fc.property(fc.nat(sound.length - 1), fc.nat(255), fc.nat(sound.length), (at, byte, end) => {
      const damaged = Buffer.from(sound)
      damaged[at] = byte
      for (const { name, objects } of tablesIn(damaged.subarray(0, end)))
        expect([typeof name, Number.isInteger(objects)]).toEqual(['string', true])
      expect(['number', 'undefined']).toContain(typeof generationIn(damaged.subarray(0, end)))
    }),
  )
})
