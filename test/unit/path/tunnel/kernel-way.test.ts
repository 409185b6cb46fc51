import { once } from 'node:events'
import { openSync } from 'node:fs'
import { connect, createServer } from 'node:net'
import { afterEach, expect, it, vi } from 'vitest'
import type { Hook } from '../../../../native/addon.d.ts'
import { addon } from '../../../../src/host/addon.ts'
import { FollowedLink } from '../../../../src/host/links.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { parseIpv6Net } from '../../../../src/net/ipv6.ts'
import type { Peer } from '../../../../src/path/engine/peers.ts'
import { COUNTERS, IS_LITTLE, TRAFFIC_BYTES } from '../../../../src/path/tunnel/kernel-way-maps.ts'
import { KernelWayPeers } from '../../../../src/path/tunnel/kernel-way-peers.ts'
import { KernelPrograms, type Bpf } from '../../../../src/path/tunnel/kernel-way-programs.ts'
import { ProofConnection } from '../../../../src/path/tunnel/kernel-way-proof.ts'
import { KernelWay, type KernelWayParts } from '../../../../src/path/tunnel/kernel-way.ts'
import { eventually } from '../../../support/event.ts'
import { log } from '../../../support/fake-host.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'
import { needs } from '../../../support/needs.ts'
import { hostsAt } from '../../../support/peer-hosts.ts'

needs('clang++')

const [UPLINK, TUN] = [7, 9]
const SLOT = 3
const PORT = 18_285

/** A kernel without maps and programs, which counts what the programs are said to carry. */
class FakeBpf implements Bpf {
  readonly calls: string[] = []
  /** The number of packets that the programs are said to carry with each look at the traffic. */
  step = 1_000
  tcx = 0
  /** The number of long TCP packets that arrived one by one. */
  lone = 0n
  /** True if the kernel refuses to change a peer. */
  isFull = false
  features = 'a'
  refusal: (Error & { code?: string }) | undefined
  readonly filters = new Map<string, { priority: number; kind: string; name: string }[]>()
  readonly flags: number[] = []
  /** The index of the interface to which the programs send received TCP packets; 0 if there is none. */
  join = 0
  /** Resolves when the kernel answers questions about interfaces, for which it needs its lock of all of them. */
  lock: Promise<void> = Promise.resolve()
  #carried = 0
  /** The number of questions that wait for this lock. */
  waiting = 0
  async answered(): Promise<void> {
    this.waiting++
    await this.lock
    this.waiting--
  }
  kernelWayObject(): Buffer | undefined {
    return addon.kernelWayObject()
  }
  createMap({ name }: { readonly name: string }): number {
    if (this.refusal) throw this.refusal
    this.calls.push(`map ${name}`)
    return openSync('/dev/null', 'r') // KernelPrograms closes it
  }
  updateMap(_fd: number, key: Uint8Array, value: Uint8Array): void {
    if (this.isFull && key.length === 8) throw new Error('bpf BPF_MAP_UPDATE_ELEM: No space left on device')
    if (key.length === 8) this.flags.push(new DataView(value.buffer).getUint32(12, IS_LITTLE))
    if (key.length === 4) this.join = new DataView(value.buffer).getUint32(16, IS_LITTLE)
  }
  deleteFromMap(): boolean {
    this.calls.push('delete')
    return true
  }
  lookUpInMap(_fd: number, key: Uint8Array, value: Uint8Array): boolean {
    value.fill(0)
    const number = new DataView(key.buffer).getUint32(0, IS_LITTLE)
    if (number === COUNTERS.indexOf('lone'))
      new DataView(value.buffer, value.byteOffset).setBigUint64(0, this.lone, IS_LITTLE)
    if (value.length % TRAFFIC_BYTES !== 0) return true
    this.#carried += this.step
    const view = new DataView(value.buffer)
    view.setBigUint64(0, BigInt(this.#carried), IS_LITTLE)
    view.setBigUint64(8, BigInt(this.#carried * 1_000), IS_LITTLE)
    view.setBigUint64(16, BigInt(this.#carried), IS_LITTLE)
    return true
  }
  loadProgram(): number {
    return openSync('/dev/null', 'r') // KernelPrograms closes it
  }
  async attachProgram({ index, isEgress }: Hook, _fd: number, name: string): Promise<void> {
    await this.answered()
    this.filters.set(`${index} ${isEgress}`, [{ priority: 4096, kind: 'bpf', name }])
  }
  async detachProgram({ index, isEgress }: Hook): Promise<void> {
    await this.answered()
    this.filters.delete(`${index} ${isEgress}`)
  }
  async listFilters({ index, isEgress }: Hook) {
    await this.answered()
    return this.filters.get(`${index} ${isEgress}`) ?? []
  }
  async tcxPrograms(): Promise<number> {
    await this.answered()
    return this.tcx
  }
  async activeFeatures(): Promise<string> {
    await this.answered()
    return this.features
  }
  async setOffload(): Promise<void> {
    await this.answered()
  }
}

const PEER: Peer = {
  subnet: parseIpv4Net('127.5.2.0/24')!,
  ...hostsAt(parseIpv4('192.0.2.2')!),
  port: PORT,
  slot: SLOT,
}

interface Rig {
  readonly way: KernelWay
  readonly bpf: FakeBpf
  readonly lines: string[]
  readonly kernel: ModelKernel
  /** Adds packets that the engine has sent to the peer. */
  send(packets: number): void
}

const open: { close(): unknown }[] = []
afterEach(async () => {
  vi.useRealTimers()
  for (const each of open.splice(0)) await each.close()
})

function rig(changed: Partial<KernelWayParts> = {}, bpf = new FakeBpf()): Rig {
  const lines: string[] = []
  const say = (text: string): void => void lines.push(text)
  const kernel = new ModelKernel()
  kernel.addLink({ name: 'eth0', index: UPLINK, queueDiscipline: 'fq' }, [
    { address: parseIpv4('192.0.2.1')!, prefixLength: 24 },
  ])
  kernel.addLink({ name: 'eth1', index: 8 })
  kernel.addLink({ name: 'flannel0', index: TUN, type: 'tun', isEthernet: false })
  let sent = 0
  const traffic = (): Float64Array => {
    const numbers = new Float64Array(5 * (SLOT + 1))
    numbers[5 * SLOT] = sent
    return numbers
  }
  const way = new KernelWay({
    bpf,
    kernel,
    log: { info: say, warn: say, error: say, v: () => true },
    engine: { tunName: 'flannel0', traffic },
    uplink: 'eth0',
    ownHost: () => parseIpv4('192.0.2.1')!,
    port: PORT,
    mtu: 1472,
    networks: { ipv4: parseIpv4Net('127.5.0.0/16')! },
    subnets: { ipv4: parseIpv4Net('127.5.1.0/24')! },
    settings: { verifySource: 'strict', clampMss: false, probePathMtu: false },
    hasTwoOuters: false,
    pathMtu: () => 1500,
    ...changed,
  })
  open.push({ close: () => way.close().catch(() => {}) })
  return { way, bpf, lines, kernel, send: (packets) => (sent += packets) }
}

/** Two nodes on this machine. The first one has the second one as its peer, and the other way round. */
async function pair(): Promise<readonly [Rig, Rig]> {
  const far = rig({ subnets: { ipv4: parseIpv4Net('127.5.2.0/24')! } })
  far.way.setPeers([{ ...PEER, subnet: parseIpv4Net('127.5.1.0/24')! }])
  await far.way.check()
  const near = rig()
  near.way.setPeers([PEER])
  await near.way.check()
  return [near, far]
}

async function promoted(): Promise<readonly [Rig, Rig]> {
  const [near, far] = await pair()
  near.send(100)
  near.way.look()
  await eventually(() => expect(near.way.carries(PEER.subnet)).toBe(true))
  return [near, far]
}

it('promotes a peer with packets after a proof', async () => {
  const [near] = await promoted()
  expect(near.way.state).toMatchObject({ isActive: true, reason: null, promoted: 1, takenBack: 0 })
  expect(near.lines).toContain('FastPath: the kernel carries the packets to 127.5.2.0/24')
  expect(near.bpf.flags.slice(-2)).toEqual([2, 1]) // on trial, then promoted
})

it('does not prove a peer with hardly any packets', async () => {
  const [near] = await pair()
  near.send(5)
  near.way.look()
  await new Promise((resolve) => setImmediate(resolve))
  expect(near.bpf.flags).not.toContain(2)
})

it('does not promote a peer if the kernel has not carried the proof', async () => {
  const [near, far] = await pair()
  far.bpf.step = 0
  near.send(100)
  near.way.look()
  await eventually(() =>
    expect(near.lines.at(-1)).toMatch(/the kernel of one of the two hosts did not carry the proof/),
  )
  expect(near.way.carries(PEER.subnet)).toBe(false)
})

it('counts the carried IPv4 packets and IPv6 packets separately, although a peer has one slot', () => {
  const subnets = [parseIpv4Net('10.5.2.0/24')!, parseIpv6Net('fd00:5:0:2::/64')!]
  const slots = new Map<number, number>()
  class OneFamily extends FakeBpf {
    override updateMap(_fd: number, key: Uint8Array, value: Uint8Array): void {
      slots.set(key.length, new DataView(value.buffer).getUint32(8, IS_LITTLE))
    }
    override lookUpInMap(_fd: number, key: Uint8Array, value: Uint8Array): boolean {
      if (new DataView(key.buffer).getUint32(0, IS_LITTLE) !== slots.get(8)) return false
      const view = new DataView(value.buffer)
      view.setBigUint64(8, 300_000n, IS_LITTLE)
      view.setBigUint64(16, 7n, IS_LITTLE)
      return true
    }
  }
  const bpf = new OneFamily()
  const programs = new KernelPrograms(bpf, bpf.kernelWayObject()!)
  const peers = new KernelWayPeers(
    {
      kernel: new ModelKernel(),
      log,
      engine: { tunName: 'flannel0', traffic: () => new Float64Array() },
      ownHost: () => parseIpv4('192.0.2.1')!,
      port: PORT,
      mtu: 1472,
      networks: {},
      subnets: {},
      pathMtu: () => 1500,
    },
    {
      uplink: new FollowedLink('eth0'),
      programs: () => programs,
      isActive: () => true,
      refused: () => {},
    },
  )
  peers.setPeers(subnets.map((subnet) => ({ ...PEER, subnet })))
  expect([...slots]).toEqual([
    [8, SLOT],
    [20, SLOT + 2 ** 31],
  ])
  expect(['10.5.2.0', 'fd00:5:0:2::'].map((address) => peers.carriedFrom(address))).toEqual([7, 0])
  expect([...programs.traffic(SLOT, 0n)]).toEqual([0, 300_000, 7, 0, -1])
  programs.close()
})

it('does not promote a peer that has no FastPath', async () => {
  const near = rig()
  near.way.setPeers([PEER])
  await near.way.check()
  near.send(100)
  near.way.look()
  await eventually(() => expect(near.lines.at(-1)).toMatch(/127\.5\.2\.0\/24: no weftd with a FastPath answers there/))
})

it('does not promote a peer whose host is reached through another interface', async () => {
  const near = rig({ uplink: 'eth1' })
  near.way.setPeers([PEER])
  await near.way.check()
  near.send(100)
  near.way.look()
  await eventually(() => expect(near.lines.at(-1)).toMatch(/its host is not reached through eth1/))
})

it('does not promote a peer whose host is inside the network, because its datagrams could circle', async () => {
  const near = rig({ networks: { ipv4: parseIpv4Net('192.0.2.0/24')! } })
  near.way.setPeers([PEER])
  await near.way.check()
  near.send(100)
  near.way.look()
  expect(near.bpf.flags).not.toContain(2)
})

it('takes a peer back when it says farewell', async () => {
  const [near, far] = await promoted()
  await far.way.close()
  await eventually(() => {
    near.way.look()
    expect(near.way.carries(PEER.subnet)).toBe(false)
  })
  expect(near.way.state.lastTakenBack).toEqual({
    subnet: '127.5.2.0/24',
    reason: "the peer's kernel has stopped to carry packets",
  })
})

it('keeps a peer whose daemon ended without a word, until it has been gone for long', async () => {
  const [near, far] = await promoted()
  await far.way.pause()
  const searches = (): number => near.kernel.reads.filter((each) => each === 'lookUp').length
  const before = searches()
  // After the end of the connection has arrived, `look` searches the route for another proof.
  await eventually(() => {
    near.way.look()
    expect(searches()).toBeGreaterThan(before)
  })
  expect(near.way.carries(PEER.subnet)).toBe(true)
  const now = performance.now()
  vi.spyOn(performance, 'now').mockReturnValue(now + 46_000)
  near.way.look()
  vi.restoreAllMocks()
  expect(near.way.state.lastTakenBack?.reason).toBe("the peer's weftd has ended")
})

it('takes a peer back that no longer answers', async () => {
  const [near] = await promoted()
  const now = performance.now()
  vi.spyOn(performance, 'now').mockReturnValue(now + 21_000)
  near.way.look()
  vi.restoreAllMocks()
  expect(near.way.state.lastTakenBack?.reason).toBe('the peer does not answer')
})

it('takes all peers back after a change of offloads, and proves them again', async () => {
  const [near] = await promoted()
  near.bpf.features = 'b'
  near.way.look()
  await eventually(() => expect(near.way.state).toMatchObject({ isActive: true, promoted: 0, takenBack: 1 }))
  near.send(100)
  near.way.look()
  await eventually(() => expect(near.way.carries(PEER.subnet)).toBe(true))
})

it('does not promote a peer whose test began before a change of offloads', async () => {
  const [near] = await pair()
  let prove = (): void => {}
  const proven = new Promise<undefined>((resolve) => (prove = () => resolve(undefined)))
  const test = vi.spyOn(ProofConnection.prototype, 'proven', 'get').mockReturnValue(proven)
  near.send(100)
  near.way.look()
  await eventually(() => expect(test).toHaveBeenCalled())
  near.bpf.features = 'b'
  near.way.look()
  await eventually(() => expect(near.bpf.flags.at(-1)).toBe(0))
  prove()
  test.mockRestore()
  await new Promise((resolve) => setImmediate(resolve))
  expect(near.way.carries(PEER.subnet)).toBe(false)
  near.send(100)
  near.way.look()
  await eventually(() => expect(near.way.carries(PEER.subnet)).toBe(true))
})

it('takes a peer back whose host is reached through another interface', async () => {
  const [near] = await promoted()
  near.kernel.addRoute('ipv4', { destination: '192.0.2.2/32', device: 'eth1' })
  await near.way.check()
  expect(near.way.state.lastTakenBack?.reason).toBe('its host is no longer reached through eth0')
})

it('ends if the external interface is gone', async () => {
  const [near] = await promoted()
  near.kernel.act({ kind: 'delete link', device: { name: 'eth0' } })
  await near.way.check()
  expect(near.way.state).toMatchObject({ isActive: false, promoted: 0, reason: 'eth0 is gone' })
})

it.each([
  ['a tcx program runs before a program of weft', (bpf: FakeBpf) => (bpf.tcx = 1)],
  [
    'the tc filter count with priority 5 runs before a program of weft',
    (bpf: FakeBpf) => bpf.filters.get(`${UPLINK} false`)!.unshift({ priority: 5, kind: 'bpf', name: 'count' }),
  ],
  ['another program has detached the programs of weft', (bpf: FakeBpf) => bpf.filters.delete(`${TUN} true`)],
])('ends if %s', async (reason, change) => {
  const [near] = await promoted()
  change(near.bpf)
  near.way.look()
  await eventually(() => expect(near.way.state).toMatchObject({ isActive: false, promoted: 0, reason }))
  await eventually(() => expect(near.bpf.filters.has(`${TUN} true`)).toBe(false))
})

it.each([
  ['the kernel refuses eBPF programs: grant CAP_BPF and CAP_NET_ADMIN', 'EPERM'],
  ['the kernel refuses the eBPF programs: bpf BPF_MAP_CREATE: Invalid argument', 'EINVAL'],
])('says once that %s', async (reason, code) => {
  const bpf = new FakeBpf()
  bpf.refusal = Object.assign(new Error('bpf BPF_MAP_CREATE: Invalid argument'), { code })
  const { way, lines } = rig({}, bpf)
  await way.check()
  await way.check()
  way.look()
  expect(lines).toEqual([`FastPath: weftd carries all packets: ${reason}`])
  expect(way.state).toMatchObject({ isActive: false, reason })
})

it('says that weft was built without clang', async () => {
  const bpf = new FakeBpf()
  bpf.kernelWayObject = () => undefined
  const { way } = rig({}, bpf)
  await way.check()
  expect(way.state.reason).toBe('this weft was built without clang')
})

it.each([
  [{ settings: { verifySource: 'off', clampMss: false, probePathMtu: false } }, 'VerifySource is "off"'],
  [{ ownHost: () => undefined }, 'the datagrams between the hosts are IPv6'],
] as const)('does not begin with %j', async (changed, reason) => {
  const { way, bpf } = rig(changed)
  await way.check()
  expect(way.state).toMatchObject({ isActive: false, reason })
  expect(bpf.calls).toEqual([])
})

it('does not begin beside IPsec policies, which the programs would bypass', async () => {
  const { way, kernel } = rig()
  kernel.hasPolicies = true
  await way.check()
  expect(way.state.reason).toBe('this host has IPsec policies')
})

it('ends within one look if an IPsec policy appears', async () => {
  const [near] = await promoted()
  near.kernel.hasPolicies = true
  near.way.look()
  await eventually(() => expect(near.way.state.reason).toBe('this host has IPsec policies'))
  expect(near.way.state).toMatchObject({ isActive: false, promoted: 0 })
})

it('forgets a promotion when the peer moves to another host or is removed', async () => {
  const [near] = await promoted()
  near.way.change([{ ...PEER, ...hostsAt(parseIpv4('192.0.2.3')!) }])
  expect(near.way.carries(PEER.subnet)).toBe(false)
  near.way.change([{ ...PEER, isGone: true }])
  expect(near.bpf.calls.at(-1)).toBe('delete')
  expect(near.way.state.promoted).toBe(0)
})

it('accepts the datagrams of a peer all the time while the peer changes to IPv6', async () => {
  const [near] = await promoted()
  near.way.change([{ ...PEER, hosts: { ...PEER.hosts, ipv6: 1n }, outer: 'ipv6' }])
  expect(near.way.carries(PEER.subnet)).toBe(false)
  expect(near.bpf.calls).not.toContain('delete')
})

it.each([
  ['a test of the peer fails', false],
  ["the route to the peer's host changes", true],
])('does not write a removed peer again if %s meanwhile', async (_, isPromoted) => {
  const [near] = isPromoted ? await promoted() : await pair()
  const gone = new Promise<void>((resolve) => {
    vi.spyOn(near.kernel, 'lookUp').mockImplementation(async () => {
      near.way.change([{ ...PEER, isGone: true }])
      near.bpf.flags.splice(0)
      setImmediate(resolve)
      if (isPromoted) return []
      throw new Error('no answer within 10 s')
    })
  })
  near.send(100)
  near.way.look()
  if (isPromoted) await near.way.check()
  await gone
  expect(near.bpf.flags).toEqual([])
})

it('ends for good if the kernel refuses the change of a peer, and the caller does not notice', async () => {
  const [near] = await promoted()
  near.bpf.isFull = true
  near.way.change([{ ...PEER, ...hostsAt(parseIpv4('192.0.2.3')!) }])
  const reason = 'the kernel refuses a change of a peer: bpf BPF_MAP_UPDATE_ELEM: No space left on device'
  expect(near.way.state).toMatchObject({ isActive: false, promoted: 0, reason })
  await eventually(() => expect(near.bpf.filters.size).toBe(0))
  near.bpf.isFull = false
  await near.way.check()
  expect(near.way.state.isActive).toBe(false)
})

it('survives that the kernel refuses to take a peer back', async () => {
  const [near] = await promoted()
  near.bpf.isFull = true
  near.bpf.tcx = 1
  near.way.look()
  await eventually(() => expect(near.way.state).toMatchObject({ isActive: false, promoted: 0 }))
  await eventually(() => expect(near.bpf.filters.size).toBe(0))
})

it('detaches the programs if it closes while they end', async () => {
  const [near] = await promoted()
  near.bpf.tcx = 1
  near.way.look()
  await near.way.close()
  expect(near.bpf.filters.size).toBe(0)
})

it("does not detach the next process's programs after a pause", async () => {
  const [near] = await promoted()
  vi.useFakeTimers({ toFake: ['setTimeout'] })
  near.bpf.tcx = 1
  near.way.look()
  await vi.waitFor(() => expect(vi.getTimerCount()).toBe(1)) // the farewell
  void near.way.pause()
  await vi.runAllTimersAsync()
  expect(near.bpf.filters.size).toBe(2)
})

it('does not attach programs after it was closed', async () => {
  const near = rig()
  await near.way.check()
  await near.way.pause()
  near.bpf.filters.clear()
  await Promise.all([near.way.resume(), near.way.close()])
  expect([near.bpf.filters.size, near.way.state.isActive]).toEqual([0, false])
})

it('leaves the port to the next process if it is paused while it begins', async () => {
  const near = rig()
  const attach = near.bpf.attachProgram.bind(near.bpf)
  near.bpf.attachProgram = (...args) => {
    void near.way.pause()
    return attach(...args)
  }
  await near.way.check()
  const next = createServer().listen(PORT, '127.5.1.0')
  await once(next, 'listening').finally(() => next.close())
})

it('detaches the programs of an earlier process if it cannot replace them, the receiving one 10 s later', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout'] })
  const bpf = new FakeBpf()
  await bpf.attachProgram({ index: UPLINK, isEgress: false }, 0, 'weft-ingress')
  await bpf.attachProgram({ index: TUN, isEgress: true }, 0, 'weft-egress')
  const { way } = rig({ settings: { verifySource: 'off', clampMss: false, probePathMtu: false } }, bpf)
  await way.check()
  expect([...bpf.filters.keys()]).toEqual([`${UPLINK} false`])
  await vi.advanceTimersByTimeAsync(10_000)
  vi.useRealTimers()
  expect(bpf.filters.size).toBe(0)
})

it('detaches the programs of an earlier process at once beside IPsec policies', async () => {
  const bpf = new FakeBpf()
  await bpf.attachProgram({ index: UPLINK, isEgress: false }, 0, 'weft-ingress')
  const { way, kernel } = rig({}, bpf)
  kernel.hasPolicies = true
  await way.check()
  expect(bpf.filters.size).toBe(0)
})

it('does not begin if it cannot read the IPsec policies', async () => {
  const { way, kernel } = rig()
  vi.spyOn(kernel, 'hasIpsecPolicies').mockRejectedValue(new Error('no answer within 10 s'))
  await way.check()
  expect(way.state).toMatchObject({ isActive: false, reason: 'no answer within 10 s' })
})

it('does not begin on an interface without Ethernet frames', async () => {
  const { way, kernel } = rig()
  kernel.alter('eth0', { isEthernet: false })
  await way.check()
  expect(way.state.reason).toBe('eth0 is not an Ethernet interface')
})

it('takes all peers back after a change of the queueing discipline, and under a new name', async () => {
  const [near] = await promoted()
  near.kernel.rename('eth0', 'lan0')
  near.kernel.alter('lan0', { queueDiscipline: 'fq_codel' })
  await near.way.check()
  expect(near.way.state.lastTakenBack?.reason).toBe('lan0 has changed')
  expect(near.way.state).toMatchObject({ isActive: true, promoted: 0 })
})

it.each([5, 4096])("does not begin behind or replace another program's filter on the TUN: %i", async (priority) => {
  const { way, bpf, lines } = rig()
  const others = [{ priority, kind: 'bpf', name: 'count' }]
  bpf.filters.set(`${TUN} true`, others)
  await way.check()
  await way.check()
  const why = `the tc filter count with priority ${priority} runs before a program of weft`
  expect(lines).toEqual([expect.stringContaining(why)])
  expect(bpf.filters.get(`${TUN} true`)).toBe(others)
})

it('joins segments again if another program removes the program that takes them', async () => {
  const { way, bpf, kernel } = rig()
  await way.check()
  bpf.lone = 1_000n
  way.look()
  await eventually(() => expect(kernel.peek('weft-joined')?.up).toBe(true))
  const key = `${kernel.peek('weft-joined')!.index} false`
  await eventually(() => expect(bpf.filters.get(key)?.[0]?.name).toBe('weft-joined'))
  await new Promise((resolve) => setImmediate(resolve))
  bpf.filters.delete(key)
  way.look()
  await eventually(() => expect(bpf.filters.has(key)).toBe(true))
})

it.each(['no', 'an'])('joins segments of any length if %s earlier weftd left veth devices', async (of) => {
  const { way, bpf, kernel } = rig()
  kernel.alter('eth0', { mtu: 9_216 })
  if (of === 'an')
    kernel.act({
      kind: 'add link',
      link: { name: 'weft-join', type: 'veth', mtu: 9_000, peer: { name: 'weft-joined', mtu: 9_000 } },
    })
  await way.check()
  bpf.lone = 1_000n
  way.look()
  await eventually(() => expect(bpf.join).toBeGreaterThan(0))
  // The peers may have external interfaces with a larger MTU, up to the largest length of a packet.
  expect(['weft-join', 'weft-joined'].map((name) => kernel.peek(name)?.mtu)).toEqual([65_535, 65_535])
})

it('continues if another program has the port of the proofs', async () => {
  const taken = createServer()
  await new Promise<void>((resolve) => taken.listen({ host: '127.5.1.0', port: PORT }, resolve))
  open.push({ close: () => taken.close() })
  const { way, lines } = rig()
  await way.check()
  expect(way.state.isActive).toBe(true)
  expect(lines.join()).toMatch(/peers cannot prove their way to this node: listen EADDRINUSE/)
})

it('looks and answers while the kernel holds its lock of all interfaces', async () => {
  const [near] = await promoted()
  let release = (): void => {}
  near.bpf.lock = new Promise((resolve) => (release = resolve))
  near.way.look()
  near.way.look()
  near.bpf.filters.delete(`${TUN} true`)
  expect(near.way.state).toMatchObject({ isActive: true, promoted: 1 })
  release()
  await eventually(() => expect(near.way.state.isActive).toBe(false))
})

it('lets the next process attach its programs only after its own work at the interfaces is done', async () => {
  const near = rig()
  let release = (): void => {}
  near.bpf.lock = new Promise((resolve) => (release = resolve))
  const checked = near.way.check()
  await new Promise((resolve) => setImmediate(resolve))
  let isPaused = false
  const paused = near.way.pause().then(() => (isPaused = true))
  await new Promise((resolve) => setImmediate(resolve))
  expect(isPaused).toBe(false)
  release()
  await Promise.all([checked, paused])
  expect(near.bpf.filters.size).toBe(0)
})

it('closes its maps only after the kernel has attached its programs, and then detaches them', async () => {
  const near = rig()
  let release = (): void => {}
  const attach = near.bpf.attachProgram.bind(near.bpf)
  const attaching = new Promise<void>((resolve) => {
    near.bpf.attachProgram = (...args) => {
      near.bpf.lock = new Promise((free) => (release = free))
      resolve()
      return attach(...args)
    }
  })
  const checked = near.way.check()
  await attaching
  const closed = near.way.close()
  near.bpf.attachProgram = attach
  release()
  await Promise.all([checked, closed])
  expect([near.bpf.filters.size, near.way.state.isActive]).toEqual([0, false])
})

it('leaves no program attached if the kernel refuses the second one', async () => {
  const near = rig()
  const attach = near.bpf.attachProgram.bind(near.bpf)
  near.bpf.attachProgram = async (hook, ...rest) => {
    if (hook.isEgress) throw new Error('rtnetlink: Operation not supported')
    await attach(hook, ...rest)
  }
  await near.way.check()
  expect(near.bpf.filters.size).toBe(0)
  expect(near.way.state).toMatchObject({ isActive: false, reason: 'rtnetlink: Operation not supported' })
})

it('ends if an IPsec policy appears while the kernel holds its lock of all interfaces', async () => {
  const [near] = await promoted()
  near.bpf.lock = new Promise<void>((resolve) => void open.unshift({ close: resolve }))
  near.way.look()
  await new Promise((resolve) => setImmediate(resolve))
  near.kernel.hasPolicies = true
  near.way.look()
  await new Promise((resolve) => setImmediate(resolve))
  expect(near.way.state).toMatchObject({ isActive: false, promoted: 0, reason: 'this host has IPsec policies' })
  expect(near.bpf.flags.at(-1)).toBe(0)
  await new Promise((resolve) => setTimeout(resolve, 400)) // the farewell
  expect(near.bpf.waiting).toBe(1) // each one takes a thread of the pool
})

it('begins no second search for IPsec policies, and a pause does not wait for a search that hangs', async () => {
  const [near] = await promoted()
  const search = vi.spyOn(near.kernel, 'hasIpsecPolicies').mockReturnValue(new Promise(() => {}))
  near.way.look()
  near.way.look()
  expect(search).toHaveBeenCalledTimes(1)
  await near.way.pause()
})

it('sends no TCP packets to the veth devices if it is paused before a program takes them there', async () => {
  const { way, bpf, kernel } = rig()
  await way.check()
  const setOffload = bpf.setOffload.bind(bpf)
  bpf.setOffload = async (...args) => {
    void way.pause()
    return setOffload(...args)
  }
  bpf.lone = 1_000n
  way.look()
  await eventually(() => expect(kernel.peek('weft-joined')?.up).toBe(true))
  await way.pause()
  expect(bpf.join).toBe(0)
})

it('joins segments again after the programs were detached and attached again', async () => {
  const { way, bpf, kernel } = rig()
  await way.check()
  bpf.lone = 1_000n
  way.look()
  await eventually(() => expect(bpf.join).toBeGreaterThan(0))
  await new Promise((resolve) => setImmediate(resolve))
  bpf.tcx = 1
  way.look()
  await eventually(() => expect(kernel.peek('weft-join')).toBeUndefined())
  kernel.act({ kind: 'delete link', device: { name: 'weft-joined' } }) // the kernel deletes both devices of the pair
  bpf.tcx = 0
  await way.check()
  expect(way.state.isActive).toBe(true)
  bpf.lone = 3_000n
  way.look()
  await eventually(() => expect(bpf.join).toBe(kernel.peek('weft-join')?.index))
})

it('lets peers test this host if a check runs when it goes on after a pause', async () => {
  const { way, lines } = rig()
  await way.check()
  await way.pause()
  const resumed = way.resume()
  expect(way.state).toMatchObject({ isActive: false, reason: 'it is not open yet' })
  await Promise.all([resumed, way.check()])
  expect(lines.filter((line) => /cannot prove/.test(line))).toEqual([])
  const socket = connect(PORT, '127.5.1.0')
  open.push({ close: () => socket.destroy() })
  await once(socket, 'connect')
})

it('does not detach the programs that a check attaches after another program has detached them', async () => {
  const { way, bpf, kernel } = rig()
  await way.check()
  const find = kernel.link.bind(kernel)
  let release = (): void => {}
  const lock = new Promise<void>((resolve) => (release = resolve))
  vi.spyOn(kernel, 'link').mockImplementation(async (which) => {
    await lock
    return find(which)
  })
  const checked = way.check()
  await new Promise((resolve) => setImmediate(resolve))
  bpf.filters.delete(`${TUN} true`)
  way.look()
  await eventually(() => expect(way.state.isActive).toBe(false))
  release()
  await checked
  expect(way.state.isActive).toBe(true)
  await new Promise((resolve) => setTimeout(resolve, 400)) // the farewell
  expect(bpf.filters.size).toBe(2)
})

it('detaches the programs if it goes on after a pause in which the kernel refused the change of a peer', async () => {
  const [near] = await promoted()
  await near.way.pause()
  near.bpf.isFull = true
  near.way.change([{ ...PEER, ...hostsAt(parseIpv4('192.0.2.3')!) }])
  await near.way.resume()
  expect([...near.bpf.filters.keys()]).toEqual([`${UPLINK} false`]) // which stays for 10 s
  expect(near.way.state).toMatchObject({ isActive: false, reason: expect.stringMatching(/refuses a change of a peer/) })
})

it("keeps its own receiving program if it attaches it 10 s after it detached an earlier process's programs", async () => {
  vi.useFakeTimers({ toFake: ['setTimeout'] })
  const bpf = new FakeBpf()
  await bpf.attachProgram({ index: UPLINK, isEgress: false }, 0, 'weft-ingress')
  await bpf.attachProgram({ index: TUN, isEgress: true }, 0, 'weft-egress')
  const { way } = rig({}, bpf)
  bpf.tcx = 1
  await way.check()
  expect([...bpf.filters.keys()]).toEqual([`${UPLINK} false`])
  bpf.tcx = 0
  const attach = bpf.attachProgram.bind(bpf)
  bpf.attachProgram = async (hook, ...rest) => {
    await attach(hook, ...rest)
    if (!hook.isEgress) await vi.advanceTimersByTimeAsync(10_000)
  }
  await way.check()
  vi.useRealTimers()
  expect([way.state.isActive, bpf.filters.size]).toEqual([true, 2])
})
