// wireguard-probe.ts - runs our handshakes against wireguard-go or the kernel's device, in a scenario given by name.
//
// It runs as a program inside a network and a mount namespace of its own: `wireguard-probe SCENARIO [kernel]`; a result as JSON on stdout.
// The handshakes have a socket, a clock that can jump ahead, and a minimal data transport: it opens packets under any keys, and seals
// packets and keepalives with the latest key that it may use.

import { spawn } from 'node:child_process'
import { createCipheriv, createDecipheriv } from 'node:crypto'
import { createSocket, type Socket } from 'node:dgram'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { output } from '../../lab/command.ts'
import { SecretBytes } from '../../src/base/secret.ts'
import { formatIpv4, parseIpv4 } from '../../src/net/ipv4.ts'
import { type Endpoint, macKeysOf, writeMacs } from '../../src/path/backends/wireguard/cookie.ts'
import { systemRandomness } from '../../src/path/backends/wireguard/crypto.ts'
import { Handshakes, type HandshakeState } from '../../src/path/backends/wireguard/handshakes.ts'
import { INITIATION_BYTES } from '../../src/path/backends/wireguard/messages.ts'
import { ipv4Packet, udpDatagram } from './packets.ts'

/** The result; each scenario sets its own members. */
export interface WireguardResult {
  /** The data that arrived after the scenario's handshakes. */
  readonly toUs?: string
  readonly toOther?: string
  /** For each of our key pairs, whether we initiated it. */
  readonly initiated?: readonly boolean[]
  readonly state?: HandshakeState | undefined
  readonly roamed?: readonly string[]
  readonly sent?: readonly number[]
  readonly received?: readonly number[]
  /** True if the other side reports a handshake with us, and the endpoint that it knows of us. */
  readonly hasHandshake?: boolean
  readonly endpoint?: string
  readonly cookiesSent?: number
  /** For each of our initiations, whether it had a mac2. */
  readonly proved?: readonly boolean[]
}

const OUR_NUMBER = 700
const HERE = parseIpv4('127.0.0.1')!
const [OWN_INNER, OTHER_INNER] = ['10.9.0.2', '10.9.0.1']
/**
 * For this time in ms after an initiation wireguard-go silently ignores further initiations (device/noise-protocol.go,
 * HandshakeInitationRate).
 */
const PASSED_OVER_MS = 25
const PORT = 51_820
const DATA = 4

/** The milliseconds by which our clock is ahead. */
let ahead = 0
const now = (): number => performance.now() + ahead

const folder = mkdtempSync(join(tmpdir(), 'wireguard-probe-'))
function fileOf(name: string, key: Uint8Array): string {
  const path = join(folder, name)
  writeFileSync(path, Buffer.from(key).toString('base64'))
  return path
}

interface Session {
  readonly isInitiator: boolean
  readonly ownIndex: number
  readonly peerIndex: number
  readonly sendKey: Buffer
  readonly receiveKey: Buffer
  counter: bigint
  isConfirmed: boolean
}
const nonceOf = (counter: bigint): Buffer => {
  const nonce = Buffer.alloc(12)
  nonce.writeBigUInt64LE(counter, 4)
  return nonce
}
const CIPHER = 'chacha20-poly1305'
const TAG = { authTagLength: 16 } as const
function seal(session: Session, text: Buffer): Buffer {
  const head = Buffer.alloc(16)
  head[0] = DATA
  head.writeUInt32LE(session.peerIndex, 4)
  head.writeBigUInt64LE(session.counter, 8)
  const cipher = createCipheriv(CIPHER, session.sendKey, nonceOf(session.counter), TAG)
  session.counter += 1n
  return Buffer.concat([head, cipher.update(text), cipher.final(), cipher.getAuthTag()])
}
function open(session: Session, datagram: Buffer): Buffer {
  const decipher = createDecipheriv(CIPHER, session.receiveKey, nonceOf(datagram.readBigUInt64LE(8)), TAG)
  decipher.setAuthTag(datagram.subarray(-16))
  return Buffer.concat([decipher.update(datagram.subarray(16, -16)), decipher.final()])
}

interface World {
  readonly handshakes: Handshakes
  readonly sessions: Session[]
  readonly roamed: string[]
  /** The types of the handshake messages that we sent and received, in order, including lost ones. */
  readonly sent: number[]
  readonly received: number[]
  readonly proved: boolean[]
  readonly flooder: Socket
  /** Loses the first message of this type, if there is one. */
  loseSent(type: number): void
  loseHeard(type: number): void
  /** Called before a handshake message is processed, with the time. */
  before: (at: number) => void
  /** The inner packets that arrived, without keepalives. */
  readonly inner: Buffer[]
  /** Waits until `check` holds after some datagram. */
  until(check: () => boolean): Promise<void>
  /** Makes our clock jump, and does what is due then. The other side's clock continues: it accepts another initiation after 20 ms. */
  jump(ms: number): Promise<void>
  want(): void
  /** Sends a text from the other side's host into its tunnel, and one from ours. */
  sayFromThere(text: string): void
  say(text: string): void
  /** Sends data in both directions and returns the texts that arrived. */
  exchange(): Promise<{ readonly toUs: string; readonly toOther: string }>
  /** Moves weft's end to another port. */
  move(): Promise<void>
  wg(...args: readonly string[]): Promise<string>
  /** Configures us as a peer of the other side again, so that it forgets its sessions. */
  reconfigure(): Promise<void>
  close(): Promise<void>
}

/** Creates the other side's device; returns a function that removes it. */
async function beginOther(): Promise<() => Promise<unknown>> {
  if (process.argv[3] === 'kernel') {
    await output(['ip', 'link', 'add', 'wg0', 'type', 'wireguard'])
    return () => output(['ip', 'link', 'del', 'wg0'])
  }
  const go = spawn('wireguard-go', ['--foreground', 'wg0'], {
    stdio: ['ignore', 'pipe', 'ignore'],
    env: { ...process.env, LOG_LEVEL: 'verbose' },
  })
  const log = createInterface({ input: go.stdout })
  await new Promise<void>((resolve, reject) => {
    log.on('line', (line) => line.includes('UAPI listener started') && resolve())
    go.once('exit', () => reject(new Error('wireguard-go ended')))
  })
  return async () => {
    go.kill()
    await once(go, 'exit')
  }
}

async function begin({
  ourPsk,
  otherPsk,
}: { ourPsk?: Uint8Array | undefined; otherPsk?: Uint8Array | undefined } = {}): Promise<World> {
  const [ourKey, otherKey] = [systemRandomness.bytes(32), systemRandomness.bytes(32)]
  const otherFile = fileOf('other', otherKey)
  const otherPublic = Buffer.from(
    (await output(['wg', 'pubkey'], { input: Buffer.from(otherKey).toString('base64') })).trim(),
    'base64',
  )

  await output(['ip', 'link', 'set', 'lo', 'up'])
  const endOther = await beginOther()

  const sockets: Socket[] = []
  const bound = async (): Promise<Socket> => {
    const socket = createSocket('udp4')
    sockets.push(socket)
    socket.bind(0, formatIpv4(HERE))
    await once(socket, 'listening')
    return socket
  }
  let socket = await bound()
  const inside = createSocket('udp4') // a socket on the other side's host
  sockets.push(inside)
  const sessions: Session[] = []
  const roamed: string[] = []
  const [sent, received, proved, inner]: [number[], number[], boolean[], Buffer[]] = [[], [], [], []]
  const [lostSent, lostHeard] = [new Set<number>(), new Set<number>()]
  const waiting = new Set<() => void>()
  const looked = (): void => {
    for (const look of waiting) look()
  }
  const receivedThere: string[] = []

  const handshakes = new Handshakes({
    privateKey: new SecretBytes(ourKey),
    indexSecret: 0x5eed_c0de,
    engine: {
      send(to, datagram) {
        const [type = 0] = datagram
        sent.push(type)
        if (type === 1) proved.push(datagram.subarray(-16).some((byte) => byte !== 0))
        if (!lostSent.delete(type)) socket.send(Buffer.from(datagram), to.port, formatIpv4(to.address as number))
        looked()
      },
      setKeys(_peer, keys) {
        const session = {
          ...keys,
          sendKey: Buffer.from(keys.sendKey),
          receiveKey: Buffer.from(keys.receiveKey),
          counter: 0n,
          isConfirmed: keys.isInitiator,
        }
        sessions.push(session)
        if (keys.isInitiator && !lostSent.delete(DATA))
          setImmediate(() => socket.send(seal(session, Buffer.alloc(0)), PORT, formatIpv4(HERE)))
      },
    },
    random: systemRandomness,
    wall: () => Date.now() + ahead,
    keptTick: -1,
    keepTick: () => {},
    roamed: (_peer, to) => void roamed.push(`${formatIpv4(to.address as number)}:${to.port}`),
    overlooked: () => {},
  })
  const listen = (to: Socket): void =>
    void to.on('message', (datagram, { address, port }) => {
      const [type = 0] = datagram
      if (type === DATA) {
        const session = sessions.find(({ ownIndex }) => ownIndex === datagram.readUInt32LE(4))
        if (session) {
          const text = open(session, datagram)
          if (!session.isConfirmed) handshakes.confirmed(OUR_NUMBER, now())
          session.isConfirmed = true
          if (text.length > 0) inner.push(text)
        }
      } else {
        const at = now()
        world.before(at)
        received.push(type)
        if (!lostHeard.delete(type)) handshakes.message({ address: parseIpv4(address)!, port }, datagram, at)
      }
      looked()
    })
  listen(socket)
  const endpoint: Endpoint = { address: HERE, port: PORT }
  handshakes.setPeers([
    { number: OUR_NUMBER, publicKey: otherPublic, endpoint, psk: ourPsk && new SecretBytes(Buffer.from(ourPsk)) },
  ])

  const ourName = Buffer.from(handshakes.publicKey).toString('base64')
  const wg = (...args: readonly string[]): Promise<string> => output(['wg', ...args])
  const reconfigure = async (): Promise<void> => {
    await wg('set', 'wg0', 'peer', ourName, 'remove')
    await wg(
      'set',
      'wg0',
      'peer',
      ourName,
      'allowed-ips',
      `${OWN_INNER}/32`,
      'endpoint',
      `${formatIpv4(HERE)}:${socket.address().port}`,
      ...(otherPsk ? ['preshared-key', fileOf('psk', otherPsk)] : []),
    )
  }
  await wg('set', 'wg0', 'listen-port', String(PORT), 'private-key', otherFile)
  await reconfigure()
  await output(['ip', 'addr', 'add', `${OTHER_INNER}/32`, 'dev', 'wg0'])
  await output(['ip', 'link', 'set', 'wg0', 'up'])
  await output(['ip', 'route', 'add', `${OWN_INNER}/32`, 'dev', 'wg0'])
  inside.bind(7_000, OTHER_INNER)
  await once(inside, 'listening')
  inside.on('message', (text) => {
    receivedThere.push(text.toString())
    looked()
  })

  const until = (check: () => boolean): Promise<void> =>
    new Promise((resolve) => {
      const look = (): void => {
        if (!check()) return
        waiting.delete(look)
        resolve()
      }
      waiting.add(look)
      look()
    })
  const textsIn = (): string[] => inner.map((packet) => packet.subarray(28, packet.readUInt16BE(2)).toString())
  const world: World = {
    handshakes,
    sessions,
    roamed,
    sent,
    received,
    proved,
    inner,
    until,
    wg,
    reconfigure,
    flooder: await bound(),
    before: () => {},
    loseSent: (type) => void lostSent.add(type),
    loseHeard: (type) => void lostHeard.add(type),
    async jump(ms) {
      await delay(PASSED_OVER_MS)
      ahead += ms
      handshakes.tick(now())
    },
    want: () => handshakes.wanted(OUR_NUMBER, now()),
    sayFromThere: (text) => inside.send(text, 7_001, OWN_INNER),
    say(text) {
      const session = sessions.findLast(({ isConfirmed }) => isConfirmed)!
      const [source, destination] = [parseIpv4(OWN_INNER)!, parseIpv4(OTHER_INNER)!]
      const payload = udpDatagram(source, destination, 7_001, 7_000, Buffer.from(text))
      const packet = ipv4Packet({ source, destination, payload })
      socket.send(seal(session, packet), PORT, formatIpv4(HERE))
    },
    async exchange() {
      inner.length = 0
      receivedThere.length = 0
      world.sayFromThere('from there')
      await until(() => textsIn().includes('from there'))
      world.say('from here')
      await until(() => receivedThere.includes('from here'))
      return { toUs: textsIn().at(-1)!, toOther: receivedThere.at(-1)! }
    },
    async move() {
      socket = await bound()
      listen(socket)
    },
    async close() {
      for (const each of sockets) each.close()
      await endOther()
      rmSync(folder, { recursive: true })
    },
  }
  return world
}

const initiatedIn = ({ sessions }: World): boolean[] => sessions.map(({ isInitiator }) => isInitiator)
const stateIn = ({ handshakes }: World): HandshakeState | undefined => handshakes.stateOf(OUR_NUMBER)
async function hasHandshake(world: World): Promise<boolean> {
  return !(await world.wg('show', 'wg0', 'latest-handshakes')).trim().endsWith('\t0')
}
/**
 * Returns a message that anyone with the other side's public key can send, and that differs from an initiation only after an X25519
 * computation.
 */
function forged(publicKey: Uint8Array): Buffer {
  const message = Buffer.from(systemRandomness.bytes(INITIATION_BYTES))
  message.writeUInt32LE(1, 0)
  message.fill(0, INITIATION_BYTES - 16)
  writeMacs(message, macKeysOf(publicKey), undefined)
  return message
}

const PSK = systemRandomness.bytes(32)

/**
 * Renews keys every two minutes for `seconds` of our clock. Both sides initiate in turn, some messages are lost, and we move every sixteen
 * minutes. The other side's clock does not jump, so it is configured again before it must initiate.
 */
async function day(seconds: number): Promise<WireguardResult> {
  const world = await begin({ ourPsk: PSK, otherPsk: PSK })
  const { sessions } = world
  for (let round = 0; round < seconds / 120; round++) {
    const before = sessions.length
    const next = now() + 120_000
    const loses = (of: number): boolean => round % 8 === of
    if (loses(6)) await world.move()
    if (round % 2 === 0) {
      if (loses(0)) world.loseSent(1)
      if (loses(2)) world.loseHeard(2)
      if (loses(4)) world.loseSent(DATA)
      world.want()
      if (loses(2)) await world.until(() => world.received.at(-1) === 2)
      if (loses(0) || loses(2)) await world.jump(5_400)
      await world.until(() => sessions.length > before)
      world.say('confirms')
    } else {
      if (round % 16 === 15) world.loseSent(2) // it retries after five seconds
      await world.reconfigure()
    }
    await world.exchange()
    await world.jump(next - now())
  }
  const result = { ...(await world.exchange()), initiated: initiatedIn(world), state: stateIn(world) }
  await world.close()
  return result
}

const SCENARIOS: Readonly<Record<string, () => Promise<WireguardResult>>> = {
  async initiator() {
    const world = await begin({ ourPsk: PSK, otherPsk: PSK })
    world.want()
    await world.until(() => world.sessions.length === 1)
    const crossed = await world.exchange()
    const result = {
      ...crossed,
      initiated: initiatedIn(world),
      state: stateIn(world),
      hasHandshake: await hasHandshake(world),
    }
    await world.close()
    return result
  },
  async responder() {
    const world = await begin({ ourPsk: PSK, otherPsk: PSK })
    const crossed = await world.exchange() // data from the other side starts the handshake
    const result = {
      ...crossed,
      initiated: initiatedIn(world),
      state: stateIn(world),
      hasHandshake: await hasHandshake(world),
    }
    await world.close()
    return result
  },
  async 'no psk'() {
    const world = await begin()
    world.want()
    await world.until(() => world.sessions.length === 1)
    const crossed = await world.exchange()
    await world.close()
    return crossed
  },
  async 'wrong psk'() {
    const world = await begin({ ourPsk: PSK, otherPsk: systemRandomness.bytes(32) })
    world.want()
    await world.until(() => world.received.includes(2))
    await world.jump(5_400)
    await world.until(() => world.received.filter((type) => type === 2).length === 2)
    // In the other direction it does not accept our response either. It initiates when it has data, but not right after a response.
    const talk = setInterval(() => world.sayFromThere('lost'), 200)
    await world.until(() => world.received.filter((type) => type === 1).length >= 2)
    clearInterval(talk)
    const result = { initiated: initiatedIn(world), state: stateIn(world), hasHandshake: await hasHandshake(world) }
    await world.close()
    return result
  },
  async 'lost initiation'() {
    const world = await begin()
    world.loseSent(1)
    world.want()
    await world.jump(5_400)
    await world.until(() => world.sessions.length === 1)
    const result = { ...(await world.exchange()), sent: world.sent, initiated: initiatedIn(world) }
    await world.close()
    return result
  },
  async 'lost response'() {
    const world = await begin()
    world.loseHeard(2)
    world.want()
    await world.until(() => world.received.includes(2))
    await world.jump(5_400)
    await world.until(() => world.sessions.length === 1)
    const result = {
      ...(await world.exchange()),
      sent: world.sent,
      received: world.received,
      initiated: initiatedIn(world),
    }
    await world.close()
    return result
  },
  async 'lost keepalive'() {
    const world = await begin()
    world.loseSent(DATA)
    world.want()
    await world.until(() => world.sessions.length === 1)
    const before = await hasHandshake(world)
    world.say('confirms')
    const result = { ...(await world.exchange()), hasHandshake: before, initiated: initiatedIn(world) }
    await world.close()
    return result
  },
  async 'lost answer'() {
    const world = await begin()
    world.loseSent(2)
    const crossed = await world.exchange() // it retries after five seconds
    const result = {
      ...crossed,
      sent: world.sent,
      received: world.received,
      initiated: initiatedIn(world),
      state: stateIn(world),
    }
    await world.close()
    return result
  },
  async rekeying() {
    const world = await begin({ ourPsk: PSK, otherPsk: PSK })
    for (let round = 1; round <= 4; round += 1) {
      world.want()
      await world.until(() => world.sessions.length === round)
      await world.exchange()
      await world.jump(120_000)
    }
    world.want()
    await world.until(() => world.sessions.length === 5)
    const crossed = await world.exchange()
    const result = { ...crossed, sent: world.sent, initiated: initiatedIn(world), state: stateIn(world) }
    await world.close()
    return result
  },
  'an hour': () => day(3_600),
  'a day': () => day(86_400),
  async 'both at once'() {
    const world = await begin()
    world.sayFromThere('begins')
    world.want()
    await world.until(() => world.sessions.some(({ isConfirmed }) => isConfirmed))
    const result = { ...(await world.exchange()), state: stateIn(world) }
    await world.close()
    return result
  },
  async 'we move'() {
    const world = await begin()
    world.want()
    await world.until(() => world.sessions.length === 1)
    await world.exchange()
    await world.move()
    await world.jump(120_000)
    world.want()
    await world.until(() => world.sessions.length === 2)
    const crossed = await world.exchange()
    await world.close()
    return { ...crossed, roamed: world.roamed }
  },
  async 'it moves'() {
    const world = await begin()
    world.want()
    await world.until(() => world.sessions.length === 1)
    await world.wg('set', 'wg0', 'listen-port', '51999')
    await world.reconfigure()
    world.sayFromThere('moved')
    await world.until(() => world.inner.length > 0)
    const result = { initiated: initiatedIn(world), roamed: world.roamed }
    await world.close()
    return result
  },
  async 'it is loaded'() {
    const world = await begin()
    const publicKey = Buffer.from((await world.wg('show', 'wg0', 'public-key')).trim(), 'base64')
    const messages = Array.from({ length: 512 }, () => forged(publicKey))
    const flood = new AbortController()
    const asked = once(world.flooder, 'message')
    const flooding = (async () => {
      while (!flood.signal.aborted) {
        for (const message of messages) world.flooder.send(message, PORT, formatIpv4(HERE))
        await new Promise(setImmediate)
      }
    })()
    await asked
    world.want()
    while (!world.received.includes(3)) {
      await new Promise(setImmediate)
      if (world.sessions.length > 0) throw new Error('it was answered at once')
      if (world.handshakes.nextAt() < now() - 1) world.handshakes.tick(now())
    }
    await world.jump(5_400)
    while (world.sessions.length === 0) {
      await new Promise(setImmediate)
      // One of our messages may be lost in the flood.
      if (world.handshakes.nextAt() < now()) world.handshakes.tick(now())
    }
    flood.abort()
    await flooding
    const result = { ...(await world.exchange()), proved: world.proved, initiated: initiatedIn(world) }
    await world.close()
    return result
  },
  async 'we are loaded'() {
    const world = await begin()
    // All messages have the same time, until one is refused. On a slow machine the rate limiter would otherwise recover.
    world.before = (at) => {
      const { counters, publicKey } = world.handshakes
      const before = counters.limited
      for (let sender = 256; counters.limited === before; sender += 1)
        world.handshakes.message({ address: HERE + sender, port: 9 }, forged(publicKey), at)
      world.sent.length = 0
    }
    world.sayFromThere('begins')
    await world.until(() => world.sent.includes(3) && world.received.length === 1)
    const crossed = await world.exchange() // it retries after five seconds
    const result = {
      ...crossed,
      received: world.received,
      initiated: initiatedIn(world),
      cookiesSent: world.handshakes.counters.cookiesSent,
    }
    await world.close()
    return result
  },
}

const scenario = SCENARIOS[process.argv[2] ?? '']
if (!scenario) throw new Error(`no such scenario: ${Object.keys(SCENARIOS).join(', ')}`)
process.stdout.write(JSON.stringify(await scenario()))
