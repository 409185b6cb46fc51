// hosts.test.ts - real daemons on hosts made of namespaces: packets arrive, nodes join and leave, and all start simultaneously.

import { once } from 'node:events'
import { closeSync, mkdirSync, openSync, readdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { afterEach, describe, expect, it } from 'vitest'
import { output } from '../../lab/command.ts'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { createLab, EVENT_MS, packageRoot, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { iperfServer, reach } from '../../lab/measure.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { eventually } from '../support/event.ts'
import { added, removed, subnetOf, tunAddress } from '../support/hosts.ts'
import { ETCD, HOSTS, needs } from '../support/needs.ts'
import { ipv4Packet, udpDatagram } from '../support/packets.ts'
import { freezeThread } from '../support/service-manager.ts'

needs(HOSTS, ...ETCD, 'iperf3', 'ping')

const CONFIG = '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}'
const LONG = process.env['WEFT_LONG'] === '1'
const FROZEN_MS = LONG ? 60_000 : 2_000
/** Pings that must be answered, however long each answer takes; without ICMP errors and without a deadline of a second. */
const PING = ['ping', '-n', '-i', '0.1', '-w', '60']
const FLOOD_PINGS = LONG ? 10_000 : 500
/** The number of daemons, and the number of rounds. */
const START_RACES: readonly (readonly [number, number])[] = LONG
  ? [
      [2, 300],
      [10, 100],
      [50, 10],
    ]
  : [
      [2, 2],
      [10, 1],
    ]

let lab: Lab | undefined
let etcd: Etcd | undefined
afterEach(async () => {
  await lab?.close()
  await etcd?.close()
  lab = etcd = undefined
})

/** The store of the leases in a test, and a way to make a lease expire there. */
interface Leases {
  readonly args: readonly string[]
  expire(subnet: string): Promise<void>
  /** Deletes a lease, as an operator does. */
  remove(subnet: string): Promise<void>
  values(): Promise<string[]>
  /** Lists the leases that another node overwrote, in the whole history of the store. */
  overwritten(): Promise<string[]>
}

async function etcdLeases(on: Lab): Promise<Leases> {
  const started = await startEtcd({ namespace: `${on.id}-switch`, address: '192.168.77.254' })
  etcd = started
  await started.ctl('put', '/coreos.com/network/config', CONFIG)
  const key = (subnet: string): string => `/coreos.com/network/subnets/${subnet.replace('/', '-')}`
  return {
    args: ['--etcd-endpoints', started.endpoint],
    async expire(subnet) {
      const id = BigInt(/"lease":(\d+)/.exec(await started.ctl('get', key(subnet), '-w', 'json'))![1]!).toString(16)
      await started.ctl('lease', 'revoke', id)
    },
    remove: async (subnet) => void (await started.ctl('del', key(subnet))),
    values: async () =>
      (await started.ctl('get', '--prefix', '--print-value-only', '/coreos.com/network/subnets/')).trim().split('\n'),
    async overwritten() {
      await started.ctl('put', '/the-end', 'of history')
      const watch = ['env', 'ETCDCTL_API=3', 'etcdctl', '--endpoints', started.endpoint, 'watch', '--rev', '1']
      const child = on.hosts[0]!.spawn([...watch, '--prefix', '/'])
      let stdout = ''
      child.stdout!.setEncoding('utf8').on('data', (text: string) => (stdout += text))
      await eventually(() => expect(stdout).toContain('of history\n'))
      child.kill()
      const owner = new Map<string, string>()
      const found: string[] = []
      for (const [, kind, name = '', value = ''] of stdout.matchAll(/^(PUT|DELETE)\n(.*)\n(.*)$/gm)) {
        if (!name.startsWith(key(''))) continue
        const before = owner.get(name)
        if (kind === 'PUT' && before !== undefined && before !== value) found.push(`${name}: ${before} ${value}`)
        if (kind === 'PUT') owner.set(name, value)
        else owner.delete(name)
      }
      if (owner.size === 0) throw new Error(`etcd has no history: ${stdout}`)
      return found
    },
  }
}

async function directoryLeases(on: Lab): Promise<Leases> {
  const folder = join(on.folder, 'leases')
  mkdirSync(folder)
  writeFileSync(join(folder, 'config'), CONFIG)
  const subnets = join(folder, 'subnets')
  return {
    args: ['--lease-dir', folder],
    expire: async (subnet) => utimesSync(join(subnets, subnet.replace('/', '-')), 0, Date.now() / 1000 - 25 * 3600),
    remove: async (subnet) => rmSync(join(subnets, subnet.replace('/', '-'))),
    values: async () => readdirSync(subnets).map((key) => readFileSync(join(subnets, key), 'utf8')),
    overwritten: async () => [], // a directory keeps no history
  }
}

const STORES = { etcd: etcdLeases, directory: directoryLeases }

async function startAll(on: Lab, args: readonly string[]): Promise<Daemon[]> {
  const daemons = on.hosts.map((host) => host.startDaemon({ args }))
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  return daemons
}

const KINDS = [
  ['etcd', 'native'],
  ['directory', 'native'],
  ['directory', 'dgram'],
] as const
describe.each(KINDS)('three hosts on the %s store with the %s engine', (store, engine) => {
  it("reach each other's containers with ping and TCP", async () => {
    lab = await createLab({ hosts: 3 })
    const leases = await STORES[store](lab)
    await startAll(lab, [...leases.args, '--engine', engine])
    expect((await leases.values()).toSorted()).toEqual(
      [1, 2, 3].map((number) => `{"PublicIP":"192.168.77.${number}","PublicIPv6":null}`),
    )
    const pods = await Promise.all(lab.hosts.map((host) => host.startPod()))
    for (const from of pods) {
      for (const to of pods) {
        if (from === to) continue
        await reach(from.namespace, to.address)
      }
    }
    const server = await iperfServer((command) =>
      lab!.hosts[1]!.spawn(['ip', 'netns', 'exec', pods[1]!.namespace, ...command]),
    )
    // Speed is the benchmark's subject. At full speed this test would use two cores that all other tests need.
    for (const args of [[], ['--reverse'], ['--parallel', '4']]) {
      expect(
        (await server.run(pods[0]!.namespace, pods[1]!.address, 1, ['--bitrate', '100M', ...args])).bitsPerSecond,
      ).toBeGreaterThan(0)
    }
    await server.stop()
    // Send pings as fast as the answers arrive, up to the largest packet that fits, and then larger pings in fragments.
    for (const size of ['0', '64', '1372', '1444']) {
      const count = ['-f', '-c', String(FLOOD_PINGS), '-W', String(EVENT_MS / 1000)]
      const { stdout } = await pods[0]!.run(['ping', '-n', '-q', ...count, '-s', size, pods[2]!.address])
      expect(stdout, size).toMatch(new RegExp(`${FLOOD_PINGS} received`))
    }
    for (const size of ['1445', '8000', '65507'])
      await pods[0]!.output([...PING, '-c', '2', '-s', size, pods[2]!.address])
    const tooBig = await pods[0]!.run([...PING, '-c', '1', '-M', 'do', '-s', '1445', pods[2]!.address])
    expect(tooBig.stdout + tooBig.stderr).toMatch(/message too long, mtu=1472/)
  })
})

describe('health', () => {
  it('is served over HTTP, and a port in use is an error at the start', async () => {
    lab = await createLab({ hosts: 1 })
    const [host] = lab.hosts
    const leases = await directoryLeases(lab)
    const args = [...leases.args, '--healthz-ip', '127.0.0.1', '--healthz-port', '8471']
    const [daemon] = await startAll(lab, args)
    const probe = `for (const path of ['healthz', 'readyz', 'livez']) {
      const answer = await fetch('http://127.0.0.1:8471/' + path)
      console.log(answer.status, await answer.text())
    }`
    const ask = () => host!.output([process.execPath, '--input-type=module', '-e', probe])
    await expect
      .poll(ask)
      .toMatch(
        /^200 flanneld is running\n200 flanneld is ready\n200 weftd is alive\nsubnet 10\.5\.\d+\.0\/24, 0 peers, directory store reachable; leases compared \d+ s ago; 0 repairs since the start\n/,
      )
    // A subnet file of its own: /run/flannel/subnet.env is the same file in all network namespaces.
    const own = ['--iface', 'eth0', '--subnet-file', `${host!.subnetFile}.second`]
    const second = await host!.run([process.execPath, join(packageRoot, 'bin/weftd'), ...own, ...args])
    expect([second.code, second.stderr]).toEqual([1, expect.stringContaining('Start healthz server error.')])
    expect(await daemon!.stop()).toBe(0)
  })
})

describe('flannel0', () => {
  it("has flannel's address, MTU and route, and disappears with a daemon that must not keep it", async () => {
    lab = await createLab({ hosts: 1 })
    const leases = await directoryLeases(lab)
    const [daemon] = await startAll(lab, [...leases.args, '--persist=false'])
    const [host] = lab.hosts
    const show = (...args: string[]): Promise<string> => host!.output(['ip', ...args])
    expect(await show('-4', '-o', 'address', 'show', 'dev', 'flannel0')).toContain(` ${tunAddress(host!)}/32 `)
    expect(await show('link', 'show', 'dev', 'flannel0')).toContain('mtu 1472')
    expect(await show('route', 'show', '10.5.0.0/16')).toContain('10.5.0.0/16 dev flannel0')
    expect(readFileSync(host!.subnetFile, 'utf8')).toBe(
      `FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=${subnetOf(host!).replace('.0/', '.1/')}\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=false\n`,
    )
    expect(await daemon!.stop()).toBe(0)
    expect(daemon!.lines.at(-1)).toContain('Exiting cleanly...')
    expect((await host!.run(['ip', 'link', 'show', 'dev', 'flannel0'])).code).not.toBe(0)
    expect(readFileSync(host!.subnetFile, 'utf8')).toContain('FLANNEL_SUBNET=')
  })

  it.each([0, 1, 2])(
    'drops packets whose source is an address of this host, and accepts our ICMP errors: rp_filter %d',
    async (mode) => {
      lab = await createLab({ hosts: 2 })
      const [a, b] = lab.hosts as [Host, Host]
      const leases = await directoryLeases(lab)
      const daemon = a.startDaemon({ args: leases.args })
      await daemon.line(/flannel is ready/)
      await a.output(['ip', 'link', 'add', 'other0', 'type', 'bridge'])
      await a.output(['ip', 'address', 'add', '172.30.0.1/24', 'dev', 'other0'])
      for (const device of ['all', 'flannel0'])
        await a.output(['sh', '-c', `echo ${mode} > /proc/sys/net/ipv4/conf/${device}/rp_filter`])

      const here = tunAddress(a)
      const beside = (bit: number): string => here.replace(/\.(\d+)\.0$/, (_all, third) => `.${Number(third) ^ bit}.7`)
      const [others, nobodys] = [beside(1), beside(2)]
      // The sender is a peer; otherwise weftd itself would drop the packet.
      const lease = others.replace(/\.7$/, '.0-24')
      writeFileSync(join(lab.folder, 'leases/subnets', lease), `{"PublicIP":"${b.address}","PublicIPv6":null}`)
      await daemon.line(added(lease.replace('-', '/')))
      const listen = `const socket = (await import('node:dgram')).createSocket('udp4')
      socket.on('message', (text) => console.log(String(text))).bind(5000, () => console.log('listening'))`
      const listener = a.spawn([process.execPath, '--input-type=module', '-e', listen])
      let received = ''
      listener.stdout!.on('data', (text: Buffer) => (received += text.toString()))
      await eventually(() => expect(received).toBe('listening\n'))

      // All packets leave one socket in this order. When the last one arrives, the others would have arrived.
      const sources = ['192.168.77.1', here, '172.30.0.1', others]
      const destination = parseIpv4(here)!
      const packets = sources.map((from) => {
        const source = parseIpv4(from)!
        return ipv4Packet({
          source,
          destination,
          payload: udpDatagram(source, destination, 1, 5000, Buffer.from(from)),
        })
      })
      const send = `const socket = (await import('node:dgram')).createSocket('udp4')
      for (const packet of process.argv.slice(1))
        await new Promise((sent) => socket.send(Buffer.from(packet, 'hex'), 8285, '192.168.77.1', sent))
      socket.close()`
      await b.output([
        process.execPath,
        '--input-type=module',
        '-e',
        send,
        ...packets.map((each) => each.toString('hex')),
      ])
      await eventually(() => expect(received).toContain(others))
      expect(received).toBe(`listening\n${others}\n`)
      listener.kill()

      const nobody = await a.run([...PING, '-c', '1', nobodys])
      expect(nobody.stdout).toContain('From 10.5.0.0 icmp_seq=1 Destination Net Unreachable')
    },
  )

  it('is repaired after its address was flushed, its route removed or it was set down; and recreated after it was deleted or moved to another namespace', async () => {
    lab = await createLab({ hosts: 2 })
    const leases = await directoryLeases(lab)
    const [first] = await startAll(lab, leases.args)
    const [a, b] = lab.hosts as [Host, Host]
    await reach(a.namespace, tunAddress(b))
    const repaired = async (command: readonly string[], pattern: RegExp): Promise<void> => {
      await a.output(['ip', ...command])
      await first!.line(pattern)
      await reach(a.namespace, tunAddress(b))
    }
    await repaired(['address', 'flush', 'dev', 'flannel0'], /Repaired: flannel0 had lost its address/)
    await repaired(['route', 'del', '10.5.0.0/16'], /Repaired: the route to 10\.5\.0\.0\/16 was gone/)
    await repaired(['link', 'set', 'flannel0', 'down'], /Repaired: flannel0 was down/)
    await repaired(['link', 'del', 'flannel0'], /The data path stopped: .*Opening it again/)
    const elsewhere = String((await a.startPod()).spawn(['sleep', '60']).pid)
    await repaired(
      ['link', 'set', 'flannel0', 'netns', elsewhere],
      /The data path stopped: flannel0 is no longer in the network namespace of weftd\. Opening it again/,
    )
  })
})

describe('--workers', () => {
  /**
   * Without steering the kernel chooses the queues. Steering puts all UDP between two addresses, and the answers to a flow, into other
   * lanes.
   */
  const UNSTEERED = ['--without', 'tun-steering']
  /** The minimum CPU time of all loops, and of sent packets, at which each loop must have had its share. */
  const ENOUGH_TICKS = 100
  const ENOUGH_SEGMENTS = 10_000
  /** Returns the CPU time of each loop of a daemon in ticks (proc_pid_stat(5): utime, stime). */
  const loopTicks = ({ process }: Daemon): number[] =>
    readdirSync(`/proc/${process.pid}/task`)
      .map((task) => readFileSync(`/proc/${process.pid}/task/${task}/stat`, 'utf8'))
      .filter((stat) => stat.includes('(weft-loop'))
      .map((stat) => stat.slice(stat.lastIndexOf(')')).split(' '))
      .map((fields) => Number(fields[12]) + Number(fields[13]))

  it.each([
    [4, 2],
    [1, 3],
  ])('from %i loops to %i: one peer keeps every loop busy, and flows stay in order', async (here, there) => {
    lab = await createLab({ hosts: 2 })
    const { args } = await directoryLeases(lab)
    const [first, second] = lab.hosts as [Host, Host]
    const daemons = [here, there].map((workers, index) =>
      lab!.hosts[index]!.startDaemon({ args: [...args, '--workers', String(workers), ...UNSTEERED] }),
    )
    await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
    await daemons[0]!.line(added(second))
    await reach(first.namespace, tunAddress(second))
    const server = await iperfServer((command) => second.spawn(command))
    const before = loopTicks(daemons[1]!)
    const spent = (): number[] => loopTicks(daemons[1]!).map((after, index) => after - before[index]!)
    const sum = (numbers: readonly number[]): number => numbers.reduce((total, number) => total + number, 0)
    const count = async (name: string): Promise<number> => {
      const snmp = await first.output(['nstat', '-asz', 'TcpExtTCPSACKReorder', 'TcpOutSegs'])
      return Number(new RegExp(`${name}\\s+(\\d+)`).exec(snmp)?.[1])
    }
    let flows = 0
    do {
      await server.run(first.namespace, tunAddress(second), 1, ['--parallel', '32'])
      flows += 32
    } while (sum(spent()) < ENOUGH_TICKS || (await count('TcpOutSegs')) < ENOUGH_SEGMENTS)
    const ticks = spent()
    expect(ticks).toHaveLength(there)
    // A single loop sends from one port, which one loop of the receiver serves. An idle loop uses almost no CPU.
    const busy = ticks.filter((each) => each >= sum(ticks) / 20).length
    expect(busy, `ticks of each loop: ${ticks.join(', ')}`).toBe(Math.min(here, there))

    // TCP counts this as reordering, not as loss. It may only happen when a flow moves, once, to the queue of its other direction.
    expect(await count('TcpExtTCPSACKReorder')).toBeLessThan(flows * 10)
  })

  const LANES = 8
  /** Enough flows that each lane gets some, except with a chance of one in millions. */
  const FLOWS = 128
  const dgram = "const socket = () => require('node:dgram').createSocket('udp4')\n"

  it('lose nothing if one lane is stopped, and do not delay the others', async () => {
    lab = await createLab({ hosts: 2 })
    const { args } = await directoryLeases(lab)
    const [first, second] = lab.hosts as [Host, Host]
    const daemons = lab.hosts.map((host) => host.startDaemon({ args: [...args, ...UNSTEERED] }))
    await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
    await reach(first.namespace, tunAddress(second))
    const ports = (await first.output(['ss', '-Huln'])).match(/(?<=192\.168\.77\.1:)\d+/g)!.map(Number)
    const senders = Array.from({ length: LANES }, (_, lane) => 8525 + lane)
    expect(new Set(ports)).toEqual(new Set([8285, ...senders]))

    const echo = second.spawn([
      process.execPath,
      '-e',
      `${dgram}const echo = socket()
      echo.on('message', (text, { port, address }) => echo.send(text, port, address))
      echo.bind(7000, () => console.log('listening'))`,
    ])
    await once(createInterface({ input: echo.stdout! }), 'line')
    const thaw = await freezeThread(first, daemons[0]!.process.pid!, 'weft-loop3')
    const asking = first.spawn([
      process.execPath,
      '-e',
      `${dgram}let answered = 0
      for (let flow = 0; flow < ${FLOWS}; flow++) {
        const each = socket()
        each.on('message', () => console.log(++answered))
        each.send('x', 7000, '${tunAddress(second)}')
      }`,
    ])
    const answers: string[] = []
    createInterface({ input: asking.stdout! }).on('line', (line) => answers.push(line))
    await eventually(() => expect(answers.length).toBeGreaterThan(FLOWS / 2))
    expect(answers.length).toBeLessThan(FLOWS)
    await thaw()
    await eventually(() => expect(answers).toHaveLength(FLOWS))
    for (const daemon of daemons) expect(await daemon.stop()).toBe(0)
  })
})

describe.each(['etcd', 'directory'] as const)('nodes on the %s store', (store) => {
  it('are followed when they join, stop, die, restart and expire', async () => {
    lab = await createLab({ hosts: 3 })
    const leases = await STORES[store](lab)
    const [a, b, c] = lab.hosts as [Host, Host, Host]
    const first = a.startDaemon({ args: leases.args })
    const second = b.startDaemon({ args: leases.args })
    await Promise.all([first, second].map((daemon) => daemon.line(/flannel is ready/)))

    let third = c.startDaemon({ args: leases.args })
    await third.line(/Wrote subnet file/)
    await Promise.all([first, second].map((daemon) => daemon.line(added(c))))
    await reach(a.namespace, tunAddress(c))
    const before = subnetOf(c)

    // A node that stops keeps its lease and reuses it, and so does a node that is killed.
    for (const signal of ['SIGTERM', 'SIGKILL'] as const) {
      await third.stop(signal)
      third = c.startDaemon({ args: leases.args })
      await third.line(/flannel is ready/)
      expect(subnetOf(c)).toBe(before)
      await reach(a.namespace, tunAddress(c))
    }

    await third.stop('SIGKILL')
    await leases.expire(before)
    await Promise.all([first, second].map((daemon) => daemon.line(removed(before))))
    const dead = await a.run([...PING, '-c', '1', before.replace(/\.0\/24/, '.0')])
    expect(dead.stdout).toContain('Destination Net Unreachable')
  })

  it.each(['expire', 'remove'] as const)('take a lost lease again without a restart: %s', async (how) => {
    lab = await createLab({ hosts: 2 })
    const leases = await STORES[store](lab)
    const [a, b] = lab.hosts as [Host, Host]
    const [first] = await startAll(lab, leases.args)
    await reach(a.namespace, tunAddress(b))
    const subnet = subnetOf(a)
    await leases[how](subnet)
    await first!.line(/Lease of .* acquired again/)
    expect(subnetOf(a)).toBe(subnet)
    await reach(b.namespace, tunAddress(a))
    expect(first!.process.exitCode).toBeNull()
  })

  it(
    'that were frozen while their lease expired take it again, or move if another node has it',
    async () => {
      lab = await createLab({ hosts: 3 })
      const leases = await STORES[store](lab)
      const [a, b, c] = lab.hosts as [Host, Host, Host]
      const [first, second] = [a, b].map((host) => host.startDaemon({ args: leases.args }))
      await Promise.all([first!, second!].map((daemon) => daemon.line(/flannel is ready/)))
      await reach(a.namespace, tunAddress(b))
      const subnet = subnetOf(a)
      const frozen = async (meanwhile: () => Promise<void>): Promise<void> => {
        first!.process.kill('SIGSTOP')
        await eventually(() => expect(readFileSync(`/proc/${first!.process.pid}/stat`, 'utf8')).toMatch(/\) T /))
        await leases.expire(subnet)
        await second!.line(removed(subnet))
        await meanwhile()
        await delay(FROZEN_MS)
        first!.process.kill('SIGCONT')
      }
      await frozen(async () => {})
      await first!.line(/Lease of .* acquired again/)
      expect(subnetOf(a)).toBe(subnet)
      await reach(b.namespace, tunAddress(a))

      let third: Daemon
      await frozen(async () => {
        writeFileSync(c.subnetFile, readFileSync(a.subnetFile))
        third = c.startDaemon({ args: leases.args })
        await third.line(/flannel is ready/)
      })
      await first!.line(/Lease has been revoked: .*192\.168\.77\.3/)
      await first!.line(/This node moves from/)
      await expect.poll(() => subnetOf(a)).not.toBe(subnet)
      expect(subnetOf(c)).toBe(subnet)
      // The peers have the node's subnet as the store has it.
      await third!.line(added(a))
      for (const [from, to] of [
        [b, a],
        [b, c],
        [c, a],
        [a, c],
      ] as const)
        await reach(from.namespace, tunAddress(to))
      expect((await leases.values()).toSorted()).toEqual(
        [1, 2, 3].map((number) => `{"PublicIP":"192.168.77.${number}","PublicIPv6":null}`),
      )
      expect(await leases.overwritten()).toEqual([])
    },
    4 * EVENT_MS,
  )
})

describe('the start race', () => {
  it.each(START_RACES)(
    '%i daemons started simultaneously see all others, %i times',
    async (count, rounds) => {
      const started = await createLab({ hosts: count })
      lab = started
      const server = await startEtcd({ namespace: `${started.id}-switch`, address: '192.168.77.254' })
      etcd = server
      for (let round = 0; round < rounds; round++) {
        const prefix = `/round${round}`
        await server.ctl('put', `${prefix}/config`, CONFIG)
        // Without the subnet of an earlier round all nodes draw at random.
        for (const host of started.hosts) rmSync(host.subnetFile, { force: true })
        const gate = join(started.folder, `gate${round}`)
        await output(['mkfifo', gate])
        const daemons = started.hosts.map((host) =>
          host.startDaemon({ args: ['--etcd-endpoints', server.endpoint, '--etcd-prefix', prefix], gate }),
        )
        await Promise.all(daemons.map(({ process: { stdout } }) => once(stdout!, 'data')))
        // Opening the pipe wakes all daemons in one system call. It stays open for a daemon that has printed its line but not opened the
        // pipe yet.
        const opened = openSync(gate, 'w')
        await Promise.all(daemons.map((daemon) => daemon.line(/Wrote subnet file/)))
        closeSync(opened)
        await Promise.all(
          daemons.flatMap((daemon, from) =>
            started.hosts.filter((_, to) => to !== from).map((host) => daemon.line(added(host))),
          ),
        )
        expect(new Set(started.hosts.map(subnetOf)).size).toBe(count)
        if (round === 0 && count <= 10) {
          for (const from of started.hosts)
            await Promise.all(
              started.hosts.filter((to) => to !== from).map((to) => reach(from.namespace, tunAddress(to))),
            )
        }
        await Promise.all(daemons.map((daemon) => daemon.stop('SIGKILL')))
      }
    },
    10 * EVENT_MS,
  )
})
