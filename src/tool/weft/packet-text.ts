// packet-text.ts - describes a packet by its headers, such as `10.5.1.2:40000 > 10.5.2.7:80 tcp`. Pure.

import { formatIpv4 } from '../../net/ipv4.ts'
import { formatIpv6 } from '../../net/ipv6.ts'

const PROTOCOLS: ReadonlyMap<number, string> = new Map([
  [1, 'icmp'],
  [2, 'igmp'],
  [6, 'tcp'],
  [17, 'udp'],
  [47, 'gre'],
  [50, 'esp'],
  [58, 'icmp6'],
  [132, 'sctp'],
])
const HAVE_PORTS: ReadonlySet<string> = new Set(['tcp', 'udp', 'sctp'])
const ICMP: ReadonlyMap<number, string> = new Map([
  [0, 'echo reply'],
  [3, 'unreachable'],
  [5, 'redirect'],
  [8, 'echo request'],
  [11, 'time exceeded'],
])
/** The number of bytes that weft shows of data that is not an IP packet. */
const SHOWN_BYTES = 16

export function packetText(bytes: Buffer): string {
  const version = bytes.length > 0 ? bytes.readUInt8(0) >> 4 : 0
  if (version === 4 && bytes.length >= 20) return ipv4Text(bytes)
  if (version === 6 && bytes.length >= 40) return ipv6Text(bytes)
  const some = bytes.subarray(0, SHOWN_BYTES).toString('hex')
  return bytes.length === 0 ? 'nothing' : `not an IP packet: ${some}${bytes.length > SHOWN_BYTES ? '...' : ''}`
}

function ipv4Text(bytes: Buffer): string {
  const [source, destination] = [12, 16].map((at) => formatIpv4(bytes.readUInt32BE(at))) as [string, string]
  const offset = bytes.readUInt16BE(6) & 0x1fff
  const behind = bytes.subarray((bytes.readUInt8(0) & 15) * 4)
  return offset === 0
    ? betweenText(source, destination, bytes.readUInt8(9), behind)
    : `${source} > ${destination} ${protocolText(bytes.readUInt8(9))}, a later fragment`
}

function ipv6Text(bytes: Buffer): string {
  const [source, destination] = [8, 24].map((at) => formatIpv6(BigInt(`0x${bytes.toString('hex', at, at + 16)}`)))
  return betweenText(`[${source}]`, `[${destination}]`, bytes.readUInt8(6), bytes.subarray(40))
}

function betweenText(source: string, destination: string, protocol: number, behind: Buffer): string {
  const name = protocolText(protocol)
  if (HAVE_PORTS.has(name) && behind.length >= 4)
    return `${source}:${behind.readUInt16BE(0)} > ${destination}:${behind.readUInt16BE(2)} ${name}`
  const type = name === 'icmp' && behind.length > 0 ? behind.readUInt8(0) : undefined
  const kind = type === undefined ? '' : ` ${ICMP.get(type) ?? `type ${type}`}`
  return `${source} > ${destination} ${name}${kind}`
}

const protocolText = (number: number): string => PROTOCOLS.get(number) ?? `protocol ${number}`
