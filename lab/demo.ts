// demo.ts - `npm run demo`: hosts on this machine lease subnets from a directory, and their containers talk; or do not, to see how
// weft says why.

import { mkdirSync, writeFileSync } from 'node:fs'
import { connect, createServer } from 'node:net'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { createLab, lastLines, named, packageRoot, type Daemon, type Host, type Lab, type Pod } from './lab.ts'
import { iperfServer, median, ping, reach } from './measure.ts'
import { becomeRoot } from './unprivileged.ts'

const USAGE = `Usage: npm run demo -- [--once | --page | --broken WHAT] [--hosts N] [--engine native|dgram|naive]

  --once         end after the table instead of waiting for Ctrl-C
  --page         no table: hosts with some traffic, and the addresses of their pages to look at
  --broken WHAT  the same with something broken: peer, port or mtu; find it as you would on hosts of your own
  --hosts N      how many hosts, 2 to 20 (3)
  --engine       the data path (native)
`
const NETWORK = '10.5.0.0/16'
const TCP_SECONDS = 1
/** How long a pair is tried that is not there yet. */
const REACH_MS = 10_000
/** What `--broken` does to the last host. */
const BREAKS: Readonly<Record<string, (last: Member) => Promise<unknown>>> = {
  peer: ({ daemon }) => daemon.stop('SIGKILL'),
  port: ({ host }) => host.output(['iptables', '-A', 'INPUT', '-p', 'udp', '--dport', '8285', '-j', 'DROP']),
  mtu: ({ host }) => host.output(['ip', 'link', 'set', 'eth0', 'mtu', '1400']),
}
/** So that a peer that is killed is soon seen. */
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
  /** Whether all stays up until Ctrl-C. */
  readonly stay: boolean
  readonly isForPage: boolean
  /** One of BREAKS. */
  readonly broken: string | undefined
}

interface Member {
  readonly host: Host
  readonly daemon: Daemon
  readonly pod: Pod
}

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

function gigabits(bitsPerSecond: number): string {
  return `${(bitsPerSecond / 1e9).toFixed(bitsPerSecond < 1e9 ? 2 : 1)} Gbit/s`
}

/** Median ping of every pair in ms; undefined where nothing came back. */
async function pingAll(members: readonly Member[]): Promise<(number | undefined)[][]> {
  return Promise.all(
    members.map((from) =>
      Promise.all(
        members.map(async (to) => {
          if (from === to) return undefined
          const times = await ping(from.pod.namespace, to.pod.address)
          return times.length === 0 ? undefined : median(times)
        }),
      ),
    ),
  )
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

async function sayPages(lab: Lab, members: readonly Member[], command = 'status'): Promise<void> {
  say(`\n  ${bold('The tool')} on each host:`)
  for (const member of members) say(`    ${toolOf(lab, member)} ${command}`)
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
function toolOf(lab: Lab, { host }: Member): string {
  const path = join(lab.folder, host.name, 'weft')
  const environment = `FLANNELD_STATUS_SOCKET=${host.statusSocket} FLANNELD_SUBNET_FILE=${host.subnetFile}`
  const tool = `env ${environment} ${process.execPath} ${join(packageRoot, 'bin/weft')}`
  writeFileSync(path, `#!/bin/sh\nexec ${lab.enter(host.namespace)} ${tool} "$@"\n`, { mode: 0o755 })
  return path
}

async function demo({ hosts, engine, stay, isForPage, broken }: Wanted): Promise<boolean> {
  say(`\n${bold('weft')}: ${hosts} hosts on this machine, each with a container; leases in a directory\n`)
  // Every one of them, not the first: npm passes on a Ctrl-C that the terminal has already sent.
  const interrupted = new Promise<void>((resolve) => process.on('SIGINT', resolve).on('SIGTERM', resolve))
  const lab = await step(`${hosts} hosts: network namespaces on one bridge`, () => createLab({ hosts }))
  try {
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    writeFileSync(join(leases, 'config'), JSON.stringify({ Network: NETWORK, Backend: { Type: 'udp' } }))

    const work = async (): Promise<boolean> => {
      const started = await step(`weftd on each: a lease out of ${NETWORK}, a tunnel`, async () => {
        const all = lab.hosts.map((host) => ({
          host,
          daemon: host.startDaemon({
            before: named(host.name),
            args: ['--lease-dir', leases, '--engine', engine, '--probe-interval', String(PROBE_SECONDS)],
          }),
        }))
        await Promise.all(all.map(({ daemon }) => daemon.line(/flannel is ready/)))
        return all
      })
      const members = await step('a container behind each host', () =>
        Promise.all(
          started.map(async ({ host, daemon }): Promise<Member> => ({ host, daemon, pod: await host.startPod() })),
        ),
      )
      await step('every container reaches every other', async () => {
        const pairs = members.flatMap((from) => members.filter((to) => to !== from).map((to) => ({ from, to })))
        // A pair that does not is shown in the table below.
        await Promise.allSettled(pairs.map(({ from, to }) => reach(from.pod.namespace, to.pod.address, REACH_MS)))
      })
      const last = members.at(-1) as Member
      if (broken !== undefined) {
        await BREAKS[broken]?.(last)
        say(
          `\n  Now something is ${bold('broken')}. Find out what, from another terminal: doctor, status, ping, explain, or the page.`,
        )
        await sayPages(lab, members, 'doctor')
        say(`\n  ${bold('Ctrl-C')} takes everything down.`)
        return await new Promise<never>(() => {})
      }
      if (isForPage) {
        makeTraffic(members)
        await sayPages(lab, members)
        say(`\n  See it turn red:   kill -9 ${last.daemon.process.pid}   # the daemon of ${last.host.name}`)
        say(`\n  ${bold('Ctrl-C')} takes everything down.`)
        return await new Promise<never>(() => {})
      }
      const pings = await step('ping', () => pingAll(members))
      const [first, second] = members as [Member, Member]
      const complete = pings.every((row, from) => row.every((time, to) => from === to || time !== undefined))
      const speed = complete
        ? await step('TCP, through weft and beside it', async () => {
            const [host, pod] = await Promise.all([
              iperfServer((command) => second.host.spawn(command)),
              iperfServer((command) => second.host.spawn(['ip', 'netns', 'exec', second.pod.namespace, ...command])),
            ])
            const overlay: number[] = []
            const underlay: number[] = []
            for (let round = 0; round < 3; round++) {
              overlay.push((await pod.run(first.pod.namespace, second.pod.address, TCP_SECONDS)).bitsPerSecond)
              underlay.push((await host.run(first.host.namespace, second.host.address, TCP_SECONDS)).bitsPerSecond)
            }
            await Promise.all([host, pod].map((server) => server.stop()))
            return { overlay: median(overlay), underlay: median(underlay) }
          })
        : undefined

      say()
      table([
        ['host', 'address', 'subnet', 'container', ...members.map(({ host }) => `to ${host.name}`)],
        ...members.map(({ host, pod }, from) => [
          host.name,
          host.address,
          (host.subnetEnv()['FLANNEL_SUBNET'] ?? '').replace(/\.1\//, '.0/'),
          pod.address,
          ...members.map((_, to) => {
            const time = pings[from]?.[to]
            return from === to ? '-' : time === undefined ? 'NO ANSWER' : `${time.toFixed(2)} ms`
          }),
        ]),
      ])
      say()
      if (speed) {
        say(`  TCP between containers, through weft   ${bold(gigabits(speed.overlay))}`)
        say(
          `  TCP between the hosts, without it      ${gigabits(speed.underlay)}   ${dim(`(${Math.round((100 * speed.overlay) / speed.underlay)}% of it; medians of 3)`)}`,
        )
      } else {
        say(red('  Some containers do not reach each other. The ends of the logs:'))
        for (const { host, daemon } of members) say(['', `  ${host.name}`, ...lastLines(daemon)].join('\n    '))
      }
      if (stay && complete) {
        say(`\n  Look around, from another terminal:`)
        say(`    ${lab.enter(first.pod.namespace)} ping ${second.pod.address}`)
        say(`    ${lab.enter(first.host.namespace)} ip -s address show dev flannel0`)
        say(`    cat ${first.host.subnetFile}`)
        say(`    tail -f ${first.daemon.logFile}`)
        say(`    ls ${join(leases, 'subnets')}`)
        await sayPages(lab, members)
        say(`\n  ${bold('Ctrl-C')} takes everything down.`)
        await new Promise(() => {})
      }
      return complete
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

const values = readOptions()
const hosts = Number(values.hosts)
if (values.help) {
  say(USAGE)
} else if (!Number.isInteger(hosts) || hosts < 2 || hosts > 20) {
  process.stderr.write(`--hosts is ${values.hosts}; give it 2 to 20\n`)
  process.exitCode = 2
} else if (!['native', 'dgram', 'naive'].includes(values.engine)) {
  process.stderr.write(`--engine is ${values.engine}; give it native, dgram or naive\n`)
  process.exitCode = 2
} else if (values.broken !== undefined && !Object.keys(BREAKS).includes(values.broken)) {
  process.stderr.write(`--broken is ${values.broken}; give it ${Object.keys(BREAKS).join(', ')}\n`)
  process.exitCode = 2
} else if ([values.once, values.page, values.broken].filter(Boolean).length > 1) {
  process.stderr.write('--once, --page and --broken exclude each other\n')
  process.exitCode = 2
} else {
  await becomeRoot()
  try {
    // Leaves at once: a step that was cut off by Ctrl-C may still wait for something.
    const { engine, once, page, broken } = values
    process.exit((await demo({ hosts, engine, stay: !once, isForPage: page, broken })) ? 0 : 1)
  } catch (error) {
    process.stderr.write(`\nweft demo: ${error instanceof Error ? error.message : String(error)}\n`)
    process.exit(1)
  }
}
