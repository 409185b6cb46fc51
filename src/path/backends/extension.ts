// extension.ts - the extension backend, which runs the operator's commands. These commands, and not weftd, carry the
// packets. One command runs before weftd acquires the lease, one runs after it, and one runs for each peer that is
// added or removed.
//
// The commands' arguments, variables and input, and the handling of failures, are those of flanneld
// (pkg/backend/extension, v0.28.2 and later). weftd runs commands without a shell: it splits a command at white space.
// A command gets a peer's addresses as variables. It gets on its standard input, and not as arguments, the data that a
// peer published. So a peer cannot add arguments to a command.

import { isDeepStrictEqual } from 'node:util'
import { messageOf, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { withoutUser } from '../../base/secret.ts'
import {
  hasFamily,
  leasesEqual,
  sideOf,
  type Lease,
  type LeaseAttrs,
  type OwnLease,
} from '../../control/lease/lease.ts'
import { createTurn } from '../../host/bell.ts'
import type { Run } from '../../host/command.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { FAMILIES, familiesOf, formatAddress, formatNet, netText, type Family, type Net } from '../../net/address.ts'
import type { Settings } from '../catalog.ts'
import type { Backend, BackendParts, DataPath, PathPeer } from '../contract.ts'
import { PeerFilter, unusableIn } from '../tunnel/peer-filter.ts'
import { peerAtHost } from './peer-at-host.ts'
import { hostWords } from './peer-words.ts'

const TYPE = 'extension'
/**
 * The time in ms after which weftd logs that a command still runs. weftd doubles the time for each further log line, up
 * to LOG_MAX_MS, because setTimeout accepts at most 24 days.
 */
const LOG_AFTER_MS = 10_000
const LOG_MAX_MS = 86_400_000
type Command = keyof Settings<'extension'>
type Variables = Readonly<Record<string, string>>
/** For each family, the names of the variables that hold a peer's subnet and a peer's public address. */
const VARIABLES = { ipv4: ['SUBNET', 'PUBLIC_IP'], ipv6: ['IPV6SUBNET', 'PUBLIC_IPV6'] } as const

/**
 * Splits a command at white space, and then replaces variables in each word by the rules of Go's os.Expand. Because the
 * split comes first, a value with spaces stays one word.
 */
export function wordsOf(command: string, variables: Variables): string[] {
  const values = new Map(Object.entries({ ...process.env, ...variables }))
  return command
    .split(/\s+/)
    .filter((word) => word !== '')
    .map((word) =>
      word.replaceAll(
        VARIABLE,
        (_all, ...[braced, special, plain]: (string | undefined)[]) =>
          values.get(braced ?? special ?? plain ?? '') ?? '',
      ),
    )
}
/**
 * Matches a variable as Go's os.Expand does (go.dev/src/os/env.go, getShellName): any text in braces, one of the shell's
 * special characters, or a name. Go removes an opening brace that no closing brace follows.
 */
const VARIABLE = /\$(?:\{([^}]*)\}|\{|([*#$@!?\-\d])|(\w+))/g

export function createExtensionBackend({
  config,
  settings,
  external: found,
  run,
  kernel,
  log,
}: BackendParts<'extension'>): Backend {
  let external = found
  /** The attributes that the last `prepare` returned; undefined before `prepare` was called. */
  let attrs: LeaseAttrs | undefined
  const commands = new Commands(settings, run, log)
  return {
    name: TYPE,
    // The operator's commands make all routes, and weftd cannot tell these from leftovers of an earlier run. So weftd
    // removes leftovers only before it runs the commands.
    routesByOthers: true,
    words: hostWords(['ipv4']), // flanneld logs only the IPv4 subnet
    get external() {
      return external
    },
    async prepare(signal): Promise<LeaseAttrs> {
      const { name, address } = external
      external = await currentExternal(kernel, external)
      // If only the external interface's name has changed, the node keeps its data path, so PreStartupCommand must not
      // run again.
      if (attrs && external.name !== name && isDeepStrictEqual(external.address, address)) return attrs
      const output = settings.PreStartupCommand.isEmpty
        ? undefined
        : await commands.must('PreStartupCommand', {}, signal)
      attrs = {
        publicIp: external.address,
        backendType: TYPE,
        ...(output === undefined ? {} : { backendData: output }),
      }
      return attrs
    },
    plan: () => [
      {
        families: familiesOf(config),
        mtu: external.mtu,
        external: { families: FAMILIES, isBound: true },
        open,
      },
    ],
  }

  async function open(own: OwnLease, _leases: ReadonlyMap<string, Lease>, signal: AbortSignal): Promise<DataPath> {
    const { ipv4, ipv6 } = own.attrs.publicIp
    const start = {
      NETWORK: config.ipv4 ? formatNet(config.ipv4.network) : '0.0.0.0/0',
      SUBNET: own.subnet.ipv4 ? formatNet(own.subnet.ipv4) : '0.0.0.0/0',
      IPV6SUBNET: config.ipv6 && own.subnet.ipv6 ? formatNet(own.subnet.ipv6) : '::/0',
      PUBLIC_IP: ipv4 === undefined ? '<nil>' : formatAddress(ipv4),
      PUBLIC_IPV6: config.ipv6 && ipv6 !== undefined ? formatAddress(ipv6) : '<nil>',
    }
    await commands.must('PostStartupCommand', start, signal)
    const filters = new Map<Family, PeerFilter>()
    const isOneOfTwo = familiesOf(config).length === 2
    for (const family of familiesOf(config)) {
      const network = config[family]?.network
      if (network) filters.set(family, new PeerFilter<Net>({ type: TYPE, network, isOneOfTwo, lease: own, log }))
    }
    return new ExtensionPath(commands, filters, log)
  }
}

class Commands {
  readonly #settings: Settings<'extension'>
  readonly #run: Run
  readonly #log: Log

  constructor(settings: Settings<'extension'>, run: Run, log: Log) {
    this.#settings = settings
    this.#run = run
    this.#log = log
  }

  /** Returns a command's text for the log: the whole command, except user names and passwords in URLs. */
  shown(name: Command): string {
    return withoutUser(this.#settings[name].reveal())
  }

  /**
   * Runs a command and returns its output. As with flanneld, the command's input is `data` and a line feed. Returns an
   * empty text if the command is not configured. Like flanneld, sets no time limit. Logs a command that runs longer than
   * ten seconds, and logs it again each time its run time has doubled, and at least once a day.
   */
  async call(name: Command, variables: Variables, signal: AbortSignal, data = ''): Promise<string> {
    const input = `${data}\n`
    const [file, ...args] = wordsOf(this.#settings[name].reveal(), variables)
    if (file === undefined) return ''
    const began = performance.now()
    let waiting: NodeJS.Timeout | undefined
    const logLater = (ms: number): void => {
      waiting = setTimeout(() => {
        const seconds = Math.round((performance.now() - began) / 1000)
        this.#log.warn(`Backend.${name} still runs after ${seconds} s: ${this.shown(name)}`)
        logLater(Math.min(2 * ms, LOG_MAX_MS))
      }, ms).unref()
    }
    logLater(LOG_AFTER_MS)
    const output = await this.#run(file, args, { input, env: variables, signal, patient: true }).finally(() =>
      clearTimeout(waiting),
    )
    this.#log.info(`Ran command: ${this.shown(name)}\n Output: ${withoutUser(output.trim())}`)
    return output.trim()
  }

  async must(name: Command, variables: Variables, signal: AbortSignal): Promise<string> {
    try {
      return await this.call(name, variables, signal)
    } catch (error) {
      signal.throwIfAborted()
      throw new WeftError('CONFIG', `failed to run command ${this.shown(name)}: ${messageOf(error)}`, {
        remedy: `correct Backend.${name} of the network configuration; the command is run without a shell`,
        cause: error,
      })
    }
  }
}

class ExtensionPath implements DataPath {
  readonly families: readonly Family[]
  readonly fault: Promise<Error> = new Promise(() => {})
  readonly #commands: Commands
  /**
   * For each family, the filter that decides which leases are peers. If a peer is usable in only one of its families,
   * the commands get the peer's subnet and address of only that family.
   */
  readonly #filters: ReadonlyMap<Family, PeerFilter>
  readonly #log: Log
  /**
   * Runs operations one after another, so that the commands for one list of peers end before the commands for the next
   * list begin.
   */
  readonly #next = createTurn()
  /** Aborts when the data path is closed; this ends the running command. */
  readonly #closing = new AbortController()
  /** The peers for which the commands were run, by lease key. */
  #known: ReadonlyMap<string, Lease> = new Map()
  #failures = 0

  constructor(commands: Commands, filters: ReadonlyMap<Family, PeerFilter>, log: Log) {
    this.families = [...filters.keys()]
    this.#commands = commands
    this.#filters = filters
    this.#log = log
  }

  apply(leases: ReadonlyMap<string, Lease>, ownKey: string): Promise<void> {
    return this.#next(async () => {
      const before = this.#known
      const peers = this.#usable(leases, ownKey)
      this.#known = peers
      for (const [key, lease] of before) if (!peers.has(key)) await this.#runFor('SubnetRemoveCommand', lease)
      for (const [key, lease] of peers) {
        const old = before.get(key)
        if (!old || !leasesEqual(old, lease)) await this.#runFor('SubnetAddCommand', lease)
      }
    })
  }

  async resync(): Promise<readonly string[]> {
    return []
  }

  carrier(): ReturnType<DataPath['carrier']> {
    return { engine: 'none', features: [] }
  }

  peers(): readonly PathPeer[] {
    return [...this.#known.values()].map((peer) => peerAtHost(peer, this.families))
  }

  unusable(): ReadonlySet<string> {
    return unusableIn(this.#filters.values())
  }

  counters(): Readonly<Record<string, bigint>> {
    return { command_failures: BigInt(this.#failures) }
  }

  close(): Promise<void> {
    this.#closing.abort(new Error('the data path is closed'))
    return this.#next(async () => {})
  }

  /** Returns the usable peers by lease key, each with the families in which it is usable. */
  #usable(leases: ReadonlyMap<string, Lease>, ownKey: string): ReadonlyMap<string, Lease> {
    const peers = new Map<string, Lease>()
    for (const [family, filter] of this.#filters)
      for (const peer of filter.usable(leases, ownKey)) {
        const { subnet, attrs } = peers.get(peer.key) ?? { subnet: {}, attrs: { publicIp: {} } }
        peers.set(peer.key, {
          ...peer,
          subnet: { ...subnet, [family]: peer.subnet[family] },
          attrs: { ...peer.attrs, publicIp: { ...attrs.publicIp, [family]: peer.attrs.publicIp[family] } },
        })
      }
    return peers
  }

  async #runFor(name: Command, peer: Lease): Promise<void> {
    const { signal } = this.#closing
    if (signal.aborted) return
    const variables: Record<string, string> = {}
    for (const family of this.families.filter((each) => hasFamily(peer, each))) {
      const { subnet, host } = sideOf(peer, family)
      const [subnetName, hostName] = VARIABLES[family]
      variables[subnetName] = formatNet(subnet)
      variables[hostName] = formatAddress(host)
    }
    const { backendData } = peer.attrs
    const data = typeof backendData === 'string' ? backendData : ''
    try {
      await this.#commands.call(name, variables, signal, data)
    } catch (error) {
      if (signal.aborted) return
      this.#failures++
      const text = `${this.#commands.shown(name)} for ${netText(peer.subnet)}`
      this.#log.error(`failed to run command ${text}: ${messageOf(error)}`)
    }
  }
}
