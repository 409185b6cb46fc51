// extension.ts - the extension backend, which runs the operator's commands; these carry the packets. One command runs before the lease is
// acquired, one after it, and one for each peer that is added or removed.
//
// The commands' arguments, variables and input, and the handling of failures, are those of flanneld (pkg/backend/extension, v0.28.2 and
// later). weftd runs commands without a shell: it splits a command at white space. It passes peers' addresses as variables, and the data
// that a peer published only on the standard input. So a peer can add no arguments that the command does not name.

import { messageOf, WeftError } from '../../base/errors.ts'
import { withoutUser } from '../../base/secret.ts'
import { hasFamily, leasesEqual, sideOf, type Lease, type LeaseAttrs } from '../../control/lease/lease.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { familiesOf, formatAddress, formatNet, netText } from '../../net/address.ts'
import type { Settings } from '../catalog.ts'
import type { Backend, BackendParts, DataPath } from '../contract.ts'
import { watchExternal } from '../device/external-watch.ts'
import { inTurn } from '../in-turn.ts'
import { PeerFilter } from '../tunnel/peer-filter.ts'

const TYPE = 'extension'
const LOG_AFTER_MS = 10_000
type Command = keyof Settings<'extension'>
type Variables = Readonly<Record<string, string>>
/** The names of the variables with a peer's subnet and public address, for each family. */
const VARIABLES = { ipv4: ['SUBNET', 'PUBLIC_IP'], ipv6: ['IPV6SUBNET', 'PUBLIC_IPV6'] } as const

/**
 * Splits a command at white space and then replaces `$NAME` and `${NAME}` in each word. In this order a value with spaces never becomes
 * several words.
 */
export function wordsOf(command: string, variables: Variables): string[] {
  const value = (name: string): string => variables[name] ?? process.env[name] ?? ''
  return command
    .split(/\s+/)
    .filter((word) => word !== '')
    .map((word) =>
      word.replaceAll(/\$(?:\{(\w+)\}|(\w+))/g, (_all, braced?: string, plain?: string) =>
        value(braced ?? plain ?? ''),
      ),
    )
}

export function createExtensionBackend({
  config,
  settings: commands,
  external: found,
  run,
  log,
}: BackendParts<'extension'>): Backend {
  let external = found
  /** Returns a command's text for the log: the whole command, except user names and passwords in URLs. */
  const shown = (name: Command): string => withoutUser(commands[name].reveal())

  /**
   * Runs a command and returns its output; returns an empty text if the command is not configured. Like flanneld it sets no time limit. If
   * the command runs longer than ten seconds, that is logged, and logged again each time the waiting time has doubled.
   */
  async function call(name: Command, variables: Variables, signal: AbortSignal, input = ''): Promise<string> {
    const [file, ...args] = wordsOf(commands[name].reveal(), variables)
    if (file === undefined) return ''
    const began = performance.now()
    let waiting: NodeJS.Timeout | undefined
    const logLater = (ms: number): void => {
      waiting = setTimeout(() => {
        log.warn(`Backend.${name} still runs after ${Math.round((performance.now() - began) / 1000)} s: ${shown(name)}`)
        logLater(2 * ms)
      }, ms).unref()
    }
    logLater(LOG_AFTER_MS)
    const output = await run(file, args, { input, env: variables, signal, patient: true }).finally(() =>
      clearTimeout(waiting),
    )
    log.info(`Ran command: ${shown(name)}\n Output: ${withoutUser(output.trim())}`)
    return output.trim()
  }
  async function must(name: Command, variables: Variables, signal: AbortSignal): Promise<string> {
    try {
      return await call(name, variables, signal)
    } catch (error) {
      signal.throwIfAborted()
      throw new WeftError('CONFIG', `failed to run command ${shown(name)}: ${messageOf(error)}`, {
        remedy: `correct Backend.${name} of the network configuration; the command is run without a shell`,
        cause: error,
      })
    }
  }

  return {
    name: TYPE,
    // True because the commands make all routes. After the commands have run once, no route or device counts as a leftover, because a
    // command may have made it.
    routesByOthers: true,
    get external() {
      return external
    },
    async prepare(signal): Promise<LeaseAttrs> {
      external = await currentExternal(run, external)
      const output = commands.PreStartupCommand.isEmpty ? undefined : await must('PreStartupCommand', {}, signal)
      return {
        publicIp: external.address,
        backendType: TYPE,
        ...(output === undefined ? {} : { backendData: output }),
      }
    },
    async open(own, signal): Promise<DataPath> {
      const { ipv4, ipv6 } = own.attrs.publicIp
      const start = {
        NETWORK: config.ipv4 ? formatNet(config.ipv4.network) : '0.0.0.0/0',
        SUBNET: own.subnet.ipv4 ? formatNet(own.subnet.ipv4) : '0.0.0.0/0',
        IPV6SUBNET: config.ipv6 && own.subnet.ipv6 ? formatNet(own.subnet.ipv6) : '::/0',
        PUBLIC_IP: ipv4 === undefined ? '<nil>' : formatAddress(ipv4),
        PUBLIC_IPV6: config.ipv6 && ipv6 !== undefined ? formatAddress(ipv6) : '<nil>',
      }
      await must('PostStartupCommand', start, signal)
      const families = familiesOf(config)
      const filters = families.flatMap((family) => {
        const network = config[family]?.network
        return network
          ? [
              {
                family,
                filter: new PeerFilter({ type: TYPE, network, isOneOfTwo: families.length === 2, lease: own, log }),
              },
            ]
          : []
      })
      const watch = watchExternal(run, external)
      let known: ReadonlyMap<string, Lease> = new Map()
      let failures = 0
      const closing = new AbortController()

      async function runFor(name: Command, peer: Lease): Promise<void> {
        if (closing.signal.aborted) return
        const variables: Record<string, string> = {}
        for (const family of families.filter((each) => hasFamily(peer, each))) {
          const { subnet, host } = sideOf(peer, family)
          const [SUBNET, PUBLIC_IP] = VARIABLES[family]
          variables[SUBNET] = formatNet(subnet)
          variables[PUBLIC_IP] = formatAddress(host)
        }
        const { backendData } = peer.attrs
        const data = typeof backendData === 'string' ? backendData : ''
        try {
          await call(name, variables, closing.signal, `${data}\n`)
        } catch (error) {
          if (closing.signal.aborted) return
          failures++
          log.error(`failed to run command ${shown(name)} for ${netText(peer.subnet)}: ${messageOf(error)}`)
        }
      }

      const path = inTurn({
        mtu: external.mtu,
        fault: watch.moved,
        async apply(leases, ownKey) {
          // Each family has its own filter. A peer that is usable in only one of its families is passed to the commands with only that
          // family.
          const peers = new Map<string, Lease>()
          for (const { family, filter } of filters)
            for (const peer of filter.usable(leases, ownKey)) {
              const { subnet, attrs } = peers.get(peer.key) ?? { subnet: {}, attrs: { publicIp: {} } }
              peers.set(peer.key, {
                ...peer,
                subnet: { ...subnet, [family]: peer.subnet[family] },
                attrs: { ...peer.attrs, publicIp: { ...attrs.publicIp, [family]: peer.attrs.publicIp[family] } },
              })
            }
          const before = known
          known = peers
          for (const [key, lease] of before) if (!peers.has(key)) await runFor('SubnetRemoveCommand', lease)
          for (const [key, lease] of peers) {
            const old = before.get(key)
            if (!old || !leasesEqual(old, lease)) await runFor('SubnetAddCommand', lease)
          }
        },
        async resync() {
          await watch.hasMoved()
          return []
        },
        gone: watch.gone,
        carrier: () => ({ engine: 'none', features: [] }),
        peers: () =>
          [...known.values()].map((peer) => ({
            key: peer.key,
            ...Object.fromEntries(
              families
                .filter((family) => hasFamily(peer, family))
                .map((family) => [family, { endpoint: formatAddress(sideOf(peer, family).host) }]),
            ),
          })),
        counters: () => ({
          peers_unusable: BigInt(filters.reduce((sum, { filter }) => sum + filter.skipped(), 0)),
          command_failures: BigInt(failures),
        }),
        threads: () => ({}),
        close: async () => {},
      })
      const close = (): Promise<void> => {
        closing.abort(new Error('the data path is closed'))
        return path.close()
      }
      return { ...path, close }
    },
  }
}
