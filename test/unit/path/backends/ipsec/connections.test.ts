// connections.test.ts - the connections and shared keys that weftd keeps in charon. A mock of charon has them.

import { afterEach, beforeEach, expect, it } from 'vitest'
import { Secret } from '../../../../../src/base/secret.ts'
import { parseNet, type Net } from '../../../../../src/net/address.ts'
import { IpsecConnections, unloadAll } from '../../../../../src/path/backends/ipsec/connections.ts'
import { ViciClient } from '../../../../../src/path/backends/ipsec/vici-client.ts'
import { eventually } from '../../../../support/event.ts'
import { FakeCharon } from '../../../../support/fake-charon.ts'

const OWN = { subnet: '10.5.1.0/24', host: '192.0.2.1' }
const PEER = { subnet: '10.5.2.0/24', host: '192.0.2.2' }
const THIRD = { subnet: '10.5.3.0/24', host: '192.0.2.3' }
const NAME = '192.0.2.1-10.5.1.0/24-10.5.2.0/24-192.0.2.2'
const NETWORK = parseNet('10.5.0.0/16') as Net
const signal = new AbortController().signal
const PSK = 'only for tests. '.repeat(6)

let charon: FakeCharon
let lines: string[]
let open: IpsecConnections[]

interface Changes {
  psk?: string
  own?: typeof OWN
  espProposal?: string
}

async function connections({ psk = PSK, own = OWN, espProposal = 'aes128gcm16' }: Changes = {}) {
  const add = (line: string): void => void lines.push(line)
  const made = new IpsecConnections({
    network: NETWORK,
    own,
    psk: new Secret(psk),
    espProposal,
    udpEncap: false,
    isUserspace: false,
    start: async (stop) => {
      const client = await ViciClient.connect(charon.path, stop)
      return { client, stop: async () => client.close() }
    },
    log: { info: add, warn: add, error: add, v: () => false },
  })
  await made.open(signal)
  open.push(made)
  return made
}

beforeEach(async () => {
  charon = await new FakeCharon().listen()
  lines = []
  open = []
})
afterEach(async () => {
  charon.silent = undefined
  await Promise.all(open.map((each) => each.close()))
  charon.close()
})

it('loads a key and a connection for each peer, and removes both after the peer', async () => {
  const ours = await connections()
  await ours.apply([PEER, THIRD])
  expect([...charon.connections.keys()]).toEqual([NAME, '192.0.2.1-10.5.1.0/24-10.5.3.0/24-192.0.2.3'])
  expect([...charon.keys.values()].map(({ owners }) => owners)).toEqual([['192.0.2.1'], ['192.0.2.2'], ['192.0.2.3']])
  await ours.apply([THIRD])
  expect([...charon.connections.keys()]).not.toContain(NAME)
  expect([...charon.keys.values()].map(({ owners }) => owners)).toEqual([['192.0.2.1'], ['192.0.2.3']])
})

it('lists nothing for a change, so that its time does not grow with the number of peers', async () => {
  const ours = await connections()
  await ours.apply([PEER])
  charon.requests.length = 0
  await ours.apply([PEER, THIRD])
  expect(charon.requests).toEqual(['load-shared', 'load-conn'])
})

it('lists more connections than one answer of charon can name', async () => {
  for (let number = 0; number < 12_000; number++)
    charon.connections.set(`a connection of another program, with the number ${number}`, { version: '2' })
  const ours = await connections()
  await ours.apply([PEER])
  charon.connections.delete(NAME)
  expect(await ours.resync()).toEqual([`charon had lost the connection ${NAME}`])
  expect(lines.filter((line) => line.includes('error'))).toEqual([])
})

it('gives a charon that ran already the new PSK and the new options', async () => {
  const before = await connections()
  await before.apply([PEER])
  await before.close()
  const psk = 'another of tests'.repeat(6)
  const ours = await connections({ psk, espProposal: 'aes256gcm16' })
  await ours.apply([PEER])
  for (const { data } of charon.keys.values()) expect(data).toBe(psk)
  const { children } = charon.connections.get(NAME) as { children: Record<string, unknown> }
  expect(JSON.stringify(children)).toContain('aes256gcm16')
})

it('keeps the connections of an earlier run until the peers are known', async () => {
  const before = await connections()
  await before.apply([PEER, THIRD])
  await before.close()
  const ours = await connections()
  expect(charon.connections.size).toBe(2)
  await ours.resync()
  expect(charon.connections.size).toBe(2)
  await ours.apply([PEER])
  expect([...charon.connections.keys()]).toEqual([NAME])
  expect(charon.keys.size).toBe(2)
})

it('removes the connections of an earlier subnet and address of this host, and those of no other program', async () => {
  const others = ['192.0.2.1-office', '192.0.2.1-10.8.1.0/24-10.8.2.0/24-192.0.2.2', 'home']
  for (const name of others) charon.connections.set(name, {})
  charon.keys.set('home', {})
  const before = await connections({ own: { subnet: '10.5.9.0/24', host: '192.0.2.9' } })
  await before.apply([PEER])
  await before.close()
  const ours = await connections()
  await ours.apply([PEER])
  expect([...charon.connections.keys()]).toEqual([...others, NAME])
  expect([...charon.keys.keys()]).toEqual(['home', 'weft-10.5.0.0/16-192.0.2.2', 'weft-10.5.0.0/16-192.0.2.1'])
  const client = await ViciClient.connect(charon.path, signal)
  expect(await unloadAll(client, NETWORK)).toEqual([NAME])
  client.close()
  expect([[...charon.connections.keys()], [...charon.keys.keys()]]).toEqual([others, ['home']])
})

it('reports and repairs a connection that charon lost', async () => {
  const ours = await connections()
  await ours.apply([PEER])
  charon.connections.clear()
  charon.keys.clear()
  expect(await ours.resync()).toEqual([`charon had lost the connection ${NAME}`])
  expect([charon.connections.size, charon.keys.size]).toEqual([1, 2])
  expect(await ours.resync()).toEqual([])
})

it('loads everything into a charon that was started again', async () => {
  const ours = await connections()
  await ours.apply([PEER])
  charon.connections.clear()
  charon.keys.clear()
  charon.hangUp()
  await eventually(() => expect([charon.connections.size, charon.keys.size]).toEqual([1, 2]))
  expect(lines).toContain("strongSwan's charon does not answer: it closed the connection; starting it again")
})

it('loads the connections of the other peers if charon refuses one', async () => {
  charon.refused = /^load-conn .*10\.5\.2\.0/
  const ours = await connections()
  await ours.apply([PEER, THIRD])
  expect(charon.connections.size).toBe(1)
  expect(lines).toContain('error loading connection into IKE daemon: charon refuses load-conn: refused')
  charon.refused = undefined
  await ours.resync()
  expect(charon.connections.size).toBe(2)
})

it('logs no PSK if charon refuses it', async () => {
  charon.refused = /^load-shared/
  await connections()
  expect(lines).toContain('error loading connection into IKE daemon: charon refuses load-shared: refused')
  expect(lines.join('\n')).not.toContain(PSK.trim())
})

it('closes without a delay while a charon that was started again hangs', async () => {
  const ours = await connections()
  charon.silent = /^list-conns/
  charon.requests.length = 0
  charon.hangUp()
  await eventually(() => expect(charon.requests).toEqual(['list-conns']))
  const began = performance.now()
  await ours.close()
  expect(performance.now() - began).toBeLessThan(2_000)
})

it('counts the packets of each peer, also if several callers count at the same time or charon answers nonsense', async () => {
  const ours = await connections()
  await ours.apply([PEER, THIRD])
  const child = { state: 'INSTALLED', 'bytes-in': '7', 'bytes-out': '8', 'packets-in': '1', 'packets-out': 'junk' }
  const other = '192.0.2.1-10.5.1.0/24-10.5.3.0/24-192.0.2.3'
  charon.associations = [
    { [NAME]: { 'child-sas': { a: child, b: { state: 'REKEYED' } } } },
    { [other]: { 'child-sas': 'junk' } },
    { foreign: { 'child-sas': { a: child } } },
  ]
  const counts = { rxBytes: 7, txBytes: 8, rxPackets: 1, txPackets: 0 }
  for (const found of await Promise.all([ours.keys(), ours.keys(), ours.keys()]))
    expect(Object.fromEntries(found)).toEqual({ '10.5.2.0/24': counts })
})

it('continues its counts when charon renews the keys of a peer, and when charon was started again', async () => {
  const ours = await connections()
  await ours.apply([PEER])
  const sa = (bytes: number, state = 'INSTALLED') => ({
    state,
    'bytes-in': String(bytes),
    'bytes-out': String(2 * bytes),
  })
  const counts = async (children: Readonly<Record<string, ReturnType<typeof sa>>>) => {
    charon.associations = [{ [NAME]: { 'child-sas': children } }]
    const { rxBytes, txBytes } = (await ours.keys()).get('10.5.2.0/24') ?? {}
    return [rxBytes, txBytes]
  }
  expect(await counts({ 'weft-1': sa(1_000) })).toEqual([1_000, 2_000])
  expect(await counts({ 'weft-1': sa(1_500, 'REKEYED'), 'weft-2': sa(10) })).toEqual([1_510, 3_020])
  expect(await counts({ 'weft-2': sa(20) })).toEqual([1_520, 3_040])
  expect(await counts({})).toEqual([undefined, undefined])
  expect(await counts({ 'weft-1': sa(5) })).toEqual([1_525, 3_050])
  expect(await counts({ 'weft-1': sa(3) })).toEqual([1_528, 3_056])
  charon.associations = [] // charon lists no association while it works on it
  expect((await ours.keys()).size).toBe(0)
  expect(await counts({ 'weft-1': sa(6) })).toEqual([1_531, 3_062])
  await ours.apply([])
  await ours.keys()
  await ours.apply([PEER])
  expect(await counts({ 'weft-1': sa(4) })).toEqual([4, 8])
})
