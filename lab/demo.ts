// demo.ts - `npm run demo`: simulates hosts on this machine. The hosts keep their leases in a directory, and their
// containers exchange packets.
//
// By default a second, dual-stack network uses the kernel's vxlan. Options make the first network dual-stack, encrypt
// it and show that captured packets cannot be read, or put a fault into it that the user can find with weft's tools.

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
import { eavesdrop, TEXT, type Captures } from './eavesdrop.ts'
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
  --page         no table: make some traffic, and print the addresses of the hosts' pages
  --broken WHAT  like --page, with a fault that you can look for as on your own hosts:
                 ${inLines(FAULT_NAMES)}
  --encrypted    encrypt with weft's own WireGuard, and capture the packets between the hosts
  --underlay     make a dual-stack network whose packets travel between the hosts over this family
  --hosts N      number of hosts, 2 to 20. Default: 3
  --engine       the engine that moves packets. Default: native
`
const NETWORK = '10.5.0.0/16'
const BOTH = { Network: '10.6.0.0/16', EnableIPv6: true, IPv6Network: 'fd00:6::/48' }
const TCP_SECONDS = 1
const REACH_MS = 10_000
/**
 * The time limit in ms until containers reach each other after a fault is undone. weftd retries a lost store at least
 * every 30 s.
 */
const GREEN_MS = 60_000
/**
 * The interval of weftd's probes in seconds. This interval is shorter than the default, so that weftd soon notices a
 * host whose weftd was killed.
 */
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
const print = (text = ''): void => void process.stdout.write(`${text}\n`)

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
  /** True if the demo keeps the hosts running until Ctrl-C; false if it ends after the measurements. */
  readonly stay: boolean
  readonly isForPage: boolean
  readonly isEncrypted: boolean
  readonly underlay: Family | undefined
}

interface DualMember extends Member {
  readonly subnet: Subnet
}

/**
 * Returns the functions with which the demo gets the addresses of a container: one for IPv4 or, in a dual-stack
 * network, one for IPv4 and one for IPv6.
 */
const waysOf = (underlay: Family | undefined) => (underlay === undefined ? [ipv4Of] : [ipv4Of, ipv6Of])

function table(rows: readonly (readonly string[])[]): void {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => (row[column] ?? '').length)))
  rows.forEach((row, index) => {
    const line = row
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join('   ')
      .trimEnd()
    print(`  ${index === 0 ? bold(line) : line}`)
  })
}

const toEach = (members: readonly Member[]): string[] => members.map(({ host }) => `to ${host.name}`)

function gigabits(bitsPerSecond: number): string {
  return `${(bitsPerSecond / 1e9).toFixed(bitsPerSecond < 1e9 ? 2 : 1)} Gbit/s`
}

const ipv4Of = ({ pod }: Member): string => pod.address
const ipv6Of = ({ pod }: Member): string => pod.ipv6 ?? ''

/**
 * Waits until every container reaches every other container, or until the time limit has passed. Does not fail at the
 * time limit, because the demo then prints a table that shows which pairs of containers fail.
 */
async function reachAll(members: readonly Member[], addressOf: (to: Member) => string): Promise<void> {
  const pairs = members.flatMap((from) => members.filter((to) => to !== from).map((to) => ({ from, to })))
  await Promise.allSettled(pairs.map(({ from, to }) => reach(from.pod.namespace, addressOf(to), REACH_MS)))
}

/**
 * The median round-trip times in ms. The first index is the number of the sending container, the second the number of
 * the pinged container. Undefined if no ping was answered.
 */
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

const pingBy = (members: readonly Member[], ways: readonly ((to: Member) => string)[]): Promise<readonly Pings[]> =>
  Promise.all(ways.map((way) => pingAll(members, way)))

function timesText(pings: readonly Pings[], from: number, to: number): string {
  if (from === to) return '-'
  const times = pings.map((by) => by[from]?.[to])
  if (times.length === 1) return milliseconds(times[0])
  if (times.every((time) => time === undefined)) return milliseconds(undefined)
  if (times.includes(undefined)) return times.map(milliseconds).join(', ')
  return `${times.map((time) => time?.toFixed(2)).join(', ')} ms`
}

/**
 * True if every packet inside the tunnel has the known text, and no packet on the cable shows the text or the
 * containers' addresses.
 */
const isSecret = ({ inside, cable }: Captures): boolean =>
  inside.withText === inside.packets && cable.withText + cable.withAddresses === 0

const isComplete = (pings: Pings): boolean =>
  pings.every((row, from) => row.every((time, to) => from === to || time !== undefined))
const milliseconds = (time: number | undefined): string => (time === undefined ? 'no answer' : `${time.toFixed(2)} ms`)

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

/**
 * Serves the status page of a weftd at a TCP port of this machine and returns the URL. weftd's own socket is in a
 * network namespace that a browser cannot reach.
 */
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

async function printPages(
  lab: Lab,
  members: readonly Member[],
  { command = 'status', envOf }: { readonly command?: string; readonly envOf?: Network['envOf'] } = {},
): Promise<void> {
  print(`\n  ${bold('The tool')} on each host:`)
  for (const member of members) print(`    ${toolOf(lab, member, envOf?.(member.host))} ${command}`)
  print(`\n  ${bold('The page')} of each host, for a browser:`)
  if (process.env['WEFT_UNPRIVILEGED']) {
    // Print a command instead of a URL, because this process is in its own network namespace, which a browser cannot
    // reach.
    const [{ host } = { host: undefined }] = members
    print(
      `    socat TCP-LISTEN:8080,bind=127.0.0.1,fork UNIX-CONNECT:${host?.statusSocket} # then http://127.0.0.1:8080/`,
    )
    return
  }
  for (const member of members) print(`    ${member.host.name}   ${await showPage(member)}`)
}

function makeTraffic([first, second, ...others]: readonly Member[]): void {
  if (!first || !second) return
  const inside = ({ host, pod }: Member, script: string): void =>
    void host.spawn(['ip', 'netns', 'exec', pod.namespace, 'sh', '-c', `${script} > /dev/null 2>&1`])
  inside(second, 'iperf3 -s')
  inside(first, `while sleep 2; do iperf3 -c ${second.pod.address} -t 6 -b 40M; done`)
  for (const { pod } of others) inside(first, `ping -q -i 0.1 -s 1200 ${pod.address}`)
}

/**
 * Writes a script that runs `weft` on a simulated host. Returns the path of the script, which the user can type as a
 * command.
 */
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

/**
 * Resolves at Ctrl-C. The handlers stay installed, because the process gets SIGINT twice, from the terminal and from
 * npm. Without a handler the second signal would kill the process.
 */
const untilInterrupted = (): Promise<void> =>
  new Promise((resolve) => process.on('SIGINT', resolve).on('SIGTERM', resolve))

/**
 * Makes a fault that the user can search for. When the user presses Enter, the demo explains the fault and undoes it.
 */
async function demoBroken(
  name: FaultName,
  { hosts, engine, underlay }: Pick<Wanted, 'hosts' | 'engine' | 'underlay'>,
): Promise<boolean> {
  const fault: Fault = FAULTS[name]
  print(`\n${bold('weft')}: ${hosts} hosts on this machine, each with a container\n`)
  const interrupted = untilInterrupted()
  const args = ['--engine', engine, '--probe-interval', String(PROBE_SECONDS)]
  const network = await step(`${hosts} hosts, on each a weftd and a container`, () =>
    openNetwork(fault, { hosts, args, underlay }),
  )
  const { lab, members, envOf } = network
  let isExplained = false
  const explain = (): void => {
    if (!isExplained) print(`\n  The fault: ${bold(fault.title)}. ${fault.does}.\n  The remedy: ${fault.remedy}.\n`)
    isExplained = true
  }
  const ways = waysOf(underlay)
  const work = async (): Promise<never> => {
    await step('every container reaches every other', () => Promise.all(ways.map((way) => reachAll(members, way))))
    const undo = await fault.make(network)
    print(
      `\n  The network is now ${bold('broken')}. Find the fault from another terminal: doctor, status, ping, explain, or the page.`,
    )
    await printPages(lab, members, { command: 'doctor', envOf })
    print(`\n  ${bold('Enter')} explains the fault and undoes it. ${bold('Ctrl-C')} removes everything.`)
    await once(process.stdin, 'data')
    explain()
    await step('repaired: every container reaches every other', async () => {
      await undo()
      await Promise.all(
        members.flatMap(({ pod }, at) =>
          ways.map((way) => reach(pod.namespace, way(members.at(at - 1) as Member), GREEN_MS)),
        ),
      )
    })
    print(`\n  ${bold('Ctrl-C')} removes everything.`)
    return new Promise<never>(() => {})
  }
  try {
    await Promise.race([work(), interrupted])
    explain()
    return true
  } finally {
    await network.close()
    print(dim('\n  All hosts are removed.'))
  }
}

function inLines(names: readonly string[]): string {
  const lines = [names.slice(0, 8), names.slice(8)].map((some) => some.join(', '))
  return lines.join(',\n                 ')
}

/**
 * Returns a message with the programs that the fault needs and this machine lacks, and how to install them; undefined
 * if all are installed.
 */
function lackOf({ needs = [] }: Fault): string | undefined {
  const missing = NEEDS.filter((need) => needs.includes(need.name) && !isThere(need))
  return missing.length === 0 ? undefined : sayLack(missing)
}

async function demo({ hosts, engine, stay, isForPage, isEncrypted, underlay }: Wanted): Promise<boolean> {
  print(`\n${bold('weft')}: ${hosts} hosts on this machine, each with a container; leases are in a directory\n`)
  const interrupted = untilInterrupted()
  const hasIpv6 = await hostsHaveIpv6()
  const ways = waysOf(underlay)
  const addressOf = ({ address, ipv6 }: Host): string => (underlay === 'ipv6' ? ipv6 : address)
  const lab = await step(`${hosts} hosts: network namespaces on one bridge`, () =>
    createLab({ hosts, families: hasIpv6 ? ['ipv4', 'ipv6'] : ['ipv4'] }),
  )
  // Leave out the second network if the demo shows status pages, which belong to the first network, or encryption,
  // which the kernel's vxlan lacks.
  const wantsBoth = hasIpv6 && !isForPage && !isEncrypted && underlay === undefined
  const lacksVxlan = wantsBoth ? await whyNoVxlan() : undefined
  const bothBy = `dual-stack, with ${lacksVxlan ? 'host-gw' : 'kernel vxlan'}`
  try {
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    const encrypted = { Network: NETWORK, Backend: { Type: 'wireguard', DataPath: 'userspace' } }
    writeFileSync(join(leases, 'config'), isEncrypted ? JSON.stringify(encrypted) : udpConfig(underlay))

    const work = async (): Promise<boolean> => {
      const started = await step(
        `weftd on each: a lease from ${NETWORK}, ${isEncrypted ? 'a key' : 'a tunnel'}`,
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
      // Start the weftds of the second network now, and in the meantime wait until the containers of the first network
      // reach each other.
      const starting = wantsBoth ? startBoth(lab, lacksVxlan ? 'host-gw' : 'vxlan') : Promise.resolve([])
      starting.catch(() => {}) // the step of the second network reports the error
      const members = await step('a container behind each host', () =>
        Promise.all(
          started.map(async ({ host, daemon }): Promise<Member> => ({ host, daemon, pod: await host.startPod() })),
        ),
      )
      await step('every container reaches every other', () => Promise.all(ways.map((way) => reachAll(members, way))))
      const last = members.at(-1) as Member
      if (isForPage) {
        makeTraffic(members)
        await printPages(lab, members)
        print(`\n  To see the page turn red:   kill -9 ${last.daemon.process.pid}   # the daemon of ${last.host.name}`)
        print(`\n  ${bold('Ctrl-C')} removes everything.`)
        return await new Promise<never>(() => {})
      }
      const dual = wantsBoth ? await step(`a second network, ${bothBy}`, () => starting) : []
      const [pings, dualPings] = await step('ping', () =>
        Promise.all([pingBy(members, ways), pingBy(dual, [ipv4Of, ipv6Of])]),
      )
      const [first, second] = members as [Member, Member]
      const complete = [...pings, ...dualPings].every(isComplete)
      const captures =
        isEncrypted && complete
          ? await step('capture the packets on the cable', () => eavesdrop(first.pod, second.pod, second.host))
          : undefined
      const speed = complete
        ? await step('TCP, through weft and without it', async () => {
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

      print()
      if (underlay) print(`  A dual-stack network over ${bold(FAMILY_NAMES[underlay])}. Ping over IPv4, IPv6\n`)
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
      print()
      if (captures) {
        const { inside, cable } = captures
        print(
          `  ${bold('Captured packets')}: ${first.host.name}'s container sends "${TEXT}" to ${second.host.name}'s, which sends it back\n`,
        )
        table([
          ['captured', 'packets', 'with the text', "with containers' addresses"],
          ['in the container', ...Object.values(inside).map(String)],
          [`on the cable, UDP 51820`, ...Object.values(cable).map(String)],
        ])
        print(
          `\n  ${isSecret(captures) ? green('✓ No packet on the cable shows the text.') : red('✗ Packets on the cable show the text.')}`,
        )
      } else if (wantsBoth) {
        print(
          `  ${bold('The second network')}, ${bothBy}${lacksVxlan ? dim(` (${lacksVxlan})`) : ''}. Ping over IPv4, IPv6\n`,
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
      } else if (!isEncrypted && !underlay)
        print('  There is no second, dual-stack network: IPv6 is off on this machine.')
      print()
      if (speed) {
        const { inside, beside } = speed
        const by = underlay ? ', over IPv4 and IPv6' : ''
        const parts = inside.map((each) => `${Math.round((100 * each) / beside)}%`).join(' and ')
        print(`  TCP between containers, through weft   ${bold(inside.map(gigabits).join(', '))}${by}`)
        print(
          `  TCP between the hosts, without weft    ${gigabits(beside)}   ${dim(`(${parts} through weft; medians of 3)`)}`,
        )
      } else {
        const all = [...members, ...dual]
        const causes = causesIn(all.map(({ daemon }) => daemon.lines))
        print(
          red(`  Some containers do not reach each other${causes.length > 0 ? ':' : '. The last lines of the logs:'}`),
        )
        for (const cause of causes) print(`    ${cause}`)
        if (causes.length === 0)
          for (const { host, daemon } of all) print(['', `  ${host.name}`, ...lastLines(daemon)].join('\n    '))
      }
      if (stay && complete) {
        print(`\n  Commands for another terminal:`)
        print(`    ${lab.enter(first.pod.namespace)} ping ${second.pod.address}`)
        print(
          `    ${lab.enter(first.host.namespace)} ip -s address show dev ${isEncrypted ? 'flannel-wg' : 'flannel0'}`,
        )
        print(`    cat ${first.host.subnetFile}`)
        print(`    tail -f ${first.daemon.logFile}`)
        print(`    ls ${join(leases, 'subnets')}`)
        await printPages(lab, members)
        print(`\n  ${bold('Ctrl-C')} removes everything.`)
        await new Promise(() => {})
      }
      return complete && (!captures || isSecret(captures))
    }
    return await Promise.race([work(), interrupted.then(() => stay)])
  } finally {
    await lab.close()
    print(dim('\n  All hosts are removed.'))
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
  print(USAGE)
} else if (!Number.isInteger(hosts) || hosts < 2 || hosts > 20) {
  process.stderr.write(`--hosts is ${values.hosts}; the number must be from 2 to 20\n`)
  process.exitCode = 2
} else if (!['native', 'dgram'].includes(values.engine)) {
  process.stderr.write(`--engine is ${values.engine}; give it native or dgram\n`)
  process.exitCode = 2
} else if (values.broken !== undefined && broken === undefined) {
  process.stderr.write(`--broken is ${values.broken}; it must be one of ${FAULT_NAMES.join(', ')}\n`)
  process.exitCode = 2
} else if (broken !== undefined && lackOf(FAULTS[broken]) !== undefined) {
  process.stderr.write(`--broken ${broken}: ${lackOf(FAULTS[broken])}\n`)
  process.exitCode = 1
} else if (values.encrypted && (values.broken !== undefined || values.engine !== 'native')) {
  process.stderr.write('--encrypted excludes --broken, and needs the engine native\n')
  process.exitCode = 2
} else if (values.underlay !== undefined && underlay === undefined) {
  process.stderr.write(`--underlay is ${values.underlay}; it must be ${FAMILIES.join(' or ')}\n`)
  process.exitCode = 2
} else if (underlay !== undefined && (values.encrypted || values.engine === 'dgram')) {
  process.stderr.write('--underlay excludes --encrypted, and the engine dgram, which carries IPv4 alone\n')
  process.exitCode = 2
} else if ([values.once, values.page, values.broken].filter(Boolean).length > 1) {
  process.stderr.write('--once, --page and --broken exclude each other\n')
  process.exitCode = 2
} else {
  await becomeRoot()
  try {
    // A step that Ctrl-C interrupted may still be waiting and would keep the process alive, so the demo ends with
    // process.exit.
    const { engine, once: isOnce, page, encrypted } = values
    if (underlay && !(await hostsHaveIpv6())) throw new Error('IPv6 is off on this machine; omit --underlay')
    const isWell = broken
      ? await demoBroken(broken, { hosts, engine, underlay })
      : await demo({ hosts, engine, stay: !isOnce, isForPage: page, isEncrypted: encrypted, underlay })
    process.exit(isWell ? 0 : 1)
  } catch (error) {
    process.stderr.write(`\nweft demo: ${error instanceof Error ? error.message : String(error)}\n`)
    process.exit(1)
  }
}
