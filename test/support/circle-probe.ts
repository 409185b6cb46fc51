// circle-probe.ts - runs engines in a namespace whose peers' addresses are inside the network, and reports how many datagrams the engine
// made of a few packets.
//
// It runs as a program that takes a job as JSON in its argument and prints the results as JSON. The kernel routes the engine's datagrams
// into its TUN.

import { createCipheriv } from 'node:crypto'
import { createSocket } from 'node:dgram'
import { output } from '../../lab/command.ts'
import type { Mail, NativeEngine } from '../../native/addon.d.ts'
import { addon } from '../../src/host/addon.ts'
import { parseAddress, type Address, type Family } from '../../src/net/address.ts'
import { encodePeers } from '../../src/path/engine/peers.ts'
import { hostsAt } from './peer-hosts.ts'

export interface CircleJob {
  readonly encapsulation: string
  readonly family: Family
}

export interface CircleResult {
  readonly what: string
  /** The number of packets that a program of the host sent to a container of the first peer. */
  readonly packets: number
  readonly datagrams: number
  readonly circles: number
  /** The peers whose address has changed, according to the engine. */
  readonly moved: readonly string[]
}

const PACKETS = 6
/** A number of datagrams that the packets reach only if they circle. */
const MANY = 2_000
const SECRET = 0x1234_5678
const indexOf = (session: number): number => ((session << 12) ^ SECRET) >>> 0

interface Net {
  readonly own: string
  readonly outside: string
  readonly network: string
  readonly bits: number
  readonly tun: string
  readonly subnets: readonly [string, string]
  /** For each family an address in each of the two subnets. */
  readonly inside: readonly [string, string]
  readonly container: string
  readonly subnetBits: number
  readonly whole: number
  /** The family in the syntax of nft: `ip` or `ip6`. */
  readonly ip: string
  readonly ownBits: number
}

const NETS: Readonly<Record<Family, Net>> = {
  ipv4: {
    own: '192.168.99.1',
    outside: '192.168.99.9',
    network: '10.5.0.0',
    bits: 16,
    tun: '10.5.1.0',
    subnets: ['10.5.2.0', '10.5.3.0'],
    inside: ['10.5.2.9', '10.5.3.9'],
    container: '10.5.2.5',
    subnetBits: 24,
    whole: 32,
    ip: 'ip',
    ownBits: 24,
  },
  ipv6: {
    own: 'fd99::1',
    outside: 'fd99::9',
    network: 'fd00:5::',
    bits: 48,
    tun: 'fd00:5:0:1::',
    subnets: ['fd00:5:0:2::', 'fd00:5:0:3::'],
    inside: ['fd00:5:0:2::9', 'fd00:5:0:3::9'],
    container: 'fd00:5:0:2::5',
    subnetBits: 64,
    whole: 128,
    ip: 'ip6',
    ownBits: 64,
  },
}

const addressOf = (text: string): Address => parseAddress(text)!

async function main({ encapsulation, family }: CircleJob): Promise<void> {
  const net = NETS[family]
  const type = family === 'ipv4' ? 'udp4' : 'udp6'
  const ip = (...args: string[]): Promise<string> => output(['ip', ...args])
  await output(['ip', '-batch', '-'], {
    input: `
    link set lo up
    link add d0 type veth peer name d1
    link set d1 up
    address add ${net.own}/${net.ownBits} dev d0 ${family === 'ipv6' ? 'nodad' : ''}
    link set d0 up`,
  })

  async function run(
    what: string,
    lanes: number,
    ends: readonly string[],
    between: (engine: NativeEngine) => Promise<void> = async () => {},
  ): Promise<CircleResult> {
    const [port, mtu] = [8285, 1380]
    const options = { tunName: 'flannel0', bindAddress: net.own, port, workers: lanes, features: addon.featureNames }
    const peers = encodePeers(
      ends.map((end, at) => {
        const encap = Buffer.alloc(16)
        encap.writeUInt32LE(at + 1)
        const subnet = { address: addressOf(net.subnets[at]!), prefixLength: net.subnetBits }
        return { subnet: subnet as never, ...hostsAt(addressOf(end)), port, slot: at + 1, encap }
      }),
    )
    const ownEnd = Buffer.alloc(40)
    ownEnd.writeUInt32LE(SECRET)
    const mail: Mail['moved'][number][] = []
    const engine = addon.runEngine(
      addon.openDescriptors(options),
      {
        encapsulation,
        ownEnd,
        mtu,
        peers,
        clampMss: false,
        keepsSessions: false,
        persistent: false,
        nice: 0,
        pollUs: 0,
        tunAddress: { [family]: addressOf(net.tun) },
        networkAddress: { [family]: addressOf(net.tun) },
        filter: {
          verifySource: 'strict',
          network: { [family]: { address: addressOf(net.network), prefixLength: net.bits } },
          subnet: { [family]: { address: addressOf(net.tun), prefixLength: net.subnetBits } },
        },
      },
      (error) => {
        throw error
      },
      () => {},
    )
    await output(['ip', '-batch', '-'], {
      input: `
      address add ${net.tun}/${net.whole} dev flannel0 ${family === 'ipv6' ? 'nodad' : ''}
      link set flannel0 mtu ${mtu} up
      route add ${net.network}/${net.bits} dev flannel0`,
    })
    if (encapsulation === 'wireguard') {
      for (const at of ends.keys())
        engine.setKeys(at + 1, {
          isInitiator: true,
          ownIndex: indexOf(at + 1),
          peerIndex: 77,
          sendKey: new Uint8Array(32).fill(7),
          receiveKey: new Uint8Array(32).fill(9),
        })
    }
    await between(engine)
    if (encapsulation === 'wireguard') mail.push(...engine.takeMail(0).moved)
    const sum = (name: string): number => {
      const at = addon.counterNames.indexOf(name)
      return Array.from({ length: lanes }, (_, lane) =>
        Number(engine.counters[lane * addon.counterNames.length + at]),
      ).reduce((all, each) => all + each)
    }
    const before = { packets: sum('tx_packets'), circles: sum('tx_drop_circle') }
    // Each packet has a source port of its own, so that the packets spread over the lanes.
    for (let packet = 0; packet < PACKETS; packet++) {
      const socket = createSocket(type)
      await new Promise<void>((resolve, reject) =>
        socket.send(Buffer.alloc(40), 9, net.container, (error) => (error ? reject(error) : resolve())),
      )
      socket.close()
    }
    const datagrams = (): number => sum('tx_packets') - before.packets
    const circles = (): number => sum('tx_drop_circle') - before.circles
    // All packets have left the TUN once, and so have the datagrams that came back.
    const isOver = (): boolean =>
      datagrams() > MANY || (datagrams() >= PACKETS && (what.startsWith('outside') || circles() >= PACKETS))
    // The engine counts without an event, so the counters are read again and again; the test's limit ends a wait for a lost packet.
    while (!isOver()) await new Promise((resolve) => setTimeout(resolve, 5))
    const result = { what, packets: PACKETS, datagrams: datagrams(), circles: circles(), moved: mail.map(String) }
    await engine.stop()
    return result
  }

  const results: CircleResult[] = []
  for (const lanes of [1, 3]) {
    for (const masqueraded of [false, true]) {
      // Masquerade by the same rule as flannel's.
      if (masqueraded)
        await output(['nft', '-f', '-'], {
          input: `table ${net.ip} t { chain c { type nat hook postrouting priority srcnat;
            ${net.ip} saddr != ${net.network}/${net.bits} ${net.ip} daddr ${net.network}/${net.bits} masquerade fully-random;
          }; }`,
        })
      const about = `${lanes} lanes${masqueraded ? ', masqueraded' : ''}`
      results.push(await run(`outside, ${about}`, lanes, [net.outside]))
      results.push(await run(`inside itself, ${about}`, lanes, [net.inside[0]]))
      results.push(await run(`inside each other, ${about}`, lanes, [net.inside[1], net.inside[0]]))
      if (masqueraded) await output(['nft', 'delete', 'table', net.ip, 't'])
    }
  }
  if (encapsulation === 'wireguard') {
    // An authentic keepalive of the peer, sent from an address in its subnet.
    const roam = async (engine: NativeEngine): Promise<void> => {
      await ip('address', 'add', `${net.inside[0]}/${net.whole}`, 'dev', 'lo', ...(family === 'ipv6' ? ['nodad'] : []))
      const head = Buffer.alloc(16)
      head.writeUInt32LE(4)
      head.writeUInt32LE(indexOf(1), 4)
      const seal = createCipheriv('chacha20-poly1305', Buffer.alloc(32, 9), Buffer.alloc(12), { authTagLength: 16 })
      seal.final()
      const messages = addon.counterNames.indexOf('rx_messages')
      const socket = createSocket(type)
      await new Promise<void>((resolve) => socket.bind(8285, net.inside[0], resolve))
      await new Promise<void>((resolve) =>
        socket.send(Buffer.concat([head, seal.getAuthTag()]), 8285, net.own, () => resolve()),
      )
      // Poll this counter, because no event reports its change.
      while (Number(engine.counters[messages]) === 0) await new Promise((resolve) => setTimeout(resolve, 5))
      socket.close()
      await ip('address', 'del', `${net.inside[0]}/${net.whole}`, 'dev', 'lo')
    }
    results.push(await run('outside, after it seemed to roam inside', 1, [net.outside], roam))
  }
  process.stdout.write(JSON.stringify(results), () => process.exit(0))
}

if (process.argv[2] !== undefined) await main(JSON.parse(process.argv[2]) as CircleJob)
