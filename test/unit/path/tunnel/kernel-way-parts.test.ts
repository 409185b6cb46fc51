import { connect, createServer } from 'node:net'
import { afterEach, describe, expect, it } from 'vitest'
import { addon } from '../../../../src/host/addon.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { parseIpv6Net } from '../../../../src/net/ipv6.ts'
import { JoinChoice } from '../../../../src/path/tunnel/kernel-way-join.ts'
import { encodePeer, IS_LITTLE, mapOf, MAPS, peerKey, sumOfCpus } from '../../../../src/path/tunnel/kernel-way-maps.ts'
import { instructionsOf, programsIn } from '../../../../src/path/tunnel/kernel-way-object.ts'
import { ProofConnection, ProofServer } from '../../../../src/path/tunnel/kernel-way-proof.ts'
import { eventually } from '../../../support/event.ts'
import { lackOf } from '../../../support/needs.ts'
import { hostsAt } from '../../../support/peer-hosts.ts'

describe('the maps', () => {
  const peer = { subnet: parseIpv4Net('10.5.2.0/24')!, port: 8285, slot: 5 }

  it('have a peer by its subnet', () => {
    const key = Buffer.from(peerKey(peer.subnet))
    expect([IS_LITTLE ? key.readUInt32LE(0) : key.readUInt32BE(0), key.subarray(4)]).toEqual([
      24,
      Buffer.from([10, 5, 2, 0]),
    ])
    expect(peerKey(parseIpv6Net('fd00:5::/64')!)).toHaveLength(20)
    expect([mapOf(peer), mapOf({ subnet: parseIpv6Net('fd00:5::/64')! })]).toEqual(['peers4', 'peers6'])
  })

  it('have no host and no flags of a peer that is reached over IPv6, or its host for a while', () => {
    const moved = { ...peer, hosts: { ipv4: parseIpv4('192.0.2.2')!, ipv6: 1n }, outer: 'ipv6' as const }
    const parts = (value: Uint8Array): number[] => [...value.subarray(0, 4), ...value.subarray(12, 16)]
    expect(parts(encodePeer(moved, 1472, 1))).toEqual([0, 0, 0, 0, 0, 0, 0, 0])
    expect(parts(encodePeer(moved, 1472, 1, true))).toEqual([192, 0, 2, 2, 0, 0, 0, 0])
    const other = encodePeer({ ...peer, ...hostsAt(parseIpv4('192.0.2.2')!) }, 1472, 1)
    expect([...other.subarray(0, 6)]).toEqual([192, 0, 2, 2, 0x20, 0x5d])
  })

  it('have a value for each CPU, whose numbers are added up', () => {
    expect(sumOfCpus(new Uint8Array(new BigUint64Array([1n, 2n, 10n, 20n]).buffer), 16)).toEqual([11n, 22n])
  })
})

describe('the object file', () => {
  it('has the three programs, and refers only to maps that weft makes', ({ skip }) => {
    const lack = lackOf('clang++')
    if (lack !== undefined) skip(lack)
    const programs = programsIn(addon.kernelWayObject()!, IS_LITTLE)
    expect([...programs.keys()].toSorted()).toEqual(['tc/egress', 'tc/ingress', 'tc/joined'])
    for (const { instructions, references } of programs.values()) {
      expect(instructions.length % 8).toBe(0)
      for (const [, name] of references) expect(Object.keys(MAPS)).toContain(name)
    }
  })

  it('gets the descriptors of the maps', () => {
    const program = {
      instructions: Buffer.from('1801000000000000'.padEnd(32, '0'), 'hex'),
      references: [[0, 'peers4']],
    } as const
    expect(instructionsOf(program, { peers4: 7 }, true).subarray(0, 8)).toEqual(Buffer.from('1811000007000000', 'hex'))
    expect(() => instructionsOf(program, {}, true)).toThrow('an unknown map peers4')
    expect(() => programsIn(Buffer.alloc(64), true)).toThrow('not an ELF file')
  })
})

describe('the joining of segments', () => {
  it('begins when many long packets arrive one by one, and ends with the first superpacket', () => {
    const choice = new JoinChoice()
    expect([choice.take({ long: 0n, lone: 999n }), choice.isOn]).toEqual([false, false])
    expect([choice.take({ long: 0n, lone: 2_000n }), choice.isOn]).toEqual([true, true])
    expect([choice.take({ long: 0n, lone: 2_000n }), choice.isOn]).toEqual([false, true])
    expect([choice.take({ long: 1n, lone: 9_000n }), choice.isOn]).toEqual([true, false])
    expect([choice.take({ long: 1n, lone: 19_000n }), choice.isOn]).toEqual([false, false])
    for (let look = 0; look < 4; look++) choice.take({ long: 1n, lone: 19_000n })
    expect([choice.take({ long: 1n, lone: 29_000n }), choice.isOn]).toEqual([true, true])
  })
})

describe('the proof', () => {
  const PORT = 18_286
  const target = { host: '127.5.2.0', port: PORT, localAddress: '127.5.1.0', left: () => void (hasLeft = true) }
  let server: ProofServer
  let carried = 0
  let tested: string[] = []
  let hasLeft = false
  afterEach(() => server.close())
  async function serve(isPeer = (address: string): boolean => address === '127.5.1.0'): Promise<void> {
    server = new ProofServer({
      isPeer,
      carriedFrom: () => (carried += 100),
      hasTested: (address) => tested.push(address),
    })
    await server.listen('127.5.2.0', PORT)
  }

  it('succeeds if the bytes arrive and the kernel carried them', async () => {
    await serve()
    tested = []
    const connection = new ProofConnection(target)
    expect([await connection.proven, tested]).toEqual([undefined, []])
    const { answeredAt } = connection
    connection.ask()
    await eventually(() => expect(connection.answeredAt).toBeGreaterThan(answeredAt))
    expect(tested).toEqual(['127.5.1.0'])
    server.leave()
    await eventually(() => expect([hasLeft, connection.isClosed]).toEqual([true, true]))
  })

  it('fails if no process listens, or if the peer does not know this node', async () => {
    await serve(() => false)
    expect(await new ProofConnection(target).proven).toBe('silent')
    server.close()
    expect(await new ProofConnection({ ...target, port: PORT + 1 }).proven).toBe('refused')
  })

  it('fails if the peer answers with other bytes than a digest', async () => {
    await serve()
    const liar = createServer((socket) => socket.end(Buffer.from(`${'\u00e9'.repeat(64)} 5\n`, 'latin1')))
    await new Promise<void>((resolve) => liar.listen({ host: target.host, port: PORT + 2 }, resolve))
    expect(await new ProofConnection({ ...target, port: PORT + 2 }).proven).toBe('wrong')
    liar.close()
  })

  it('serves a peer at most eight connections at a time', async () => {
    await serve()
    const connections = Array.from({ length: 9 }, () => new ProofConnection(target))
    const failures = await Promise.all(connections.map(({ proven }) => proven))
    expect(failures.filter((failure) => failure === undefined)).toHaveLength(8)
    for (const each of connections) each.close()
  })

  it.each([
    ['an HTTP request', 'GET / HTTP/1.1\r\nHost: a\r\n\r\n'],
    ['a proof of no bytes', 'weft-proof 1 0\n'],
    ['a proof of too many bytes', 'weft-proof 1 9999999\n'],
    ['a line without an end', 'w'.repeat(100)],
  ])('has no answer to %s', async (_what, text) => {
    await serve()
    const socket = connect({ host: target.host, port: PORT, localAddress: target.localAddress })
    let answer = ''
    socket.on('data', (data: Buffer) => (answer += String(data)))
    socket.on('error', () => {})
    const closed = new Promise((resolve) => socket.on('close', resolve))
    socket.write(text)
    await closed
    expect(answer).toBe('')
  })
})
