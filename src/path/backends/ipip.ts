// ipip.ts - the ipip backend: IP in IP (RFC 2003) carried by the kernel, with one device and a route to each peer's subnet through the
// peer's host.
//
// The device, the routes, the lease and the error texts are those of flanneld (pkg/backend/ipip). There is no UDP port; firewalls between
// the hosts must let IP protocol 4 pass.

import { WeftError } from '../../base/errors.ts'
import { carryIpv4Alone, ipv4For } from '../../control/config/network-config.ts'
import type { Ipv4Lease, LeaseAttrs } from '../../control/lease/lease.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { addDevice, findLink, ipJson } from '../../host/links.ts'
import { formatIpv4, formatIpv4Net } from '../../net/ipv4.ts'
import { KINDS } from '../catalog.ts'
import type { Backend, BackendParts, DataPath } from '../contract.ts'
import { sayingWhoHasIt } from '../device/device-refusal.ts'
import { deviceState } from '../device/device-state.ts'
import { watchExternal } from '../device/external-watch.ts'
import { RouteSync, ROUTE_WORDS, type NextHop } from '../device/route-sync.ts'
import { inTurn } from '../in-turn.ts'
import { createDirectHops } from '../tunnel/direct-routing.ts'
import { PeerFilter } from '../tunnel/peer-filter.ts'

const TYPE = 'ipip'
const NEEDS = `the ${TYPE} backend`
const { overhead, devices } = KINDS.ipip
const [[, NAME]] = devices

const OTHER_TYPE = `${NAME} isn't an ipip mode device, please remove device and try again`

interface JsonIpip {
  readonly linkinfo?: {
    readonly info_kind?: string
    readonly info_data?: { readonly local?: string; readonly remote?: string }
  }
}

export function createIpipBackend({ config, settings, external: found, run, log }: BackendParts<'ipip'>): Backend {
  let external = found
  const { directRouting } = settings
  log.info(`IPIP config: DirectRouting=${directRouting}`)

  const make = (local: string): Promise<void> =>
    sayingWhoHasIt(run, { name: NAME }, () => addDevice(run, NAME, TYPE, [], ['local', local]))

  /**
   * Finds or creates the device and returns a description of each repair. Throws WeftError DEVICE; NO_DEVICE_TYPE if the kernel lacks ipip.
   */
  async function ensureDevice(): Promise<readonly string[]> {
    const local = formatIpv4(ipv4For(NEEDS, external.address))
    if (await findLink(run, NAME)) {
      const [json] = await ipJson<JsonIpip>(run, ['-d', 'link', 'show', 'dev', NAME])
      const { info_kind: kind = 'none', info_data: data = {} } = json?.linkinfo ?? {}
      if (kind !== TYPE)
        throw new WeftError('DEVICE', OTHER_TYPE, {
          remedy: `it is of type ${kind}: remove it with \`ip link del ${NAME}\``,
        })
      const [isLocal, isRemote] = [data.local ?? 'any', data.remote ?? 'any']
      if (isLocal === local && isRemote === 'any') return []
      await run('ip', ['link', 'del', NAME])
      await make(local)
      return [`${NAME} went from ${isLocal} to ${isRemote}`]
    }
    await make(local)
    return [`${NAME} was gone`]
  }

  return {
    name: TYPE,
    devices: [NAME],
    routesToHosts: directRouting,
    get external() {
      return external
    },
    words: ROUTE_WORDS,
    async prepare(): Promise<LeaseAttrs> {
      external = await currentExternal(run, external)
      carryIpv4Alone(NEEDS, config, log)
      return { publicIp: external.publicIp, backendType: TYPE }
    },
    needs: () => [
      {
        device: {
          name: NAME,
          type: TYPE,
          replaces: [],
          local: formatIpv4(ipv4For(NEEDS, external.address)),
          refusal: OTHER_TYPE,
        },
      },
    ],
    async open(own): Promise<DataPath> {
      const mtu = external.mtu - overhead
      const { network } = ipv4For(NEEDS, config)
      const { address } = ipv4For(NEEDS, own.subnet)
      const state = deviceState(run, NAME, mtu, address, network)
      const made = await ensureDevice()
      try {
        await state.configure()
      } catch (error) {
        if (made.length > 0) await run('ip', ['link', 'del', NAME]).catch(() => {})
        throw error
      }
      const routes = new RouteSync({ network, ownDevice: NAME, run, log })
      const filter = new PeerFilter({ type: TYPE, lease: own, network, log })
      const watch = watchExternal(run, external, ['ipv4'], true)
      const direct = directRouting ? createDirectHops(run, 'ipv4') : undefined
      let applied: readonly Ipv4Lease[] = []
      const hopOf = (peer: Ipv4Lease): NextHop => ({
        gateway: formatIpv4(peer.attrs.publicIp.ipv4),
        device: NAME,
        onlink: true,
      })
      const route = (): Promise<void> => {
        const tunnelled = applied.map((peer) => [formatIpv4Net(peer.subnet.ipv4), hopOf(peer)] as const)
        return routes.apply(new Map([...tunnelled, ...(direct?.hops() ?? [])]))
      }
      return inTurn({
        mtu,
        fault: watch.moved,
        gone: watch.gone,
        get isOutdated() {
          return watch.news !== undefined
        },
        async renew() {
          log.info(`Publishing a change to the peers: ${watch.news}`)
          watch.markPublished()
        },
        async apply(leases, ownKey) {
          applied = filter.usable(leases, ownKey)
          await direct?.lookUp(filter.peers())
          await route()
        },
        async resync() {
          if (await watch.hasMoved()) return []
          const remade = await ensureDevice()
          const wrong = remade.length > 0 ? remade : await state.wrong()
          if (wrong.length > 0) await state.configure()
          const routed = await routes.resync()
          if (((await direct?.lookUpAgain(filter.peers(), routes))?.size ?? 0) > 0) await route()
          // If the device was repaired, only that is reported, because its routes were lost with it.
          return wrong.length > 0 ? wrong : routed
        },
        carrier: () => ({ device: NAME, engine: 'kernel', features: [] }),
        // The data path has no member `traffic`, because the kernel counts the packets of the device and not those of each peer.
        probeSource: { ipv4: address },
        families: ['ipv4'],
        peers: () =>
          applied
            .filter(({ subnet }) => routes.isSet(formatIpv4Net(subnet.ipv4)))
            .map((peer) => ({
              key: peer.key,
              ipv4: {
                endpoint: formatIpv4(peer.attrs.publicIp.ipv4),
                probe: peer.subnet.ipv4.address,
                way: direct?.has(peer) ? 'direct' : 'kernel',
              },
            })),
        counters: () => ({ peers_unusable: BigInt(filter.skipped()) }),
        threads: () => ({}),
        // Like flanneld, weftd keeps the device and the routes, so that the kernel forwards while the daemon is stopped.
        close: async () => {},
      })
    },
  }
}
