// daemon.test.ts - the node's loops on a store and a data path made for the test, in virtual time.

import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { EVENT_MS } from '../../lab/lab.ts'
import type { Backend } from '../../src/backend/backend.ts'
import { parseNetworkConfig } from '../../src/config/network-config.ts'
import { runNode, type NodeParts } from '../../src/daemon.ts'
import { WeftError } from '../../src/errors.ts'
import { createBell } from '../../src/host/bell.ts'
import { createHealth, type Health } from '../../src/status/health.ts'
import type { State } from '../../src/status/notify.ts'
import { LEASE_TTL_MS } from '../../src/lease/leases.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { createMemoryStore, type MemoryStore } from '../support/memory-store.ts'

interface FakeNetwork {
  readonly subnet: string
  readonly applied: string[][]
  closed: boolean
  mended: string[]
  rounds: Record<string, number>
  die(why: string): void
}

let folder: string
let store: MemoryStore
let networks: FakeNetwork[]
let refuse: Error | undefined
let lines: string[]
let health: Health
let told: string[]
let alive: number
let stopping: AbortController
let ended: Promise<unknown>

/** The network has four subnets of which three can be leased: 10.5.0.64/26, .128 and .192. */
const config = parseNetworkConfig('{"Network":"10.5.0.0/24"}')
const value = (publicIp: string): string => `{"PublicIP":"${publicIp}","PublicIPv6":null}`
const ours = value('192.0.2.1')

const backend: Backend = {
  name: 'fake',
  prepare: async () => ({ publicIp: parseIpv4('192.0.2.1')!, backendType: '' }),
  async open(lease) {
    if (refuse) throw refuse
    let die!: (error: Error) => void
    const fault = new Promise<Error>((resolve) => (die = resolve))
    const network: FakeNetwork = {
      subnet: lease.key,
      applied: [],
      closed: false,
      mended: [],
      rounds: {},
      die: (why) => die(new Error(why)),
    }
    networks.push(network)
    return {
      mtu: 1472,
      fault,
      apply: async (leases, own) => {
        if (network.closed) throw new Error('applied to a network that is closed')
        network.applied.push([...leases.keys()].filter((key) => key !== own).toSorted())
      },
      resync: async () => network.mended.splice(0),
      counters: () => ({}),
      threads: () => network.rounds,
      close: async () => void (network.closed = true),
    }
  },
}

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date', 'performance'] })
  folder = mkdtempSync(join(tmpdir(), 'weft-daemon-'))
  store = createMemoryStore()
  networks = []
  refuse = undefined
  lines = []
  health = createHealth()
  told = []
  alive = 0
  stopping = new AbortController()
})
afterEach(async () => {
  stopping.abort(new Error('the test is over'))
  await ended
  vi.restoreAllMocks()
  vi.useRealTimers()
  rmSync(folder, { recursive: true })
})

const subnetFile = (): string => join(folder, 'subnet.env')

function start(extra: Partial<NodeParts> = {}, networkDoubt = createBell()): void {
  const say = (letter: string) => (message: string) => void lines.push(`${letter} ${message}`)
  const log = { info: say('I'), warn: say('W'), error: say('E'), v: () => false }
  const options = {
    'subnet-file': subnetFile(),
    'subnet-lease-renew-margin': 60,
    'fail-static-hold': 30,
    'ip-masq': false,
  }
  const notifier = {
    aliveMs: 15_000,
    tell: ({ ready, status }: State) => void (told.at(-1) !== status && ready && told.push(status)),
    alive: () => void alive++,
    stopping: () => {},
  }
  const parts = { options, store, config, backend, log, signal: stopping.signal, health, notifier, ...extra }
  ended = runNode(parts, undefined, stopping, networkDoubt).catch((error: unknown) => error)
}

/** Of real time, in which a file is written. */
const realEndOf = (): bigint => process.hrtime.bigint() + BigInt(EVENT_MS) * 1_000_000n

/** Waits until `condition` holds: at most `virtualMs` of virtual time, let go by bit by bit, and a minute of real time. */
async function until(condition: () => boolean, virtualMs = 1000): Promise<void> {
  const realEnd = realEndOf()
  let steps = 100
  for (let turns = 1; !condition(); turns++) {
    if (process.hrtime.bigint() > realEnd) throw new Error(`it did not come true; the log:\n${lines.join('\n')}`)
    await new Promise((resolve) => setImmediate(resolve))
    if (turns % 20 === 0 && steps-- > 0) await vi.advanceTimersByTimeAsync(virtualMs / 100)
  }
}
/** The same for what takes files and timers in turn: lets virtual time go by for as long as it takes. */
async function inTurns(condition: () => boolean): Promise<void> {
  const realEnd = realEndOf()
  while (!condition()) {
    if (process.hrtime.bigint() > realEnd) throw new Error(`it did not come true; the log:\n${lines.join('\n')}`)
    await vi.advanceTimersByTimeAsync(500)
    await new Promise((resolve) => setImmediate(resolve))
  }
}
const logged = (pattern: RegExp): boolean => lines.some((line) => pattern.test(line))
const ready = (): Promise<void> => until(() => logged(/Running backend/) && networks.at(-1)!.applied.length > 0)
const own = (): string => [...store.entries.values()].find((entry) => entry.value === ours)!.key

describe('a node', () => {
  it('leases, opens, writes subnet.env and says so, in this order', async () => {
    start()
    await ready()
    const [first] = networks
    expect(first!.subnet).toBe(own())
    expect(lines.filter((line) => /Allocated|Wrote|ready|Running/.test(line)).map((line) => line.slice(0, 14))).toEqual(
      [...['I Allocated le', 'I Wrote subnet', 'I flannel is r', 'I Running back']],
    )
    const address = own().replace(/(\d+)-26$/, (_text, last) => String(Number(last) + 1))
    expect(readFileSync(subnetFile(), 'utf8')).toBe(
      `FLANNEL_NETWORK=10.5.0.0/24\nFLANNEL_SUBNET=${address}/26\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=false\n`,
    )
    expect(first!.applied).toEqual([[]])
  })

  it('gives the data path all peers but itself, and names who comes and goes', async () => {
    store.put('10.5.0.64-26', value('192.0.2.2'))
    start()
    await ready()
    expect(networks[0]!.applied.at(-1)).toEqual(['10.5.0.64-26'])
    const free = ['10.5.0.128-26', '10.5.0.192-26'].find((key) => key !== own())!
    store.put(free, value('192.0.2.3'))
    await until(() => networks[0]!.applied.at(-1)!.length === 2)
    store.remove('10.5.0.64-26')
    await until(() => networks[0]!.applied.at(-1)!.length === 1)
    expect(networks[0]!.applied.at(-1)).toEqual([free])
    const subnet = free.replace('-', '/')
    expect(lines.filter((line) => line.includes('I Subnet '))).toEqual([
      ...['I Subnet added: 10.5.0.64/26', `I Subnet added: ${subnet}`, 'I Subnet removed: 10.5.0.64/26'],
    ])
  })

  it('says that it is ready, and what is wrong while the data path or the store is down', async () => {
    expect([health.ready, health.trouble()]).toEqual([false, 'starting'])
    start()
    await ready()
    expect([health.ready, health.trouble()]).toEqual([true, undefined])
    refuse = new WeftError('DEVICE', 'no device today')
    networks[0]!.die('gone')
    await until(() => health.trouble() !== undefined)
    expect(health.trouble()).toBe('the data path is down')
    refuse = undefined
    await until(() => health.trouble() === undefined, 5_000)
    store.setDown(true)
    await vi.advanceTimersByTimeAsync(110_000)
    expect(health.trouble()).toBe(undefined)
    await vi.advanceTimersByTimeAsync(75_000)
    expect(health.trouble()).toMatch(/^the leases were last compared 18\d s ago$/)
    store.setDown(false)
    await until(() => health.trouble() === undefined, 120_000)
    expect(health.ready).toBe(true)
  })

  it('notices a thread that hangs, names it, and stops serving the watchdog until it goes on', async () => {
    start()
    await ready()
    const tick = async (ms: number, moves: boolean): Promise<void> => {
      for (let at = 0; at < ms; at += 1000) {
        const { rounds } = networks[0]!
        networks[0]!.rounds = { 'weft-loop0': (rounds['weft-loop0'] ?? 0) + 1, 'weft-tun0': moves ? at : 0 }
        await vi.advanceTimersByTimeAsync(1000)
      }
    }
    await tick(60_000, true)
    expect([health.trouble(), alive]).toEqual([undefined, 4])
    await tick(20_000, false)
    expect(health.trouble()).toMatch(/^the thread weft-tun0 has hung for 1\d s$/)
    expect(lines.filter((line) => line.startsWith('E'))).toEqual([
      'E The thread weft-tun0 hangs: packets are not forwarded. Only a restart of weftd can mend that',
    ])
    const served = alive
    await tick(60_000, false)
    expect(alive).toBe(served)
    expect(told.at(-1)).toContain('the thread weft-tun0 hangs')
    await tick(20_000, true)
    expect([health.trouble(), alive]).toEqual([undefined, served + 1])
    expect(logged(/^W The thread weft-tun0 goes on$/)).toBe(true)
  })

  it('serves the watchdog while the store is dead and while the device cannot be opened', async () => {
    start()
    await ready()
    store.setDown(true)
    refuse = new WeftError('DEVICE', 'no device today')
    networks[0]!.die('gone')
    await vi.advanceTimersByTimeAsync(300_000)
    expect(health.trouble()).toBe('the data path is down')
    expect(alive).toBe(20)
    expect(told.at(-1)).toMatch(/^subnet 10\.5\.0\.\d+\/26, the data path is down, etcd store out of reach$/)
  })

  it('tells the service manager how it is, when that changes', async () => {
    start()
    await ready()
    await vi.advanceTimersByTimeAsync(10_000)
    const subnet = own().replace('-', '/')
    store.put(own() === '10.5.0.64-26' ? '10.5.0.128-26' : '10.5.0.64-26', value('192.0.2.2'))
    await vi.advanceTimersByTimeAsync(10_000)
    store.setDown(true)
    await vi.advanceTimersByTimeAsync(90_000)
    store.setDown(false)
    await vi.advanceTimersByTimeAsync(90_000)
    expect(told.slice(-4)).toEqual([
      `subnet ${subnet}, 0 peers, etcd store in reach`,
      `subnet ${subnet}, 1 peer, etcd store in reach`,
      `subnet ${subnet}, 1 peer, etcd store out of reach`,
      `subnet ${subnet}, 1 peer, etcd store in reach`,
    ])
  })

  it('does nothing for a renewal of a peer', async () => {
    store.put('10.5.0.64-26', value('192.0.2.2'))
    start()
    await ready()
    const before = networks[0]!.applied.length
    store.put('10.5.0.64-26', value('192.0.2.2'))
    store.put('10.5.0.64-26', value('192.0.2.9'))
    await until(() => networks[0]!.applied.length > before)
    expect(networks[0]!.applied.length).toBe(before + 1)
  })

  it.each([
    [0, 60],
    [0.5, 63],
    [0.999, 66],
  ])('renews its lease, by the random number %d, %d minutes before it ends', async (random, minutes) => {
    vi.spyOn(Math, 'random').mockReturnValue(random)
    start()
    await ready()
    const revision = store.entries.get(own())!.revision
    expect(logged(/Waiting for 2[23]h\d+m\d+s to renew lease/)).toBe(true)
    await vi.advanceTimersByTimeAsync(LEASE_TTL_MS - minutes * 60_000 - 5_000)
    expect(store.entries.get(own())!.revision).toBe(revision)
    await vi.advanceTimersByTimeAsync(6_000)
    await until(() => logged(/Lease renewed, new expiration: \d{4}-\d\d-\d\d .* UTC/))
    expect(store.entries.get(own())!.revision).not.toBe(revision)
  })

  it.each([
    ['the host was suspended, whose timers stood still', 23 * 3_600_000, 60_000],
    ['the clock was set back', -3_600_000, LEASE_TTL_MS - 3_600_000],
  ])('renews its lease in time though %s', async (_title, jumpMs, withinMs) => {
    start()
    await ready()
    const { revision } = store.entries.get(own())!
    vi.setSystemTime(Date.now() + jumpMs)
    expect(store.entries.get(own())!.revision).toBe(revision)
    await vi.advanceTimersByTimeAsync(withinMs + 1000)
    expect(store.entries.get(own())!.revision).not.toBe(revision)
  })

  it('tries to renew again after a second, then less and less often, for as long as it takes', async () => {
    start()
    await ready()
    await vi.advanceTimersByTimeAsync(LEASE_TTL_MS - 1.1 * 3_600_000 - 60_000)
    store.setDown(true)
    await vi.advanceTimersByTimeAsync(600_000 + 63_000 + 3 * 60_000)
    const tries = lines.flatMap(
      (line) => /Error renewing lease \(trying again in (.*)\): the store is down/.exec(line)?.[1] ?? [],
    )
    expect(tries.slice(0, 8)).toEqual(['1 s', '2 s', '4 s', '8 s', '16 s', '32 s', '1 min', '1 min'])
    store.setDown(false)
    await vi.advanceTimersByTimeAsync(61_000)
    expect(logged(/Lease renewed/)).toBe(true)
  })

  it('goes on forwarding when its subnet is taken and no other is free, until one is', async () => {
    start()
    await ready()
    for (const last of [64, 128, 192]) store.put(`10.5.0.${last}-26`, value(`192.0.2.${last}`))
    await until(() => logged(/^E failed to acquire lease: .*out of subnets/), 5_000)
    expect(networks).toHaveLength(1)
    expect(networks[0]!.closed).toBe(false)
    const free = ['10.5.0.64-26', '10.5.0.128-26', '10.5.0.192-26'].find((key) => key !== networks[0]!.subnet)!
    store.remove(free)
    await until(() => networks.at(-1)!.subnet === free, 5_000)
  })

  it('notices another host with its public IP, but not what it left there itself', async () => {
    await store.claim('192.0.2.1', '{"Hostname":"this-host-before","ID":"1"}', 0, stopping.signal)
    start()
    await ready()
    await vi.advanceTimersByTimeAsync(120_000)
    expect(logged(/Another host/)).toBe(false)
    await store.claim('192.0.2.1', '{"Hostname":"twin","ID":"2"}', 0, stopping.signal)
    await until(
      () => logged(/^E Another host uses this node's public IP 192\.0\.2\.1 too: twin\. .*--public-ip or --iface$/),
      61_000,
    )
  })

  it('names a network configuration that is not the one in use, each once, and goes on', async () => {
    start()
    await ready()
    const named = (): string[] =>
      lines.flatMap((line) => /^W The network configuration changed.*: (.*)$/.exec(line)?.[1] ?? [])
    const other = '{"Network":"10.6.0.0/16"}'
    for (const text of ['{ "network": "10.5.0.0/24" }', other, other, '{', '{"Network":"10.5.0.0/24"}', other]) {
      store.putConfig(text)
      await vi.advanceTimersByTimeAsync(61_000)
    }
    expect(named()).toEqual([other, other])
    expect(networks).toHaveLength(1)
  })

  it('keeps its peers when most of them vanish at once, until a listing 30 s later lacks them still', async () => {
    start()
    await ready()
    for (const last of [64, 128, 192].filter((each) => !own().startsWith(`10.5.0.${each}`)))
      store.put(`10.5.0.${last}-26`, value(`192.0.2.${last}`))
    store.put('10.6.0.0-26', value('192.0.2.7'))
    store.put('10.6.1.0-26', value('192.0.2.8'))
    const applied = (): number => networks[0]!.applied.at(-1)!.length
    await until(() => applied() === 4)
    for (const key of [...store.entries.keys()]) if (key !== own()) store.remove(key)
    await until(() => logged(/E 4 of 4 leases vanished from the store at once/))
    await vi.advanceTimersByTimeAsync(29_000)
    expect(applied()).toBe(4)
    expect(told.at(-1)).toContain(', 4 peers, 4 of them kept though the store lacks them, ')
    expect(health.state()).toMatch(/4 of them kept .*; leases compared \d+ s ago; 0 repairs since the start$/)
    await until(() => logged(/W The store still lacks 4 leases; they are removed now/), 5_000)
    await until(() => applied() === 0)
  })

  it('takes its subnet again when its lease is deleted, and forwards meanwhile', async () => {
    start()
    await ready()
    const key = own()
    store.remove(key)
    await until(() => logged(/Lease of .* acquired again/))
    expect(logged(/^E Lease has been revoked: .* is gone from the store/)).toBe(true)
    expect(own()).toBe(key)
    expect(networks).toHaveLength(1)
    expect(networks[0]!.closed).toBe(false)
  })

  it('notices a deletion that came before the first listing', async () => {
    const list = store.list.bind(store)
    store.list = async (signal) => {
      if (networks.length === 1 && !logged(/revoked/) && store.entries.size > 0) store.remove(own())
      return list(signal)
    }
    start()
    await until(() => logged(/acquired again/))
    expect(store.entries.size).toBe(1)
  })

  it('moves to another subnet when its own was given to another node', async () => {
    start()
    await ready()
    const before = own()
    store.put(before, value('192.0.2.9'))
    await until(() => networks.length === 2 && networks[1]!.applied.length > 0)
    expect(logged(/leased by another node now: .*192\.0\.2\.9/)).toBe(true)
    expect(networks[0]!.closed).toBe(true)
    expect(networks[1]!.subnet).toBe(own())
    expect(own()).not.toBe(before)
    expect(networks[1]!.applied.at(-1)).toEqual([before])
    await until(
      () =>
        readFileSync(subnetFile(), 'utf8').includes(`FLANNEL_SUBNET=${own().replace(/\d+-26/, '')}`) &&
        lines.filter((line) => line.includes('Wrote subnet')).length === 2,
    )
  })

  it('opens the data path again when it died, with all peers, and closes the old one', async () => {
    store.put('10.5.0.64-26', value('192.0.2.2'))
    start()
    await ready()
    await vi.advanceTimersByTimeAsync(2000)
    networks[0]!.die('the TUN was deleted')
    await until(() => networks.length === 2 && networks[1]!.applied.length > 0)
    expect(networks[0]!.closed).toBe(true)
    expect(networks[1]!.applied).toEqual([['10.5.0.64-26']])
    expect(logged(/^E The data path stopped: the TUN was deleted/)).toBe(true)
    await vi.advanceTimersByTimeAsync(2000)
    networks[1]!.die('again')
    await until(() => networks.length === 3)
  })

  it('waits a second before it opens one that died at once twice, and between tries', async () => {
    start()
    await ready()
    networks[0]!.die('at once')
    await until(() => networks.length === 2 && networks[1]!.applied.length > 0, 200)
    networks[1]!.die('again')
    await until(() => networks[1]!.closed, 200)
    await vi.advanceTimersByTimeAsync(700)
    expect(networks).toHaveLength(2)
    refuse = new WeftError('PORT_IN_USE', 'the port is taken')
    await vi.advanceTimersByTimeAsync(60_000)
    const tries = lines.filter((line) => line.includes('Cannot open the data path: the port is taken'))
    expect(tries.length).toBe(2)
    // What changes meanwhile is in force once it is open.
    const free = ['10.5.0.64-26', '10.5.0.128-26'].find((key) => key !== own())!
    store.put(free, value('192.0.2.2'))
    refuse = undefined
    await until(() => networks.length === 3 && networks[2]!.applied.length > 0, 2000)
    expect(networks[2]!.applied.at(-1)).toEqual([free])
  })

  it('has the device looked at every five seconds, and says what was mended', async () => {
    start()
    await ready()
    networks[0]!.mended = ['flannel0 was down']
    await vi.advanceTimersByTimeAsync(5000)
    await until(() => logged(/^W Repaired: flannel0 was down/))
  })

  it('looks at the device within a quarter of a second when the host reports a change, and so once for many', async () => {
    const doubt = createBell()
    start({}, doubt)
    await ready()
    await vi.advanceTimersByTimeAsync(1000)
    for (const round of [1, 2, 3]) {
      networks[0]!.mended = ['flannel0 was down']
      for (let times = 0; times < 10; times++) doubt.ring()
      await vi.advanceTimersByTimeAsync(250)
      expect(lines.filter((line) => line.startsWith('W Repaired: flannel0'))).toHaveLength(round)
    }
  })

  it('says only the first of many repairs, and looks less often when somebody undoes them', async () => {
    start()
    await ready()
    networks[0]!.mended = Array.from({ length: 100 }, () => 'flannel0 was down')
    await vi.advanceTimersByTimeAsync(5000)
    networks[0]!.mended = ['flannel0 was down']
    await vi.advanceTimersByTimeAsync(4000)
    expect(networks[0]!.mended).toHaveLength(1)
    expect(lines.filter((line) => line.startsWith('W Repaired'))).toHaveLength(7)
    await vi.advanceTimersByTimeAsync(120_000)
    networks[0]!.mended = ['flannel0 had lost its address']
    await vi.advanceTimersByTimeAsync(5000)
    await until(() => logged(/^W Repaired: flannel0 had lost its address \(repair \d+ since the start\)$/))
  })

  it('mends the rules at a pace of their own: however many they were, the device is looked at when it changes', async () => {
    let raised = 0
    const rules = {
      raise: async () => void raised++,
      ensure: async () => Array.from({ length: 100 }, () => 'rules of FLANNEL-FWD'),
    }
    const doubt = createBell()
    start({ firewall: { rules, resyncMs: 1000 } }, doubt)
    await ready()
    expect(raised).toBe(1)
    await vi.advanceTimersByTimeAsync(1000)
    expect(lines.filter((line) => line.startsWith('W Repaired: rules'))).toHaveLength(7)
    for (const round of [1, 2, 3]) {
      networks[0]!.mended = ['flannel0 was down']
      doubt.ring()
      await vi.advanceTimersByTimeAsync(250)
      expect(lines.filter((line) => line.startsWith('W Repaired: flannel0'))).toHaveLength(round)
    }
  })

  it('waits for a store that is down at the start, and fails on what an operator must mend', async () => {
    store.setDown(true)
    start()
    await vi.advanceTimersByTimeAsync(30_000)
    expect(lines.filter((line) => line.includes('failed to acquire lease: the store is down')).length).toBeLessThan(8)
    store.setDown(false)
    await vi.advanceTimersByTimeAsync(1000)
    await ready()
    stopping.abort(new Error('enough'))
    await ended

    for (const last of [64, 128, 192]) store.put(`10.5.0.${last}-26`, value(`192.0.2.${last}`))
    stopping = new AbortController()
    start()
    expect(await ended).toMatchObject({ code: 'OUT_OF_SUBNETS' })
  })

  it('ends with the reason of the stop, every loop ended and the data path closed', async () => {
    start()
    await ready()
    const reason = new Error('stop')
    stopping.abort(reason)
    expect(await ended).toBe(reason)
    expect(networks[0]!.closed).toBe(true)
    expect(vi.getTimerCount()).toBe(0)
  })

  it('ends with a defect of one loop, and stops the others', async () => {
    start()
    await ready()
    const defect = new Error('a defect')
    store.update = async () => {
      throw defect
    }
    const before = own()
    store.put(before === '10.5.0.64-26' ? '10.5.0.128-26' : '10.5.0.64-26', ours)
    store.remove(before)
    expect(await ended).toBe(defect)
    expect(stopping.signal.reason).toBe(defect)
    expect(networks[0]!.closed).toBe(true)
  })

  it('goes on when subnet.env cannot be written, and says it is not ready', async () => {
    mkdirSync(subnetFile())
    start()
    await until(() => logged(/^E Failed to write subnet file: .*--subnet-file/) && logged(/Running backend/))
    expect([logged(/flannel is ready/), health.ready]).toEqual([false, false])
    // As flanneld it has told its service manager READY=1 all the same.
    await until(() => told.some((status) => status.endsWith(`, ${subnetFile()} is not written`)))
    // It is tried again every five seconds, and not spoken of each time.
    for (let tries = 0; tries < 4; tries++) {
      await vi.advanceTimersByTimeAsync(5_000)
      for (let turns = 0; turns < 50; turns++) await new Promise((resolve) => setImmediate(resolve))
    }
    expect(lines.filter((line) => line.includes('Failed to write subnet file')).length).toBeLessThanOrEqual(2)
    rmSync(subnetFile(), { recursive: true })
    await inTurns(() => logged(/flannel is ready/))
    expect(health.ready).toBe(true)
    expect(logged(/Repaired/)).toBe(false)
  })

  it('writes subnet.env again when it was removed or changed, says so, and leaves it alone otherwise', async () => {
    start()
    await ready()
    const text = readFileSync(subnetFile(), 'utf8')
    const writes = (): number => lines.filter((line) => line.includes('Wrote subnet file')).length
    await vi.advanceTimersByTimeAsync(30_000)
    expect(writes()).toBe(1)
    const spoils = [() => rmSync(subnetFile()), () => writeFileSync(subnetFile(), 'FLANNEL_MTU=1\n')]
    for (const [index, spoil] of spoils.entries()) {
      spoil()
      await inTurns(() => writes() === index + 2)
      expect(readFileSync(subnetFile(), 'utf8')).toBe(text)
      expect(logged(new RegExp(`^W Repaired: .*was gone or changed \\(repair ${index + 1} `))).toBe(true)
    }
  })
})
