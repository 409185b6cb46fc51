// demo.ts - `npm run demo`: hosts on this machine lease subnets from a directory, and their containers talk; or do not, to see how
// weft says why. A second network has both families, by the kernel; or the one has them itself, in datagrams of either. Or all is
// encrypted by weft, and somebody listens on the cable.

import { once } from 'node:events'
import { mkdirSync, writeFileSync } from 'node:fs'
import { connect, createServer } from 'node:net'
import { dirname, join } from 'node:path'
import { parseArgs } from 'node:util'
import { isThere, NEEDS, sayLack } from '../scripts/machine.mjs'
import { withSystemFolders } from '../src/host/command.ts'
import { FAMILIES, FAMILY_NAMES, type Family } from '../src/net/address.ts'
import {
  FAULT_NAMES,
  FAULTS,
  openNetwork,
  udpConfig,
  type Fault,
  type FaultName,
  type Member,
  type Network,
} from './broken.ts'
import { causesIn } from './causes.ts'
import { eavesdrop, TEXT, type Heard } from './eavesdrop.ts'
import {
  createLab,
  hostsHaveIpv6,
  lastLines,
  named,
  networkOf,
  packageRoot,
  subnetOfEnv,
  whyNoVxlan,
  type Host,
  type Lab,
  type Subnet,
} from './lab.ts'
import { iperfServer, median, ping, reach } from './measure.ts'
import { becomeRoot } from './unprivileged.ts'

const USAGE = `Usage: npm run demo -- [--once | --page | --broken WHAT] [--encrypted | --underlay ipv4|ipv6]
                           [--hosts N] [--engine native|dgram]

  --once         end after the table instead of waiting for Ctrl-C
  --page         instead of the table: some traffic, and the addresses of the hosts' pages to look at
  --broken WHAT  as --page, with something broken; find it as on your own hosts:
                 ${inLines(FAULT_NAMES)}
  --encrypted    by WireGuard, which weft carries without the kernel's, and with somebody who listens on the cable
  --underlay     containers have both families, and between the hosts all goes by this one
  --hosts N      number of hosts, 2 to 20 (3)
  --engine       what moves the packets (native)
`
const NETWORK = '10.5.0.0/16'
/** The second network, which the kernel carries. */
const BOTH = { Network: '10.6.0.0/16', EnableIPv6: true, IPv6Network: 'fd00:6::/48' }
const TCP_SECONDS = 1
/** A pair that does not answer yet is tried for this long. */
const REACH_MS = 10_000
/** A store that was away is asked again after half a minute at most. */
const GREEN_MS = 60_000
/** Short, so that a peer that is killed is soon seen. */
const PROBE_SECONDS = 3

const tty = process.stdout.isTTY
const colour = tty && process.env['NO_COLOR'] === undefined
const paint =
  (code: number) =>
  (text: string): string =>
    colour ? `\u001B[${code}m${text}\u001B[0m` : text
const bold = paint(1)
const dim = paint(2)
const green = paint(32)
const red = paint(31)
const say = (text = ''): void => void process.stdout.write(`${text}\n`)

/** Shows what is being done while it is done, and how long it took. */
async function step<T>(title: string, body: () => Promise<T>): Promise<T> {
  const started = performance.now()
  if (tty) process.stdout.write(`  ${dim('…')} ${title}`)
  try {
    const result = await body()
    const took = dim(`${((performance.now() - started) / 1000).toFixed(1)} s`)
    process.stdout.write(`${tty ? '\r\u001B[K' : ''}  ${green('✓')} ${title.padEnd(54)} ${took}\n`)
    return result
  } catch (error) {
    process.stdout.write(`${tty ? '\r\u001B[K' : ''}  ${red('✗')} ${title}\n`)
    throw error
  }
}

interface Wanted {
  readonly hosts: number
  readonly engine: string
  /** True when all stays up until Ctrl-C. */
  readonly stay: boolean
  readonly isForPage: boolean
  readonly isEncrypted: boolean
  readonly underlay: Family | undefined
}

/** A host in a network of both families. */
interface DualMember extends Member {
  readonly subnet: Subnet
}

/** A container is asked by each family that it has. */
const waysOf = (underlay: Family | undefined) => (underlay === undefined ? [ipv4Of] : [ipv4Of, ipv6Of])

function table(rows: readonly (readonly string[])[]): void {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => (row[column] ?? '').length)))
  rows.forEach((row, index) => {
    const line = row
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join('   ')
      .trimEnd()
    say(`  ${index === 0 ? bold(line) : line}`)
  })
}

const toEach = (members: readonly Member[]): string[] => members.map(({ host }) => `to ${host.name}`)

function gigabits(bitsPerSecond: number): string {
  return `${(bitsPerSecond / 1e9).toFixed(bitsPerSecond < 1e9 ? 2 : 1)} Gbit/s`
}

const ipv4Of = ({ pod }: Member): string => pod.address
const ipv6Of = ({ pod }: Member): string => pod.ipv6 ?? ''

/** Waits until every container reaches every other; a pair that does not in time is left for a table to show. */
async function reachAll(members: readonly Member[], addressOf: (to: Member) => string): Promise<void> {
  const pairs = members.flatMap((from) => members.filter((to) => to !== from).map((to) => ({ from, to })))
  await Promise.allSettled(pairs.map(({ from, to }) => reach(from.pod.namespace, addressOf(to), REACH_MS)))
}

/** By who pings and who is pinged, the median in ms; undefined where nothing came back. */
type Pings = readonly (readonly (number | undefined)[])[]

async function pingAll(members: readonly Member[], addressOf: (to: Member) => string): Promise<Pings> {
  return Promise.all(
    members.map((from) =>
      Promise.all(
        members.map(async (to) => {
          if (from === to) return undefined
          const times = await ping(from.pod.namespace, addressOf(to))
          return times.length === 0 ? undefined : median(times)
        }),
      ),
    ),
  )
}

/** The same by each of these ways. */
const pingBy = (members: readonly Member[], ways: readonly ((to: Member) => string)[]): Promise<readonly Pings[]> =>
  Promise.all(ways.map((way) => pingAll(members, way)))

/** What was found between two, by each way. */
function timesText(pings: readonly Pings[], from: number, to: number): string {
  if (from === to) return '-'
  const times = pings.map((by) => by[from]?.[to])
  if (times.length === 1) return milliseconds(times[0])
  if (times.every((time) => time === undefined)) return milliseconds(undefined)
  if (times.includes(undefined)) return times.map(milliseconds).join(', ')
  return `${times.map((time) => time?.toFixed(2)).join(', ')} ms`
}

/** Nothing is found on the cable of what is found in every packet inside. */
const isSecret = ({ inside, cable }: Heard): boolean =>
  inside.withText === inside.packets && cable.withText + cable.withAddresses === 0

const isComplete = (pings: Pings): boolean =>
  pings.every((row, from) => row.every((time, to) => from === to || time !== undefined))
const milliseconds = (time: number | undefined): string => (time === undefined ? 'no answer' : `${time.toFixed(2)} ms`)

/** Starts a second daemon on each host, for a network of both families, with a container behind it. */
async function startBoth(lab: Lab, type: string): Promise<DualMember[]> {
  const leases = join(lab.folder, 'leases-of-both')
  mkdirSync(leases)
  writeFileSync(join(leases, 'config'), JSON.stringify({ ...BOTH, Backend: { Type: type } }))
  const all = await Promise.all(
    lab.hosts.map(async (host): Promise<DualMember> => {
      const daemon = host.startDaemon({ network: 'both', before: named(host.name), args: ['--lease-dir', leases] })
      await daemon.line(/flannel is ready/)
      const subnet = subnetOfEnv(host.subnetEnv('both'))
      return { host, daemon, subnet, pod: await host.startPod({ ...subnet, bridge: 'cni1' }) }
    }),
  )
  await Promise.all([reachAll(all, ipv4Of), reachAll(all, ipv6Of)])
  return all
}

/** The page of a daemon, whose host this machine's browser cannot reach: at a port of this machine, from its Unix socket. */
async function showPage({ host }: Member): Promise<string> {
  const server = createServer((browser) => {
    const daemon = connect(host.statusSocket)
    browser.pipe(daemon).pipe(browser)
    for (const [one, other] of [
      [browser, daemon],
      [daemon, browser],
    ] as const)
      one.on('error', () => {}).on('close', () => other.destroy())
  })
  await new Promise<void>((resolve, reject) => server.once('error', reject).listen(0, '127.0.0.1', resolve))
  const address = server.address()
  return `http://127.0.0.1:${typeof address === 'object' ? address?.port : ''}/`
}

async function sayPages(
  lab: Lab,
  members: readonly Member[],
  { command = 'status', envOf }: { readonly command?: string; readonly envOf?: Network['envOf'] } = {},
): Promise<void> {
  say(`\n  ${bold('The tool')} on each host:`)
  for (const member of members) say(`    ${toolOf(lab, member, envOf?.(member.host))} ${command}`)
  say(`\n  ${bold('The page')} of each host, for a browser:`)
  if (process.env['WEFT_UNPRIVILEGED']) {
    // The network of this process is its own, and no browser's.
    const [{ host } = { host: undefined }] = members
    say(
      `    socat TCP-LISTEN:8080,bind=127.0.0.1,fork UNIX-CONNECT:${host?.statusSocket} # then http://127.0.0.1:8080/`,
    )
    return
  }
  for (const member of members) say(`    ${member.host.name}   ${await showPage(member)}`)
}

/** Goes on until the demo ends: bursts to the second container, pings to the others. */
function makeTraffic([first, second, ...others]: readonly Member[]): void {
  if (!first || !second) return
  const inside = ({ host, pod }: Member, script: string): void =>
    void host.spawn(['ip', 'netns', 'exec', pod.namespace, 'sh', '-c', `${script} > /dev/null 2>&1`])
  inside(second, 'iperf3 -s')
  inside(first, `while sleep 2; do iperf3 -c ${second.pod.address} -t 6 -b 40M; done`)
  for (const { pod } of others) inside(first, `ping -q -i 0.1 -s 1200 ${pod.address}`)
}

/** The operator's tool as it is on that host: a command to type. */
function toolOf(lab: Lab, { host }: Member, env: Readonly<Record<string, string>> = {}): string {
  const path = join(lab.folder, host.name, 'weft')
  const own = { FLANNELD_STATUS_SOCKET: host.statusSocket, FLANNELD_SUBNET_FILE: host.subnetFile }
  const environment = Object.entries({ ...own, ...env })
    .map(([name, value]) => `${name}='${value}'`)
    .join(' ')
  const tool = `env ${environment} ${process.execPath} ${join(packageRoot, 'bin/weft')}`
  writeFileSync(path, `#!/bin/sh\nexec ${lab.enter(host.namespace)} ${tool} "$@"\n`, { mode: 0o755 })
  return path
}

/** Every Ctrl-C, not the first: npm passes on one that the terminal has already sent. */
const untilInterrupted = (): Promise<void> =>
  new Promise((resolve) => process.on('SIGINT', resolve).on('SIGTERM', resolve))

/** Breaks a network, for a person to find out what it is; Enter tells, and makes it green again. */
async function demoBroken(
  name: FaultName,
  { hosts, engine, underlay }: Pick<Wanted, 'hosts' | 'engine' | 'underlay'>,
): Promise<boolean> {
  const fault: Fault = FAULTS[name]
  say(`\n${bold('weft')}: ${hosts} hosts on this machine, each with a container\n`)
  const interrupted = untilInterrupted()
  const args = ['--engine', engine, '--probe-interval', String(PROBE_SECONDS)]
  const network = await step(`${hosts} hosts, on each a weftd and a container`, () =>
    openNetwork(fault, { hosts, args, underlay }),
  )
  const { lab, members, envOf } = network
  let isTold = false
  const tell = (): void => {
    if (!isTold) say(`\n  It was: ${bold(fault.title)}. ${fault.does}.\n  To make it green: ${fault.remedy}.\n`)
    isTold = true
  }
  const ways = waysOf(underlay)
  const work = async (): Promise<never> => {
    await step('every container reaches every other', () => Promise.all(ways.map((way) => reachAll(members, way))))
    const undo = await fault.make(network)
    say(
      `\n  Now something is ${bold('broken')}. Find out what, from another terminal: doctor, status, ping, explain, or the page.`,
    )
    await sayPages(lab, members, { command: 'doctor', envOf })
    say(`\n  ${bold('Enter')} tells what it is, and makes it green again. ${bold('Ctrl-C')} removes everything.`)
    await once(process.stdin, 'data')
    tell()
    await step('made green again: every container reaches every other', async () => {
      await undo()
      await Promise.all(
        members.flatMap(({ pod }, at) =>
          ways.map((way) => reach(pod.namespace, way(members.at(at - 1) as Member), GREEN_MS)),
        ),
      )
    })
    say(`\n  ${bold('Ctrl-C')} removes everything.`)
    return new Promise<never>(() => {})
  }
  try {
    await Promise.race([work(), interrupted])
    tell()
    return true
  } finally {
    await network.close()
    say(dim('\n  Everything is taken down.'))
  }
}

/** Names, so many to a line of the help. */
function inLines(names: readonly string[]): string {
  const lines = [names.slice(0, 8), names.slice(8)].map((some) => some.join(', '))
  return lines.join(',\n                 ')
}

/** Says which programs a fault needs and this machine lacks, and how they are had. */
function lackOf({ needs = [] }: Fault): string | undefined {
  const missing = NEEDS.filter((need) => needs.includes(need.name) && !isThere(need))
  return missing.length === 0 ? undefined : sayLack(missing)
}

async function demo({ hosts, engine, stay, isForPage, isEncrypted, underlay }: Wanted): Promise<boolean> {
  say(`\n${bold('weft')}: ${hosts} hosts on this machine, each with a container; leases in a directory\n`)
  const interrupted = untilInterrupted()
  const hasIpv6 = await hostsHaveIpv6()
  const ways = waysOf(underlay)
  const addressOf = ({ address, ipv6 }: Host): string => (underlay === 'ipv6' ? ipv6 : address)
  const lab = await step(`${hosts} hosts: network namespaces on one bridge`, () =>
    createLab({ hosts, families: hasIpv6 ? ['ipv4', 'ipv6'] : ['ipv4'] }),
  )
  // A page is of the first network, and the kernel's vxlan encrypts nothing.
  const wantsBoth = hasIpv6 && !isForPage && !isEncrypted && underlay === undefined
  const lacksVxlan = wantsBoth ? await whyNoVxlan() : undefined
  const bothBy = `of both families, by ${lacksVxlan ? 'host-gw' : 'kernel vxlan'}`
  try {
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    const encrypted = { Network: NETWORK, Backend: { Type: 'wireguard', DataPath: 'userspace' } }
    writeFileSync(join(leases, 'config'), isEncrypted ? JSON.stringify(encrypted) : udpConfig(underlay))

    const work = async (): Promise<boolean> => {
      const started = await step(
        `weftd on each: a lease out of ${NETWORK}, ${isEncrypted ? 'a key' : 'a tunnel'}`,
        async () => {
          const all = lab.hosts.map((host) => ({
            host,
            daemon: host.startDaemon({
              before: named(host.name),
              env: { WIREGUARD_KEY_FILE: join(dirname(host.subnetFile), 'wgkey') },
              args: ['--lease-dir', leases, '--engine', engine, '--probe-interval', String(PROBE_SECONDS)],
            }),
          }))
          await Promise.all(all.map(({ daemon }) => daemon.line(/flannel is ready/)))
          return all
        },
      )
      // The second network starts while the first is tried.
      const starting = wantsBoth ? startBoth(lab, lacksVxlan ? 'host-gw' : 'vxlan') : Promise.resolve([])
      starting.catch(() => {}) // its step tells
      const members = await step('a container behind each host', () =>
        Promise.all(
          started.map(async ({ host, daemon }): Promise<Member> => ({ host, daemon, pod: await host.startPod() })),
        ),
      )
      await step('every container reaches every other', () => Promise.all(ways.map((way) => reachAll(members, way))))
      const last = members.at(-1) as Member
      if (isForPage) {
        makeTraffic(members)
        await sayPages(lab, members)
        say(`\n  See it turn red:   kill -9 ${last.daemon.process.pid}   # the daemon of ${last.host.name}`)
        say(`\n  ${bold('Ctrl-C')} removes everything.`)
        return await new Promise<never>(() => {})
      }
      const dual = wantsBoth ? await step(`a second network, ${bothBy}`, () => starting) : []
      const [pings, dualPings] = await step('ping', () =>
        Promise.all([pingBy(members, ways), pingBy(dual, [ipv4Of, ipv6Of])]),
      )
      const [first, second] = members as [Member, Member]
      const complete = [...pings, ...dualPings].every(isComplete)
      const heard =
        isEncrypted && complete
          ? await step('somebody listens on the cable', () => eavesdrop(first.pod, second.pod, second.host))
          : undefined
      const speed = complete
        ? await step('TCP, through weft and beside it', async () => {
            const [host, pod] = await Promise.all([
              iperfServer((command) => second.host.spawn(command)),
              iperfServer((command) => second.host.spawn(['ip', 'netns', 'exec', second.pod.namespace, ...command])),
            ])
            const inside: number[][] = ways.map(() => [])
            const beside: number[] = []
            for (let round = 0; round < 3; round++) {
              for (const [at, way] of ways.entries())
                inside[at]?.push((await pod.run(first.pod.namespace, way(second), TCP_SECONDS)).bitsPerSecond)
              beside.push((await host.run(first.host.namespace, addressOf(second.host), TCP_SECONDS)).bitsPerSecond)
            }
            await Promise.all([host, pod].map((server) => server.stop()))
            return { inside: inside.map(median), beside: median(beside) }
          })
        : undefined

      say()
      if (underlay)
        say(
          `  Both families, in datagrams of ${bold(FAMILY_NAMES[underlay])} between the hosts. Ping by IPv4, by IPv6\n`,
        )
      table([
        ['host', 'address', ...(underlay ? ['IPv4', 'IPv6'] : ['subnet', 'container']), ...toEach(members)],
        ...members.map(({ host, pod }, from) => {
          const { gateway, ipv6Gateway = '' } = subnetOfEnv(host.subnetEnv())
          return [
            host.name,
            addressOf(host),
            networkOf(gateway),
            underlay ? networkOf(ipv6Gateway) : pod.address,
            ...members.map((_, to) => timesText(pings, from, to)),
          ]
        }),
      ])
      say()
      if (heard) {
        const { inside, cable } = heard
        say(
          `  ${bold('Who listens')}: ${first.host.name}'s container sends "${TEXT}" to ${second.host.name}'s, which sends it back\n`,
        )
        table([
          ['captured', 'packets', 'with the text', "with containers' addresses"],
          ['in the container', ...Object.values(inside).map(String)],
          [`on the cable, UDP 51820`, ...Object.values(cable).map(String)],
        ])
        say(
          `\n  ${isSecret(heard) ? green('✓ Nobody on the cable can read it.') : red('✗ It can be read on the cable.')}`,
        )
      } else if (wantsBoth) {
        say(
          `  ${bold('The second network')}, ${bothBy}${lacksVxlan ? dim(` (${lacksVxlan})`) : ''}. Ping by IPv4, by IPv6\n`,
        )
        table([
          ['host', 'IPv4', 'IPv6', ...toEach(dual)],
          ...dual.map(({ host, subnet }, from) => [
            host.name,
            networkOf(subnet.gateway),
            networkOf(subnet.ipv6Gateway ?? ''),
            ...dual.map((_, to) => timesText(dualPings, from, to)),
          ]),
        ])
      } else if (!isEncrypted && !underlay) say('  No second network of both families: IPv6 is off on this machine.')
      say()
      if (speed) {
        const { inside, beside } = speed
        const by = underlay ? ', by IPv4 and by IPv6' : ''
        const parts = inside.map((each) => `${Math.round((100 * each) / beside)}%`).join(' and ')
        say(`  TCP between containers, through weft   ${bold(inside.map(gigabits).join(', '))}${by}`)
        say(`  TCP between the hosts, without it      ${gigabits(beside)}   ${dim(`(${parts} of it; medians of 3)`)}`)
      } else {
        const all = [...members, ...dual]
        const causes = causesIn(all.map(({ daemon }) => daemon.lines))
        say(red(`  Some containers do not reach each other${causes.length > 0 ? ':' : '. The ends of the logs:'}`))
        for (const cause of causes) say(`    ${cause}`)
        if (causes.length === 0)
          for (const { host, daemon } of all) say(['', `  ${host.name}`, ...lastLines(daemon)].join('\n    '))
      }
      if (stay && complete) {
        say(`\n  Look around, from another terminal:`)
        say(`    ${lab.enter(first.pod.namespace)} ping ${second.pod.address}`)
        say(`    ${lab.enter(first.host.namespace)} ip -s address show dev ${isEncrypted ? 'flannel-wg' : 'flannel0'}`)
        say(`    cat ${first.host.subnetFile}`)
        say(`    tail -f ${first.daemon.logFile}`)
        say(`    ls ${join(leases, 'subnets')}`)
        await sayPages(lab, members)
        say(`\n  ${bold('Ctrl-C')} removes everything.`)
        await new Promise(() => {})
      }
      return complete && (!heard || isSecret(heard))
    }
    return await Promise.race([work(), interrupted.then(() => stay)])
  } finally {
    await lab.close()
    say(dim('\n  Everything is taken down.'))
  }
}

function readOptions() {
  try {
    return parseArgs({
      options: {
        once: { type: 'boolean', default: false },
        page: { type: 'boolean', default: false },
        broken: { type: 'string' },
        encrypted: { type: 'boolean', default: false },
        underlay: { type: 'string' },
        hosts: { type: 'string', default: '3' },
        engine: { type: 'string', default: 'native' },
        help: { type: 'boolean', default: false },
      },
    }).values
  } catch (error) {
    process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n\n${USAGE}`)
    process.exit(2)
  }
}

process.env['PATH'] = withSystemFolders(process.env['PATH'])
const values = readOptions()
const hosts = Number(values.hosts)
const broken = FAULT_NAMES.find((name) => name === values.broken)
const underlay = FAMILIES.find((family) => family === values.underlay)
if (values.help) {
  say(USAGE)
} else if (!Number.isInteger(hosts) || hosts < 2 || hosts > 20) {
  process.stderr.write(`--hosts is ${values.hosts}; give it 2 to 20\n`)
  process.exitCode = 2
} else if (!['native', 'dgram'].includes(values.engine)) {
  process.stderr.write(`--engine is ${values.engine}; give it native or dgram\n`)
  process.exitCode = 2
} else if (values.broken !== undefined && broken === undefined) {
  process.stderr.write(`--broken is ${values.broken}; give it ${FAULT_NAMES.join(', ')}\n`)
  process.exitCode = 2
} else if (broken !== undefined && lackOf(FAULTS[broken]) !== undefined) {
  process.stderr.write(`--broken ${broken}: ${lackOf(FAULTS[broken])}\n`)
  process.exitCode = 1
} else if (values.encrypted && (values.broken !== undefined || values.engine !== 'native')) {
  process.stderr.write('--encrypted goes neither with --broken nor with another engine than native\n')
  process.exitCode = 2
} else if (values.underlay !== undefined && underlay === undefined) {
  process.stderr.write(`--underlay is ${values.underlay}; give it ${FAMILIES.join(' or ')}\n`)
  process.exitCode = 2
} else if (underlay !== undefined && (values.encrypted || values.engine === 'dgram')) {
  process.stderr.write('--underlay goes neither with --encrypted nor with the dgram engine, which carries IPv4 alone\n')
  process.exitCode = 2
} else if ([values.once, values.page, values.broken].filter(Boolean).length > 1) {
  process.stderr.write('--once, --page and --broken exclude each other\n')
  process.exitCode = 2
} else {
  await becomeRoot()
  try {
    // Leaves at once: a step that was cut off by Ctrl-C may still wait for something.
    const { engine, once: isOnce, page, encrypted } = values
    if (underlay && !(await hostsHaveIpv6())) throw new Error('IPv6 is off on this machine: leave --underlay out')
    const isWell = broken
      ? await demoBroken(broken, { hosts, engine, underlay })
      : await demo({ hosts, engine, stay: !isOnce, isForPage: page, isEncrypted: encrypted, underlay })
    process.exit(isWell ? 0 : 1)
  } catch (error) {
    process.stderr.write(`\nweft demo: ${error instanceof Error ? error.message : String(error)}\n`)
    process.exit(1)
  }
}
