// eavesdrop.ts - checks whether the packets between two containers can be read on the cable between their hosts. The
// check sends packets with a known text, and captures them inside the tunnel and on the cable. The text must be found
// inside the tunnel; otherwise its absence on the cable would prove nothing.

import { once } from 'node:events'
import { parseIpv4 } from '../src/net/ipv4.ts'
import { ended } from './command.ts'
import { EVENT_MS, type Host, type Place, type Pod } from './lab.ts'

/** The text in each ping: 16 bytes, the maximum length of a pattern for ping. */
export const TEXT = 'nobody reads it.'
const PINGS = 10
const PAYLOAD = 1_000
/**
 * The length in bytes of an IPv4 packet that contains one ping. UDP_LENGTH is the UDP length of the WireGuard message
 * that carries the packet. Neither length includes padding.
 */
const INNER = PAYLOAD + 28
const UDP_LENGTH = INNER + 8 + 32
/** The length in bytes of an Ethernet header; UDP is the length of a UDP header. */
const ETHERNET = 14
const UDP = 8
/**
 * The maximum length in bytes of a datagram without pings, such as a probe, that follows the pings in a superpacket.
 */
const TAIL = 256

/**
 * The number of captured pings and answers, and how many of these packets contain the known text or the containers'
 * addresses.
 */
interface Found {
  readonly packets: number
  readonly withText: number
  readonly withAddresses: number
}

export interface Captures {
  readonly inside: Found
  readonly cable: Found
}

/**
 * Returns the packets of a capture file in pcap format and this machine's byte order. Leaves out a packet that was not
 * completely written.
 */
function packetsOf(pcap: Buffer): Buffer[] {
  const packets: Buffer[] = []
  for (let at = 24; at + 16 <= pcap.length;) {
    const end = at + 16 + pcap.readUInt32LE(at + 8)
    if (end > pcap.length) break
    packets.push(pcap.subarray(at + 16, end))
    at = end
  }
  return packets
}

/**
 * Returns the number of pings in a frame that was captured on the cable. On a busy machine weftd sends several
 * datagrams as one superpacket, which tcpdump shows as one long datagram.
 */
export function pingsIn(frame: Buffer): number {
  const at = ETHERNET + 4 * ((frame[ETHERNET] ?? 0) & 0x0f)
  if (frame.length < at + UDP) return 0
  const payload = frame.readUInt16BE(at + 4) - UDP
  const each = UDP_LENGTH - UDP
  return payload % each <= TAIL ? Math.floor(payload / each) : 0
}

interface Tap {
  /** Waits for `count` pings, and returns the captured packets that contain pings. */
  take(count: number): Promise<readonly Buffer[]>
}

async function tap(at: Place, filter: string, countIn: (packet: Buffer) => number): Promise<Tap> {
  const child = at.spawn(['tcpdump', '-i', 'eth0', '-U', '--immediate-mode', '-s', '0', '-w', '-', filter])
  const { stdout, stderr } = child
  if (!stdout || !stderr) throw new Error('tcpdump has no output')
  let pcap = Buffer.alloc(0)
  let said = ''
  stdout.on('data', (part: Buffer) => (pcap = Buffer.concat([pcap, part])))
  stderr.on('data', (part: Buffer) => (said += part.toString()))
  const signal = AbortSignal.timeout(EVENT_MS)
  const found = (): Buffer[] => packetsOf(pcap).filter((packet) => countIn(packet) > 0)
  const counted = (): number => found().reduce((sum, packet) => sum + countIn(packet), 0)
  const until = async (isSo: () => boolean, stream: NodeJS.ReadableStream, why: () => string): Promise<void> => {
    while (!isSo())
      await once(stream, 'data', { signal }).catch(() => {
        throw new Error(
          `${why()} within ${EVENT_MS / 1000} s, so this run shows nothing about encryption: ${said.trim()}`,
        )
      })
  }
  await until(
    () => said.includes('listening on'),
    stderr,
    () => 'tcpdump did not start',
  )
  return {
    async take(count) {
      await until(
        () => counted() >= count,
        stdout,
        () => `tcpdump saw ${counted()} of ${count} packets`,
      )
      child.kill('SIGINT')
      await ended(child)
      return found()
    },
  }
}

function addressBytes(address: string): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(parseIpv4(address) ?? 0)
  return bytes
}

/**
 * Sends pings with the known text from one container to another, which answers them. Captures the packets in the second
 * container, and on the cable of the host `host`.
 */
export async function eavesdrop(from: Pod, to: Pod, host: Host): Promise<Captures> {
  const [tapInside, tapCable] = await Promise.all([
    tap(to, `icmp and host ${from.address} and greater ${INNER}`, () => 1),
    tap(host, `udp port 51820 and udp[4:2] >= ${UDP_LENGTH}`, pingsIn),
  ])
  const pattern = Buffer.from(TEXT).toString('hex')
  const said = await from.output([
    'ping',
    '-n',
    '-c',
    String(PINGS),
    '-i',
    '0.05',
    '-s',
    String(PAYLOAD),
    '-p',
    pattern,
    to.address,
  ])
  // A packet may be lost on a busy machine, so count the answered pings. Each answered ping stands for two packets, the
  // ping and its answer.
  const answers = Number(/(\d+) received/.exec(said)?.[1] ?? PINGS)
  const [one, other] = [addressBytes(from.address), addressBytes(to.address)]
  const addresses = [Buffer.concat([one, other]), Buffer.concat([other, one])]
  const foundBy = async (each: Tap, countIn: (packet: Buffer) => number): Promise<Found> => {
    const packets = await each.take(2 * answers)
    const count = (some: readonly Buffer[]): number => some.reduce((sum, packet) => sum + countIn(packet), 0)
    const having = (...texts: (string | Buffer)[]): number =>
      count(packets.filter((packet) => texts.some((text) => packet.includes(text))))
    return { packets: count(packets), withText: having(TEXT), withAddresses: having(...addresses) }
  }
  return { inside: await foundBy(tapInside, () => 1), cable: await foundBy(tapCable, pingsIn) }
}
