// extension.ts - commands of the operator bring the packets there: one before the lease, one after it, one for each peer that
// comes, and one for each that goes.
//
// Words, variables, input and what a failure means are flanneld's (pkg/backend/extension, v0.28.2 and later). No shell: a command
// is split at white space. Of peers it gets addresses as variables and what they published on its standard input, never as
// an argument that it did not ask for.

import { messageOf, WeftError } from '../errors.ts'
import { ipv4For } from '../config/network-config.ts'
import { currentExternal } from '../host/external-interface.ts'
import type { Settings } from '../kinds.ts'
import type { Ipv4Lease, LeaseAttrs } from '../lease/lease.ts'
import { leasesEqual } from '../lease/lease.ts'
import { formatIpv4, formatIpv4Net } from '../net/ipv4.ts'
import { withoutUser } from '../secret.ts'
import type { Backend, BackendParts, DataPath } from './backend.ts'
import { watchExternal } from './external-watch.ts'
import { inTurn } from './in-turn.ts'
import { createPeerFilter } from './peer-filter.ts'

const TYPE = 'extension'
const NEEDS = `the ${TYPE} backend`
type Command = keyof Settings<'extension'>
type Variables = Readonly<Record<string, string>>

/** The words of a command: split at white space, then `$NAME` and `${NAME}` put in each, so that a value stays in its word. */
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
  /** As flanneld logs it: whole, but without users of URLs. */
  const shown = (name: Command): string => withoutUser(commands[name].reveal())

  /** Runs one, if there is one; returns what it printed. */
  async function call(name: Command, variables: Variables, input = ''): Promise<string> {
    const [file, ...args] = wordsOf(commands[name].reveal(), variables)
    if (file === undefined) return ''
    const output = await run(file, args, { input, env: variables })
    log.info(`Ran command: ${shown(name)}\n Output: ${withoutUser(output.trim())}`)
    return output.trim()
  }
  async function must(name: Command, variables: Variables): Promise<string> {
    try {
      return await call(name, variables)
    } catch (error) {
      throw new WeftError('CONFIG', `failed to run command ${shown(name)}: ${messageOf(error)}`, {
        remedy: `mend Backend.${name} of the network configuration; it is run without a shell`,
        cause: error,
      })
    }
  }

  return {
    name: TYPE,
    async prepare(): Promise<LeaseAttrs> {
      external = await currentExternal(run, external)
      const output = commands.PreStartupCommand.isEmpty ? undefined : await must('PreStartupCommand', {})
      return {
        publicIp: { ipv4: external.address },
        backendType: TYPE,
        ...(output === undefined ? {} : { backendData: output }),
      }
    },
    async open(own): Promise<DataPath> {
      const { network } = ipv4For(NEEDS, config)
      await must('PostStartupCommand', {
        NETWORK: formatIpv4Net(network),
        SUBNET: formatIpv4Net(ipv4For(NEEDS, own.subnet)),
        IPV6SUBNET: '::/0',
        PUBLIC_IP: formatIpv4(ipv4For(NEEDS, own.attrs.publicIp)),
        PUBLIC_IPV6: '<nil>',
      })
      const filter = createPeerFilter({ type: TYPE, network, lease: own, log })
      const watch = watchExternal(run, external)
      let known: ReadonlyMap<string, Ipv4Lease> = new Map()
      let failures = 0

      async function tell(name: Command, { subnet, attrs }: Ipv4Lease): Promise<void> {
        const variables = { SUBNET: formatIpv4Net(subnet.ipv4), PUBLIC_IP: formatIpv4(attrs.publicIp.ipv4) }
        const data = typeof attrs.backendData === 'string' ? attrs.backendData : ''
        try {
          await call(name, variables, `${data}\n`)
        } catch (error) {
          failures++
          log.error(`failed to run command ${shown(name)} for ${variables.SUBNET}: ${messageOf(error)}`)
        }
      }

      return inTurn({
        mtu: external.mtu,
        fault: watch.moved,
        async apply(leases, ownKey) {
          const peers = new Map(filter.usable(leases, ownKey).map((each) => [each.key, each]))
          const before = known
          known = peers
          for (const [key, lease] of before) if (!peers.has(key)) await tell('SubnetRemoveCommand', lease)
          for (const [key, lease] of peers) {
            const old = before.get(key)
            if (!old || !leasesEqual(old, lease)) await tell('SubnetAddCommand', lease)
          }
        },
        async resync() {
          await watch.hasMoved()
          return []
        },
        carrier: () => ({ engine: 'none', features: [] }),
        peers: () => [...known.values()].map(({ key, attrs }) => ({ key, endpoint: formatIpv4(attrs.publicIp.ipv4) })),
        counters: () => ({ peers_unusable: BigInt(filter.skipped()), command_failures: BigInt(failures) }),
        threads: () => ({}),
        close: async () => {},
      })
    },
  }
}
