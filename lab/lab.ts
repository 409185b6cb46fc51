// lab.ts - simulates hosts with network namespaces on one machine. Each host can run weftd and have containers.
// - The switch is a namespace with a bridge, the underlay 192.168.77.0/24.
// - Host N is a namespace with eth0 192.168.77.N on that bridge, and with its own weftd, subnet.env and log.
// - A pod is a container of a host: a namespace behind the bridge cni0, with an address of the host's subnet.
//
// All names of namespaces and folders begin with the lab's id, which contains the pid and the start time of the process
// that made the lab. That process removes the lab when the process ends. If the process was killed, the next lab
// removes the remains, which it recognises by the id.

import { spawn, type ChildProcess } from 'node:child_process'
import {
  createWriteStream,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { formatNet, netAround, parseAddress, type Family } from '../src/net/address.ts'
import { formatIpv4, parseIpv4 } from '../src/net/ipv4.ts'
import { formatIpv6, parseIpv6 } from '../src/net/ipv6.ts'
import { ended, execute, executeSync, output, PATIENCE, type Finished } from './command.ts'

/**
 * The top folder of the package. lab.ts may run as lab/lab.ts or as dist/lab/lab.js, so the code searches for the
 * folder from this file upwards.
 */
export const packageRoot = (() => {
  let folder = dirname(fileURLToPath(import.meta.url))
  while (!existsSync(join(folder, 'binding.gyp'))) folder = dirname(folder)
  return folder
})()

/**
 * The time limit for an event in a lab, in ms, such as a line in weftd's log. The limit is long because some machines
 * are slow.
 */
export const EVENT_MS = 60_000 * PATIENCE

/**
 * A command prefix (`DaemonArgs.before`) for a weftd that needs a WireGuard device. If the kernel has no WireGuard, the
 * program wireguard-go makes the device (see wireguard-go.ts). The prefix gives each host its own folder for the socket
 * of wireguard-go, because the socket has the name of the device, which is the same on all hosts.
 */
export const WIREGUARD_APART: readonly string[] = [
  'unshare',
  '--mount',
  'sh',
  '-c',
  'mkdir -p /var/run/wireguard && mount -t tmpfs tmpfs /var/run/wireguard && NODE_OPTIONS="--import=$0" exec "$@"',
  join(packageRoot, 'dist/lab/wireguard-go.js'),
]

/**
 * Returns a command prefix (`DaemonArgs.before`) that runs weftd in its own UTS namespace with the host name `name`.
 */
export const named = (name: string): readonly string[] => [
  'unshare',
  '--uts',
  'sh',
  '-c',
  'hostname "$0"; exec "$@"',
  name,
]

/**
 * Returns true if simulated hosts can use IPv6; false if the kernel has no IPv6 or disables it in new network
 * namespaces.
 */
export async function hostsHaveIpv6(): Promise<boolean> {
  const { stdout } = await execute('unshare --net cat /proc/sys/net/ipv6/conf/default/disable_ipv6'.split(' '))
  return stdout.trim() === '0'
}

/** Returns the error message of `ip` if the kernel cannot make vxlan devices; undefined if it can. */
export async function whyNoVxlan(): Promise<string | undefined> {
  const { code, stderr } = await execute('unshare --net ip link add probe type vxlan id 1 dstport 8472'.split(' '))
  return code === 0 ? undefined : `no vxlan in the kernel: ${stderr.trim()}`
}

/**
 * The address of the simulated switch in the underlay. The switch is also the default router of the hosts, but forwards
 * to no other network.
 */
export const SWITCH_ADDRESS = '192.168.77.254'

const PREFIX = 'weft-'
const NAMESPACE_FOLDER = '/run/netns'

/**
 * Returns the start time of a process in clock ticks since boot (proc(5), field 22 of stat); undefined if the process
 * does not exist.
 */
function startTime(pid: number): string | undefined {
  try {
    return readFileSync(`/proc/${pid}/stat`, 'utf8')
      .replace(/^.*\) /, '')
      .split(' ')[19]
  } catch {
    return undefined
  }
}

let labCount = 0

export interface Daemon {
  readonly process: ChildProcess
  readonly logFile: string
  readonly lines: readonly string[]
  /**
   * Resolves with the first log line that matches `pattern`, including lines already logged. Rejects when weftd ends or
   * after `timeoutMs`.
   */
  line(pattern: RegExp, timeoutMs?: number): Promise<string>
  /** Sends `signal`, by default SIGTERM. Resolves with the exit code, or the signal that ended the process. */
  stop(signal?: NodeJS.Signals): Promise<number | NodeJS.Signals | null>
}

export interface DaemonArgs {
  /**
   * The name of the network, if this is an additional weftd on the host. The files of an additional weftd are in a
   * folder with this name.
   */
  readonly network?: string
  /** The flags for weftd, without the flags that the lab adds itself: --subnet-file and the flags in `iface`. */
  readonly args: readonly string[]
  readonly iface?: readonly string[]
  readonly env?: Readonly<Record<string, string>>
  /**
   * The path of a FIFO that delays the start of weftd until another process opens the FIFO for writing, so that several
   * weftds start together. Before that the log gets the line `waiting`.
   */
  readonly gate?: string
  /** A command prefix, such as `setpriv` with its arguments, that the lab puts before weftd's command line. */
  readonly before?: readonly string[]
  readonly checkout?: string
}

export interface Place {
  readonly namespace: string
  run(command: readonly string[], options?: { timeoutMs?: number; input?: string }): Promise<Finished>
  output(command: readonly string[], options?: { timeoutMs?: number; input?: string }): Promise<string>
  /** Starts a program in the network namespace. The lab kills the program when the lab is closed. */
  spawn(command: readonly string[], options?: { stdin?: boolean }): ChildProcess
}

export interface Pod extends Place {
  /** The container's IPv4 address; empty if the host's subnet has no IPv4. */
  readonly address: string
  readonly ipv6?: string
}

/** The subnet of a host, with the values that weftd wrote to subnet.env. */
export interface Subnet {
  /**
   * The IPv4 address of the containers' bridge and the prefix length, such as `10.5.1.1/24`; empty if the subnet has no
   * IPv4.
   */
  readonly gateway: string
  /**
   * The IPv6 address of the containers' bridge and the prefix length, such as `fd00:5:0:1::1/64`; undefined if the
   * subnet has no IPv6.
   */
  readonly ipv6Gateway?: string | undefined
  readonly mtu: string
  /** The name of the bridge to which the containers are attached, by default cni0. */
  readonly bridge?: string
}

/** Returns the network that contains an IPv4 or IPv6 address with prefix length: `10.5.1.0/24` for `10.5.1.1/24`. */
export function networkOf(gateway: string): string {
  const [address = '', length] = gateway.split('/')
  return formatNet(netAround(parseAddress(address) ?? 0, Number(length)))
}

export const subnetOfEnv = ({
  FLANNEL_SUBNET = '',
  FLANNEL_IPV6_SUBNET,
  FLANNEL_MTU = '',
}: Readonly<Record<string, string>>): Subnet => ({
  gateway: FLANNEL_SUBNET,
  ipv6Gateway: FLANNEL_IPV6_SUBNET,
  mtu: FLANNEL_MTU,
})

export interface Host extends Place {
  readonly name: string
  readonly address: string
  readonly ipv6: string
  readonly subnetFile: string
  readonly statusSocket: string
  startDaemon(options: DaemonArgs): Daemon
  /** Returns the values of the host's subnet.env, or of the corresponding file of the additional network `network`. */
  subnetEnv(network?: string): Readonly<Record<string, string>>
  /**
   * Makes a container. Its address is from `subnet`, by default the subnet in subnet.env, which weftd must have
   * written.
   */
  startPod(subnet?: Subnet): Promise<Pod>
}

export interface Lab {
  readonly id: string
  readonly hosts: readonly Host[]
  /**
   * The network namespace of the switch, with the underlay's bridge br0 and the address SWITCH_ADDRESS. The bridge's
   * port h1 leads to host1.
   */
  readonly switch: Place
  readonly folder: string
  /** Returns a command prefix with which a user can run a command in the namespace `namespace` of the lab. */
  enter(namespace: string): string
  /**
   * Gives a name to a network namespace that another program, such as a container runtime, has made, so that the lab
   * can run commands in the namespace. `path` is the namespace's file. The lab removes the name when the lab is closed.
   */
  adopt(name: string, path: string): Promise<Place>
  /**
   * Makes a folder in the lab and mounts a tmpfs with a limited size, such as '1m', on it. Returns the folder's path.
   */
  mountMemory(name: string, size: string): Promise<string>
  /**
   * Returns a text that helps to explain a failure: each host's links, addresses and routes, and the end of each
   * weftd's log.
   */
  describe(): Promise<string>
  /** Removes the lab's namespaces and folder, and ends its programs. A second call does nothing. */
  close(): Promise<void>
}

/**
 * The open labs of this process. A lab calls `beforeClose` before it removes its hosts, so that a test can report the
 * state after a failure.
 */
export const labs = { open: new Set<Lab>(), beforeClose: async (_lab: Lab): Promise<void> => {} }

interface LabOptions {
  readonly hosts: number
  readonly mtu?: number
  /**
   * How the hosts are connected: `bridge` connects them through the switch; `veth` connects two hosts directly, for
   * measurements.
   */
  readonly underlay?: 'bridge' | 'veth'
  /** The IP families of the underlay's addresses and default routes, by default IPv4 only. */
  readonly families?: readonly Family[]
}

/** Removes the namespaces and folders of labs whose process has ended without removing them. */
function removeLeftovers(): void {
  const gone = (id: string): boolean => {
    const match = /^weft-(\d+)-(\d+)/.exec(id)
    return match !== null && startTime(Number(match[1])) !== match[2]
  }
  const names = existsSync(NAMESPACE_FOLDER) ? readdirSync(NAMESPACE_FOLDER) : []
  for (const name of names.filter(gone)) removeNamespace(name)
  for (const name of readdirSync(tmpdir()).filter(gone)) {
    const folder = join(tmpdir(), name)
    // Remove the folder only if it belongs to this user.
    if (lstatSync(folder, { throwIfNoEntry: false })?.uid === process.getuid?.()) removeFolder(folder)
  }
}

function removeFolder(folder: string): void {
  for (const [, point = ''] of readFileSync('/proc/self/mounts', 'utf8').matchAll(/^\S+ (\S+)/gm))
    if (point.startsWith(`${folder}/`)) executeSync(['umount', '--lazy', point])
  rmSync(folder, { recursive: true, force: true })
}

function removeNamespace(name: string): void {
  for (const pid of executeSync(['ip', 'netns', 'pids', name]).split(/\s+/).filter(Boolean)) {
    try {
      process.kill(Number(pid), 'SIGKILL')
    } catch {
      // Ignore the error: the process has already ended.
    }
  }
  executeSync(['ip', 'netns', 'del', name])
}

/**
 * Makes the switch and the hosts of a lab. The caller must be root, or must be in the namespaces that unprivileged.ts
 * makes.
 */
export async function createLab({
  hosts: count,
  mtu = 1500,
  underlay = 'bridge',
  families = ['ipv4'],
}: LabOptions): Promise<Lab> {
  if (underlay === 'veth' && count !== 2) throw new RangeError('a veth connects two hosts')
  removeLeftovers()
  const id = `${PREFIX}${process.pid}-${startTime(process.pid)}-${labCount++}`
  const folder = mkdtempSync(join(tmpdir(), `${id}-`))
  const namespaces: string[] = []
  const children = new Set<ChildProcess>()
  const daemons: { readonly host: string; readonly daemon: Daemon }[] = []
  let open = true

  const removeAll = (): void => {
    if (!open) return
    open = false
    for (const child of children) child.kill('SIGKILL')
    for (const name of namespaces) removeNamespace(name)
    removeFolder(folder)
  }
  process.on('exit', removeAll)

  async function addNamespace(name: string): Promise<string> {
    const namespace = `${id}-${name}`
    namespaces.push(namespace)
    await output(['ip', 'netns', 'add', namespace])
    return namespace
  }
  /** Runs several `ip` commands in a single call of `ip -batch`, because some machines start programs slowly. */
  const ip = (namespace: string, ...commands: string[]): Promise<string> =>
    output(['ip', '-n', namespace, '-batch', '-'], { input: commands.join('\n') })
  const inside = (namespace: string, command: readonly string[]): string[] => [
    'ip',
    'netns',
    'exec',
    namespace,
    ...command,
  ]
  // Starts a program that ends when this process ends, even if this process is killed.
  function start(command: readonly string[], env: Readonly<Record<string, string>> = {}, stdin = false): ChildProcess {
    const child = spawn('setpriv', ['--pdeathsig', 'KILL', ...command], {
      stdio: [stdin ? 'pipe' : 'ignore', 'pipe', 'pipe'],
      env: { ...process.env, ...env },
    })
    children.add(child)
    child.once('exit', () => children.delete(child))
    return child
  }

  const placeOf = (namespace: string): Place => ({
    namespace,
    run: (command, options) => execute(inside(namespace, command), options),
    output: (command, options) => output(inside(namespace, command), options),
    spawn: (command, options) => start(inside(namespace, command), {}, options?.stdin),
  })

  const plug = (namespace: string, peer: string): string =>
    `link add ${peer} mtu ${mtu} type veth peer name eth0 mtu ${mtu} netns ${namespace}`

  const eth0Of = ({ address, ipv6 }: Pick<Host, 'address' | 'ipv6'>): string[] => [
    ...(families.includes('ipv4') ? [`addr add ${address}/24 dev eth0`] : []),
    ...(families.includes('ipv6') ? [`addr add ${ipv6}/64 dev eth0 nodad`] : []),
    'link set eth0 up',
    ...(families.includes('ipv4') ? [`route add default via ${SWITCH_ADDRESS}`] : []),
    ...(families.includes('ipv6') ? ['route add default via fd77::fe'] : []),
  ]

  async function addHost(number: number): Promise<Host> {
    const name = `host${number}`
    const address = `192.168.77.${number}`
    const ipv6 = `fd77::${number.toString(16)}`
    const namespace = await addNamespace(name)
    const filesOf = (network = '') => {
      const own = (file: string): string => join(folder, name, network, file)
      return { subnetFile: own('subnet.env'), statusSocket: own('weftd.sock'), logFile: own('weftd.log') }
    }
    const { subnetFile, statusSocket } = filesOf()
    mkdirSync(dirname(subnetFile))
    const isBridged = underlay === 'bridge'
    if (isBridged) await ip(`${id}-switch`, plug(namespace, `h${number}`), `link set h${number} master br0 up`)
    await ip(namespace, 'link set lo up', ...(isBridged ? eth0Of({ address, ipv6 }) : []))
    const forwarding = ['ipv4/ip_forward', ...(families.includes('ipv6') ? ['ipv6/conf/all/forwarding'] : [])]
    const script = 'for each; do echo 1 > "/proc/sys/net/$each" || exit; done'
    await output(inside(namespace, ['sh', '-c', script, 'sh', ...forwarding]))
    let pods = 0
    const bridged = new Map<string, number>()
    const subnetEnv = (network?: string): Readonly<Record<string, string>> =>
      Object.fromEntries(
        readFileSync(filesOf(network).subnetFile, 'utf8')
          .trim()
          .split('\n')
          .map((line) => line.split('=') as [string, string]),
      )

    return {
      ...placeOf(namespace),
      name,
      address,
      ipv6,
      subnetFile,
      statusSocket,
      startDaemon({ network, args, iface = ['--iface', 'eth0'], env = {}, gate, before = [], checkout = packageRoot }) {
        const files = filesOf(network)
        mkdirSync(dirname(files.subnetFile), { recursive: true })
        // Wait for a writer: a shell that opens a FIFO for reading blocks until another process opens it for writing.
        const wait = gate === undefined ? [] : ['sh', '-c', 'echo waiting; : < "$0"; exec "$@"', gate]
        const command = [
          ...wait,
          ...before,
          process.execPath,
          join(checkout, 'bin/weftd'),
          ...iface,
          '--subnet-file',
          files.subnetFile,
          '--status-socket',
          files.statusSocket,
          // Disable weftd's probes by default, because a test that counts packets would count the probes too.
          '--probe-interval',
          '0',
          ...args,
        ]
        const daemon = watchDaemon(start(inside(namespace, command), env), files.logFile)
        daemons.push({ host: name, daemon })
        return daemon
      },
      subnetEnv,
      async startPod(subnet = subnetOfEnv(subnetEnv())) {
        const { gateway, ipv6Gateway, mtu: podMtu, bridge = 'cni0' } = subnet
        const podName = `pod${number}${pods === 0 ? '' : `-${pods}`}`
        const veth = `pod${++pods}`
        const before = bridged.get(bridge) ?? 0
        bridged.set(bridge, before + 1)
        const pod = await addNamespace(podName)
        const hasBridge = before > 0
        const add = `link add ${bridge} type bridge`
        if (!hasBridge && families.includes('ipv6')) {
          await ip(namespace, add)
          // Disable duplicate address detection on the bridge. During the detection, about two seconds, the kernel does
          // not resolve the addresses of neighbours.
          await output(inside(namespace, ['sh', '-c', `echo 0 > /proc/sys/net/ipv6/conf/${bridge}/accept_dad`]))
        }
        await ip(
          namespace,
          ...(hasBridge || families.includes('ipv6') ? [] : [add]),
          // Set the addresses even if the bridge exists, because the subnet may have got IPv6 since the bridge was
          // made.
          ...(gateway === '' ? [] : [`addr replace ${gateway} dev ${bridge}`]),
          ...(ipv6Gateway === undefined ? [] : [`addr replace ${ipv6Gateway} dev ${bridge} nodad`]),
          ...(hasBridge ? [] : [`link set ${bridge} mtu ${podMtu} up`]),
          `link add ${veth} mtu ${podMtu} type veth peer name eth0 mtu ${podMtu} netns ${pod}`,
          `link set ${veth} master ${bridge} up`,
        )
        // Containers get the addresses that follow the gateway's address, and a default route to the gateway.
        const [gateway4 = '', length4 = ''] = gateway.split('/')
        const [gateway6 = '', length6 = ''] = (ipv6Gateway ?? '').split('/')
        const ownIpv4 = gateway4 === '' ? '' : formatIpv4((parseIpv4(gateway4) ?? 0) + 1 + before)
        const ownIpv6 = gateway6 === '' ? '' : formatIpv6((parseIpv6(gateway6) ?? 0n) + 1n + BigInt(before))
        await ip(
          pod,
          'link set lo up',
          'link set eth0 up',
          ...(ownIpv4 === '' ? [] : [`addr add ${ownIpv4}/${length4} dev eth0`, `route add default via ${gateway4}`]),
          ...(ownIpv6 === ''
            ? []
            : [`addr add ${ownIpv6}/${length6} dev eth0 nodad`, `route add default via ${gateway6}`]),
        )
        return {
          ...placeOf(pod),
          address: ownIpv4,
          ...(ownIpv6 === '' ? {} : { ipv6: ownIpv6 }),
        }
      },
    }
  }

  try {
    if (underlay === 'bridge') {
      const namespace = await addNamespace('switch')
      await ip(
        namespace,
        'link set lo up',
        `link add br0 mtu ${mtu} type bridge`,
        `addr add ${SWITCH_ADDRESS}/24 dev br0`,
        ...(families.includes('ipv6') ? ['addr add fd77::fe/64 dev br0 nodad'] : []),
        'link set br0 up',
      )
    }
    const hosts: Host[] = []
    for (let number = 1; number <= count; number++) hosts.push(await addHost(number))
    if (underlay === 'veth') {
      const [first, second] = hosts as [Host, Host]
      await ip(second.namespace, plug(first.namespace, 'eth0'))
      for (const host of hosts) await ip(host.namespace, ...eth0Of(host))
    }
    const lab: Lab = {
      id,
      hosts,
      switch: placeOf(`${id}-switch`),
      folder,
      enter: (namespace) =>
        process.env['WEFT_UNPRIVILEGED']
          ? `nsenter -t ${process.pid} -U -n -m --preserve-credentials ip netns exec ${namespace}`
          : `ip netns exec ${namespace}`,
      async adopt(name, path) {
        const namespace = `${id}-${name}`
        const file = join(NAMESPACE_FOLDER, namespace)
        writeFileSync(file, '')
        namespaces.push(namespace)
        await output(['mount', '--bind', path, file])
        return placeOf(namespace)
      },
      async mountMemory(name, size) {
        const point = join(folder, name)
        mkdirSync(point)
        await output(['mount', '-t', 'tmpfs', '-o', `size=${size}`, id, point])
        return point
      },
      async describe() {
        const states = hosts.map(async (host) => {
          const shown = await Promise.all(
            [['-br', 'address'], ['route'], ['neigh']].map((what) =>
              host.run(['ip', ...what], { timeoutMs: EVENT_MS }),
            ),
          )
          const logs = daemons
            .filter((each) => each.host === host.name)
            .flatMap(({ daemon }) => [`weftd, pid ${daemon.process.pid}, ${stateOf(daemon)}:`, ...lastLines(daemon)])
          return [
            `${id} ${host.name}`,
            ...shown.map(({ stdout, stderr }) => (stdout + stderr).trimEnd()),
            ...logs,
          ].join('\n')
        })
        return (await Promise.all(states)).join('\n\n')
      },
      async close() {
        if (!labs.open.delete(lab)) return
        await labs.beforeClose(lab)
        const running = [...children]
        for (const child of running) child.kill('SIGTERM')
        const gone = Promise.all(running.map(ended))
        const patience = setTimeout(() => running.forEach((child) => child.kill('SIGKILL')), 3_000 * PATIENCE)
        await gone
        clearTimeout(patience)
        removeAll()
        process.off('exit', removeAll)
      },
    }
    labs.open.add(lab)
    return lab
  } catch (error) {
    removeAll()
    throw error
  }
}

function stateOf({ process: { exitCode, signalCode } }: Daemon): string {
  if (signalCode !== null) return `ended by ${signalCode}`
  return exitCode === null ? 'running' : `ended with ${exitCode}`
}

/** Returns the last lines of a weftd's log, each truncated to 200 characters. */
export function lastLines({ lines }: Pick<Daemon, 'lines'>): string[] {
  return lines.slice(-20).map((line) => (line.length > 200 ? `${line.slice(0, 200)}...` : line))
}

function watchDaemon(child: ChildProcess, logFile: string): Daemon {
  const lines: string[] = []
  const listeners = new Set<(line: string | undefined) => void>()
  const log = createWriteStream(logFile, { flags: 'a' })
  const notify = (line: string | undefined): void => [...listeners].forEach((listener) => listener(line))
  if (!child.stderr) throw new Error('the daemon has no stderr')
  createInterface({ input: child.stderr }).on('line', (line) => {
    lines.push(line)
    log.write(`${line}\n`)
    notify(line)
  })
  child.once('close', () => {
    log.end()
    notify(undefined)
  })
  return {
    process: child,
    logFile,
    lines,
    line: (pattern, timeoutMs = EVENT_MS) =>
      new Promise((resolve, reject) => {
        const past = lines.find((line) => pattern.test(line))
        if (past !== undefined) return resolve(past)
        const finish = (settle: () => void): void => {
          clearTimeout(timer)
          listeners.delete(listener)
          settle()
        }
        const failure = (why: string): Error =>
          new Error(
            `${why} before the daemon logged ${String(pattern)}; the end of its log:\n${lastLines({ lines }).join('\n')}`,
          )
        const listener = (line: string | undefined): void => {
          if (line === undefined) finish(() => reject(failure('the daemon ended')))
          else if (pattern.test(line)) finish(() => resolve(line))
        }
        const timer = setTimeout(() => finish(() => reject(failure(`${timeoutMs} ms passed`))), timeoutMs)
        if (child.exitCode !== null || child.signalCode !== null)
          return finish(() => reject(failure('the daemon had ended')))
        listeners.add(listener)
      }),
    async stop(signal = 'SIGTERM') {
      child.kill(signal)
      await ended(child)
      return child.exitCode ?? child.signalCode
    },
  }
}
