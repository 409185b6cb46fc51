// outages.test.ts - the store is killed, frozen, slow, silent, refusing or cut off: packets flow, the daemons stay quiet, and soon after
// the outage they agree with the store.
//
// With `npm run test:soak` each outage lasts two minutes, and slow calls take five seconds.

import { once } from 'node:events'
import {
  closeSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, describe, expect, it } from 'vitest'
import { execute, output } from '../../lab/command.ts'
import { startEtcd, startEtcdCluster, type Etcd, type EtcdCluster } from '../../lab/etcd.ts'
import { createLab, EVENT_MS, packageRoot, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { iperfServer, reach } from '../../lab/measure.ts'
import { DirectoryStore } from '../../src/control/store/directory/directory.ts'
import { eventually } from '../support/event.ts'
import { added, cpuSeconds, subnetOf, tunAddress } from '../support/hosts.ts'
import { ETCD, HOSTS, needs } from '../support/needs.ts'
import type { Strikes, Trouble } from '../support/troubled-etcd.ts'

needs(HOSTS, ...ETCD, 'iperf3', 'nft', 'ping')

const LONG = process.env['WEFT_LONG'] === '1'
const AWAY_S = LONG ? 120 : 10
const SLOW_MS = LONG ? 5_000 : 1_500
/** The time limit in ms for a test that hangs: the outage and ten events. */
const LIMIT_MS = AWAY_S * 1000 + 10 * EVENT_MS
/** The time in ms of several dozen calls in sequence, of which one in three is refused. */
const SLOW_EVENT_MS = EVENT_MS + 30 * SLOW_MS
const LINES_A_MINUTE = 10
const SUBNETS = '/coreos.com/network/subnets'
/** The tests' own peers are below the range from which hosts draw. */
const CONFIG = '{"Network":"10.5.0.0/16","SubnetMin":"10.5.16.0","Backend":{"Type":"udp"}}'

interface AnyBed {
  readonly lab: Lab
  readonly etcd?: Etcd | EtcdCluster
}
/** Hosts with an etcd on their switch. Several tests run in parallel, because they mostly wait. */
interface Bed {
  readonly lab: Lab
  readonly etcd: Etcd
}
const beds = new Set<AnyBed>()
afterAll(async () => {
  await Promise.all([...beds].map(close))
})

async function open(hosts: number): Promise<Bed> {
  const lab = await createLab({ hosts })
  const etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
  const bed = { lab, etcd }
  beds.add(bed)
  await etcd.ctl('put', '/coreos.com/network/config', CONFIG)
  return bed
}

async function openCluster(): Promise<{ readonly lab: Lab; readonly etcd: EtcdCluster }> {
  const lab = await createLab({ hosts: 3 })
  const etcd = await startEtcdCluster(lab.hosts)
  const bed = { lab, etcd }
  beds.add(bed)
  await etcd.ctl(['put', '/coreos.com/network/config', CONFIG])
  return bed
}

/** Creates hosts with a lease directory on a file system of its own. */
async function openDirectory(hosts: number): Promise<{ readonly lab: Lab; readonly folder: string }> {
  const lab = await createLab({ hosts })
  beds.add({ lab })
  const folder = await lab.mountMemory('leases', '256k')
  writeFileSync(join(folder, 'config'), CONFIG)
  return { lab, folder }
}

async function close(bed: AnyBed): Promise<void> {
  beds.delete(bed)
  await bed.lab.close()
  await bed.etcd?.close()
}

/** A proxy on a host in front of etcd. */
interface Proxy {
  readonly endpoint: string
  /** Makes this trouble from now on, and returns a count of its hits so far. */
  set(trouble: Trouble): Promise<Strikes>
}

async function startProxy({ etcd }: Bed, host: Host): Promise<Proxy> {
  const program = join(packageRoot, 'dist/test/support/troubled-etcd.js')
  const command = [process.execPath, program, 'serve', host.address, '2379', etcd.endpoint]
  const { stdin, stdout, stderr } = host.spawn(command, { stdin: true })
  stderr!.pipe(process.stderr)
  const lines = createInterface({ input: stdout! })
  await once(lines, 'line')
  return {
    endpoint: `http://${host.address}:2379`,
    async set(trouble) {
      const answer = once(lines, 'line') as Promise<[string]>
      stdin!.write(`${JSON.stringify(trouble)}\n`)
      return JSON.parse((await answer)[0]) as Strikes
    },
  }
}

/** Runs a program in etcd's namespace, which packets between hosts do not cross. */
const atEtcd = ({ lab }: Bed, ...command: string[]): Promise<string> =>
  output(['ip', 'netns', 'exec', `${lab.id}-switch`, ...command])

/** Ends an outage, and returns the number of its hits. */
type End = () => Promise<number>

const killed = async ({ etcd }: Bed): Promise<End> => {
  await etcd.kill('SIGKILL')
  return async () => {
    const strikes = etcd.process.signalCode === 'SIGKILL' ? 1 : 0
    await etcd.start()
    return strikes
  }
}

const frozen = async ({ etcd }: Bed): Promise<End> => {
  etcd.process.kill('SIGSTOP')
  return async () => {
    const strikes = /\) T /.test(readFileSync(`/proc/${etcd.process.pid}/stat`, 'utf8')) ? 1 : 0
    etcd.process.kill('SIGCONT')
    return strikes
  }
}

/** Drops the packets of these TCP ports in a namespace; the returned function ends that and returns the number of drops. */
async function drop(namespace: string, device: string, ports: string): Promise<End> {
  const nft = (command: string[], input = ''): Promise<string> =>
    output(['ip', 'netns', 'exec', namespace, 'nft', ...command], { input })
  const chain = (hook: string, name: string): string =>
    `add chain inet outage ${hook} { type filter hook ${hook} priority 0 ; }
     add rule inet outage ${hook} ${name} ${device} tcp dport { ${ports} } counter drop
     add rule inet outage ${hook} ${name} ${device} tcp sport { ${ports} } counter drop\n`
  await nft(['-f', '-'], `add table inet outage\n${chain('input', 'iifname')}${chain('output', 'oifname')}`)
  return async () => {
    const rules = await nft(['list', 'table', 'inet', 'outage'])
    await nft(['delete', 'table', 'inet', 'outage'])
    return [...rules.matchAll(/counter packets (\d+)/g)].reduce((sum, [, count]) => sum + Number(count), 0)
  }
}

const cutOff = ({ lab }: Bed): Promise<End> => drop(`${lab.id}-switch`, 'br0', '2379')

/** Limits the line to two kilobytes a second: etcd's packets wait up to ten seconds and are then dropped. */
const starved = async (bed: Bed): Promise<End> => {
  const shape = ['root', 'tbf', 'rate', '16kbit', 'burst', '2kb', 'latency', '10s']
  await atEtcd(bed, 'tc', 'qdisc', 'add', 'dev', 'br0', ...shape)
  // The line is filled from the start. Otherwise etcd's own packets might be too few to wait.
  const flood = ['ping', '-q', '-n', '-l', '10', '-c', '10', '-s', '1400', '-w', '1', bed.lab.hosts[0]!.address]
  await execute(['ip', 'netns', 'exec', `${bed.lab.id}-switch`, ...flood])
  return async () => {
    const counts = await atEtcd(bed, 'tc', '-s', 'qdisc', 'show', 'dev', 'br0')
    await atEtcd(bed, 'tc', 'qdisc', 'del', 'dev', 'br0', 'root')
    return Number(/overlimits (\d+)/.exec(counts)?.[1])
  }
}

const troubled =
  (trouble: Trouble, kind: keyof Strikes) =>
  async (_bed: Bed, proxy: Proxy): Promise<End> => {
    const before = await proxy.set(trouble)
    return async () => (await proxy.set({}))[kind] - before[kind]
  }

/** Returns the arguments of etcdctl that write a new peer. */
const putPeer = (subnet: string): string[] => [
  'put',
  `${SUBNETS}/${subnet.replace('/', '-')}`,
  '{"PublicIP":"198.51.100.1","PublicIPv6":null}',
]

/** Traffic that is lost only if the data path stops: the window has room for a receiver that waits on a busy machine. */
const TRAFFIC = ['--udp', '--bitrate', '2M', '--length', '1200', '--window', '1M']

/** Sends that traffic from one host to another until the outage is over, unless the machine is slow. */
async function startTraffic(from: Host, to: Host): Promise<{ arrived(): Promise<void> }> {
  const server = await iperfServer((command) => to.spawn(command))
  const traffic = server.run(from.namespace, tunAddress(to), AWAY_S + 4, TRAFFIC)
  traffic.catch(() => {}) // it is awaited at the end
  return {
    async arrived() {
      const { loss, packetsPerSecond } = await traffic
      expect(packetsPerSecond).toBeGreaterThan(0)
      expect(loss).toBe(0)
    },
  }
}

/** Measures the log lines and CPU time of daemons from now on, relative to each daemon's start on this machine in this run. */
function watchCosts(daemons: readonly Daemon[]): { end(): { moderate(title: string): void; said: string[][] } } {
  const began = performance.now()
  const before = daemons.map((daemon) => ({ cpu: cpuSeconds(daemon), lines: daemon.lines.length }))
  return {
    end() {
      const seconds = (performance.now() - began) / 1000
      const starts = daemons.map((daemon, index) => (cpuSeconds(daemon) - before[index]!.cpu) / before[index]!.cpu)
      const said = daemons.map((daemon, index) => daemon.lines.slice(before[index]!.lines))
      return {
        said,
        moderate(title) {
          console.log(
            `${title} for ${seconds.toFixed(1)} s: CPU ${starts.map((share) => `${(100 * share).toFixed(0)}%`).join(', ')} ` +
              `of that of the start; log lines ${said.map(({ length }) => length).join(', ')}`,
          )
          // Most lines come first. A minute counts once half of it has passed.
          const minutes = Math.ceil((seconds + 30) / 60)
          for (const lines of said) {
            // Changes by the test itself are logged too, as information.
            const complaints = lines.filter((line) => !line.startsWith('I'))
            expect(complaints.length, lines.join('\n')).toBeLessThanOrEqual(LINES_A_MINUTE * minutes)
            // Each complaint is a line of the daemon, so Node.js printed no warning.
            expect(complaints.filter((line) => !/^[WEF]\d{4} /.test(line))).toEqual([])
          }
          // A daemon that retries without a pause would spend the CPU time of a start each second.
          expect(Math.max(...starts)).toBeLessThan(Math.ceil(seconds / 60))
        },
      }
    },
  }
}

// The outages, with or without the proxy in between, and whether etcd can be written to meanwhile.
const STRIKES = [
  ['is killed with -9', killed, false, false],
  ['is cut off', cutOff, false, true],
  ['takes five seconds for each call', troubled({ delayMs: 5_000 }, 'delayed'), true, true],
] as const
/** More outages, for which only `npm run test:soak` has the time. */
const MORE_STRIKES = [
  ['is frozen', frozen, false, false],
  ['has next to no bandwidth', starved, false, true],
  ['refuses each call', troubled({ failOneIn: 1 }, 'failed'), true, true],
  ['takes calls and says nothing', troubled({ hold: true }, 'held'), true, true],
] as const

describe.concurrent('while etcd', () => {
  it.each([...STRIKES, ...(LONG ? MORE_STRIKES : [])])(
    '%s, no packet is lost, and little CPU time and few log lines are spent; then all changes are applied',
    async (title, strike, proxied, answers) => {
      const bed = await open(4)
      const { lab, etcd } = bed
      const [a, b, c, d] = lab.hosts as [Host, Host, Host, Host]
      const proxy = await startProxy(bed, d)
      const args = ['--etcd-endpoints', proxied ? proxy.endpoint : etcd.endpoint]
      const daemons = [a, b, c].map((host) => host.startDaemon({ args }))
      await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
      await Promise.all([reach(a.namespace, tunAddress(b)), reach(b.namespace, tunAddress(c))])
      /** One daemon loses its lease, and a new peer appears. */
      const change = async (): Promise<void> => {
        const ctl = (words: string[]) => eventually(() => etcd.ctl(...words))
        await ctl(['del', `${SUBNETS}/${subnetOf(c).replace('/', '-')}`])
        await ctl(putPeer('10.5.0.0/24'))
      }

      const traffic = await startTraffic(a, b)
      const costs = watchCosts(daemons)
      const end = await strike(bed, proxy)
      if (answers) await change()
      await delay(AWAY_S * 1000) // during this time nothing must happen
      const cost = costs.end()
      const strikes = await end()
      if (!answers) await change()
      await Promise.all(daemons.map((daemon) => daemon.line(added('10.5.0.0/24'))))
      await daemons[2]!.line(/Lease of .* acquired again/)
      await Promise.all([a, b].map((host) => reach(host.namespace, tunAddress(c))))
      expect(strikes).toBeGreaterThan(0)
      cost.moderate(`etcd ${title}`)
      await traffic.arrived()
      await close(bed)
    },
    LIMIT_MS,
  )

  it(
    'takes long for each call and refuses one in three, a daemon starts, and the others learn of it',
    async () => {
      const bed = await open(3)
      const { lab, etcd } = bed
      const [a, b, c] = lab.hosts as [Host, Host, Host]
      const proxy = await startProxy(bed, c)
      const peer = b.startDaemon({ args: ['--etcd-endpoints', etcd.endpoint] })
      await peer.line(/flannel is ready/)
      await proxy.set({ delayMs: SLOW_MS, failOneIn: 3 })
      const daemon = a.startDaemon({ args: ['--etcd-endpoints', proxy.endpoint] })
      const started = performance.now()
      await daemon.line(/flannel is ready/, SLOW_EVENT_MS)
      const ready = performance.now()
      await Promise.all([daemon.line(added(b), SLOW_EVENT_MS), peer.line(added(a))])
      await reach(a.namespace, tunAddress(b))
      // Delete this node's lease. The wait is as long as a renewal may take, with a margin of an hour.
      await etcd.ctl('del', `${SUBNETS}/${subnetOf(a).replace('/', '-')}`)
      await daemon.line(/Lease of .* acquired again/, SLOW_EVENT_MS)
      console.log(`ready after ${Math.round((ready - started) / 1000)} s`)
      const { delayed, failed } = await proxy.set({})
      expect(Math.min(delayed, failed)).toBeGreaterThan(2)
      await close(bed)
    },
    LIMIT_MS,
  )
})

describe('a daemon', () => {
  it('that is frozen while 3,000 leases appear and 1,000 of them are deleted has exactly the remaining leases afterwards', async () => {
    const bed = await open(1)
    const { lab, etcd } = bed
    const daemon = lab.hosts[0]!.startDaemon({ args: ['--etcd-endpoints', etcd.endpoint] })
    await daemon.line(/flannel is ready/)
    daemon.process.kill('SIGSTOP')
    await eventually(() => expect(readFileSync(`/proc/${daemon.process.pid}/stat`, 'utf8')).toMatch(/\) T /))
    const subnets = Array.from({ length: 3_000 }, (_, index) => `10.6.${index >> 4}.${(index & 15) << 4}/28`)
    // etcdctl expects three parts, each of which ends with an empty line. etcd accepts 128 operations per transaction.
    const txn = (operations: readonly string[]): Promise<string> =>
      output(
        [
          'ip',
          'netns',
          'exec',
          `${lab.id}-switch`,
          'env',
          'ETCDCTL_API=3',
          'etcdctl',
          '--endpoints',
          etcd.endpoint,
          'txn',
        ],
        { input: ['', ...operations, '', ''].join('\n') + '\n' },
      )
    for (let at = 0; at < subnets.length; at += 100) {
      const part = subnets.slice(at, at + 100).map((subnet) => `${SUBNETS}/${subnet.replace('/', '-')}`)
      await txn(part.map((key) => `put ${key} {"PublicIP":"198.51.100.1","PublicIPv6":null}`))
      await txn(part.filter((_, index) => index % 3 === 0).map((key) => `del ${key}`))
    }
    const left = subnets.filter((_, index) => (index % 100) % 3 !== 0)
    daemon.process.kill('SIGCONT')
    await eventually(
      () => {
        const known = new Set<string>()
        for (const line of daemon.lines) {
          const [, what, subnet = ''] = /Subnet (added|removed): (10\.6\..*)$/.exec(line) ?? []
          if (what === 'added') known.add(subnet)
          if (what === 'removed') known.delete(subnet)
        }
        expect([...known].toSorted()).toEqual(left.toSorted())
      },
      { everyMs: 200 },
    )
    await close(bed)
  })
})

/** Either etcd ended the watch, or the listing every minute was the first to show that the watch misses changes. */
const WATCH_LEFT = /watch channel for leases closed|watch for leases did not tell what a listing did/

/** Returns the number of watch streams that a member of etcd serves on its host. */
async function watchesOf(host: Host, endpoint: string): Promise<number> {
  const script = `fetch('${endpoint}/metrics').then((r) => r.text()).then((t) => process.stdout.write(t))`
  const metrics = await host.output([process.execPath, '-e', script])
  return Number(/^etcd_debugging_mvcc_watch_stream_total (\d+)$/m.exec(metrics)?.[1])
}

describe.concurrent('a host of three, each with a member of etcd,', () => {
  const CUT_OFF = [
    // The member's ports to drop, and whether the host's daemon still receives changes meanwhile.
    ['whose member is cut off from the others: its daemon goes to another', '2380', true],
    ['that is cut off from etcd but for its own member: its daemon waits', '2379, 2380', false],
  ] as const
  it.each(CUT_OFF)(
    '%s; packets flow, the other nodes continue, and all changes are applied',
    async (_title, ports, receives) => {
      const bed = await openCluster()
      const { lab, etcd } = bed
      // List each host's own etcd member first, as operators write it.
      const daemons = lab.hosts.map((host, index) => {
        const order = [...etcd.members.slice(index), ...etcd.members.slice(0, index)]
        return host.startDaemon({ args: ['--etcd-endpoints', order.map(({ endpoint }) => endpoint).join()] })
      })
      await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
      await Promise.all(daemons.map((daemon) => daemon.line(/Subnet added/)))
      // A member that serves at least one watch.
      const watches = await Promise.all(lab.hosts.map((host, index) => watchesOf(host, etcd.members[index]!.endpoint)))
      const index = watches.findIndex((count) => count > 0)
      const [a, alone] = [lab.hosts[index]!, etcd.members[index]!]
      const others = <T>(all: readonly T[]): T[] => all.filter((_, other) => other !== index)
      const [b] = others(lab.hosts) as [Host, Host]
      await Promise.all([reach(a.namespace, tunAddress(b)), reach(b.namespace, tunAddress(a))])
      const traffic = await startTraffic(a, b)

      const costs = watchCosts(daemons)
      const heal = await drop(a.namespace, 'eth0', ports)
      const struckAt = performance.now()
      await eventually(() => etcd.ctl(putPeer('10.5.0.0/24'), others(etcd.members)))
      await Promise.all((receives ? daemons : others(daemons)).map((daemon) => daemon.line(added('10.5.0.0/24'))))
      await delay(Math.max(0, AWAY_S * 1000 - (performance.now() - struckAt)))
      await Promise.any(daemons.map((daemon) => daemon.line(WATCH_LEFT)))
      expect(daemons[index]!.lines.some((line) => added('10.5.0.0/24').test(line))).toBe(receives)
      const cost = costs.end()
      expect(await heal()).toBeGreaterThan(0)
      await eventually(() => etcd.ctl(putPeer('10.5.1.0/24'), [alone]))
      for (const subnet of ['10.5.0.0/24', '10.5.1.0/24'])
        await Promise.all(daemons.map((each) => each.line(added(subnet))))
      cost.moderate(`a member of etcd away, ports ${ports},`)
      await traffic.arrived()
      await close(bed)
    },
    LIMIT_MS,
  )
})

describe.concurrent('while the lease directory', () => {
  const leasesIn = (folder: string): Record<string, string> =>
    Object.fromEntries(
      readdirSync(join(folder, 'subnets')).map((key) => [key, readFileSync(join(folder, 'subnets', key), 'utf8')]),
    )

  const readOnly = async (folder: string): Promise<() => Promise<void>> => {
    // The file system is busy while a daemon has a file open for writing.
    const remount = (mode: string): Promise<string> =>
      eventually(() => output(['mount', '-o', `remount,${mode}`, folder]), { everyMs: 10 })
    await remount('ro')
    return async () => void (await remount('rw'))
  }

  const full = async (folder: string): Promise<() => Promise<void>> => {
    const path = join(folder, 'fill')
    const file = openSync(path, 'w')
    try {
      for (;;) writeSync(file, Buffer.alloc(4096))
    } catch (error) {
      expect(error).toMatchObject({ code: 'ENOSPC' })
    } finally {
      closeSync(file)
    }
    return async () => rmSync(path)
  }

  it('that is full accepts a renewal, and no other address: what it reports as written is written', async () => {
    const bed = await openDirectory(1)
    const store = new DirectoryStore({ directory: bed.folder })
    const { signal } = new AbortController()
    const value = (address: string): string => `{"PublicIP":"${address}","PublicIPv6":null}`
    const created = await store.create('10.5.16.0-24', value('192.0.2.1'), signal)
    const end = await full(bed.folder)
    const renewed = await store.update(
      '10.5.16.0-24',
      value('192.0.2.1'),
      { ...created!, value: value('192.0.2.1') },
      signal,
    )
    expect(renewed).toBeDefined()
    const moving = () =>
      store.update('10.5.16.0-24', value('192.0.2.2'), { ...renewed!, value: value('192.0.2.1') }, signal)
    await expect(moving()).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
      message: expect.stringContaining('ENOSPC'),
    })
    expect((await store.list(signal)).entries).toMatchObject([{ value: value('192.0.2.1') }])
    await end()
    expect(await moving()).toBeDefined()
    expect((await store.list(signal)).entries).toMatchObject([{ value: value('192.0.2.2') }])
    await store.close()
    await close(bed)
  })

  const UNWRITABLE = [
    // Per case: the line of a daemon that starts meanwhile, whether it ends, and whether the running daemons can renew.
    ['is read-only', readOnly, /EROFS.*; mount its file system read-write/, true, false],
    ['is full', full, /ENOSPC.*; free space on the file system of the directory/, false, true],
  ] as const
  it.each(UNWRITABLE)(
    '%s, no packet and no lease is lost, and little CPU time and few log lines are spent; then all changes are applied',
    async (title, strike, says, ends, renews) => {
      const { lab, folder } = await openDirectory(4)
      const [a, b, c, d] = lab.hosts as [Host, Host, Host, Host]
      const args = ['--lease-dir', folder]
      const daemons = [a, b, c].map((host) => host.startDaemon({ args }))
      await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
      await Promise.all([reach(a.namespace, tunAddress(b)), reach(b.namespace, tunAddress(c))])
      const leases = leasesIn(folder)
      expect(Object.keys(leases)).toHaveLength(3)

      const traffic = await startTraffic(a, b)
      const costs = watchCosts(daemons)
      const end = await strike(folder)
      let newcomer = d.startDaemon({ args })
      await newcomer.line(says)
      if (ends) {
        await eventually(() => expect(newcomer.process.exitCode).toBe(1))
        expect(newcomer.lines.filter((line) => says.test(line))).toHaveLength(1)
      }
      const own = join(folder, 'subnets', subnetOf(c).replace('/', '-'))
      if (renews) {
        const longAgo = Date.now() / 1000 - 25 * 3600
        utimesSync(own, longAgo, longAgo)
        await daemons[2]!.line(/Lease of .* acquired again/)
        expect(statSync(own).mtimeMs / 1000).toBeGreaterThan(longAgo + 24 * 3600)
      }
      await delay(AWAY_S * 1000)
      const cost = costs.end()
      expect(leasesIn(folder)).toEqual(leases)
      expect(readdirSync(join(folder, 'tmp')).filter((name) => !name.startsWith('clock.'))).toEqual([])
      await end()
      if (ends) newcomer = d.startDaemon({ args })
      await newcomer.line(/flannel is ready/)
      await Promise.all(daemons.map((daemon) => daemon.line(added(d))))
      await reach(a.namespace, tunAddress(d))
      expect(leasesIn(folder)).toMatchObject(leases)
      cost.moderate(`the lease directory ${title}`)
      await traffic.arrived()
      await lab.close()
    },
    LIMIT_MS,
  )

  it('has a clock that is set a day ahead or back, each node keeps its subnet', async () => {
    const { lab, folder } = await openDirectory(4)
    const daemons = lab.hosts.map((host) => host.startDaemon({ args: ['--lease-dir', folder] }))
    await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
    const [first] = lab.hosts as [Host]
    await Promise.all(lab.hosts.slice(1).map((host) => reach(first.namespace, tunAddress(host))))
    const leases = leasesIn(folder)
    const files = Object.keys(leases).map((key) => join(folder, 'subnets', key))
    const age = (hours: number): void => {
      for (const file of files) utimesSync(file, Date.now() / 1000, Date.now() / 1000 - hours * 3600)
    }
    // Setting the files' times back by 25 hours has the same effect as a clock that is 25 hours ahead.
    age(25)
    await eventually(() => {
      for (const file of files) expect(statSync(file).mtimeMs).toBeGreaterThan(Date.now() - 24 * 3_600_000)
    })
    expect(leasesIn(folder)).toEqual(leases)
    age(-25)
    await Promise.all(
      lab.hosts.flatMap((from) =>
        lab.hosts.filter((to) => to !== from).map((to) => reach(from.namespace, tunAddress(to))),
      ),
    )
    expect(leasesIn(folder)).toEqual(leases)
    await lab.close()
  })
})
