// nftables.ts - lists the tables of nftables, and reads the generation number of its rules (NFT_MSG_GETTABLE and
// NFT_MSG_GETGEN in linux/netfilter/nf_tables.h).

import type { NftTable } from '../kernel.ts'
import { messagesIn, MessageWriter, NLM_F } from './message.ts'

/** The types of messages: the subsystem NFNL_SUBSYS_NFTABLES in the high byte, and the command in the low byte. */
const NEW_TABLE = 0xa00
const GET_TABLE = 0xa01
const NEW_GENERATION = 0xa0f
const GET_GENERATION = 0xa10
/** The length of `struct nfgenmsg` in bytes. Its first byte is the family; 0 stands for all families. */
const HEADER = 4
const TABLE = { NAME: 1, USE: 3 } as const
const GENERATION = { ID: 1 } as const
/** The numbers of families (NFPROTO_* in linux/netfilter.h) and their names in nft. */
const FAMILIES: Readonly<Record<number, string>> = { 1: 'inet', 2: 'ip', 3: 'arp', 5: 'netdev', 7: 'bridge', 10: 'ip6' }

const requestOf = (type: number, flags: number): Buffer =>
  new MessageWriter(type, flags).raw(new Uint8Array(HEADER)).finish()

export const generationRequest = (): Buffer => requestOf(GET_GENERATION, NLM_F.ACK)

/** Returns the generation number of the rules; undefined if the answer does not contain it. */
export function generationIn(data: Buffer): number | undefined {
  for (const message of messagesIn(data)) {
    const id = message.attributes(HEADER).bytes(GENERATION.ID)
    if (message.type === NEW_GENERATION && id?.length === 4) return id.readUInt32BE(0)
  }
  return undefined
}

export const tablesRequest = (): Buffer => requestOf(GET_TABLE, NLM_F.DUMP)

export function tablesIn(data: Buffer): NftTable[] {
  return [...messagesIn(data)].flatMap((message) => {
    const from = message.attributes(HEADER)
    const name = from.text(TABLE.NAME)
    if (message.type !== NEW_TABLE || name === undefined) return []
    const use = from.bytes(TABLE.USE)
    const objects = use?.length === 4 ? use.readUInt32BE(0) : 0
    return [{ family: FAMILIES[message.u8(0)] ?? '', name, objects }]
  })
}
