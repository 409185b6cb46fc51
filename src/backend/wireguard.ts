// wireguard.ts - packets encrypted between the hosts: WireGuard's device, to which the whole network is routed.
//
// Options, device, route, key file and lease are flanneld's (pkg/backend/wireguard). The device goes with the daemon; the key stays.

import { ipv4For } from '../config/network-config.ts'
import { currentExternal } from '../host/external-interface.ts'
import { findLink } from '../host/links.ts'
import { KINDS } from '../kinds.ts'
import { isIpv4Lease, type Ipv4Lease, type Lease, type LeaseAttrs } from '../lease/lease.ts'
import { netText } from '../net/address.ts'
import { formatIpv4, formatIpv4Net } from '../net/ipv4.ts'
import type { Backend, BackendParts, DataPath } from './backend.ts'
import { watchExternal } from './external-watch.ts'
import { inTurn } from './in-turn.ts'
import { createPeerFilter } from './peer-filter.ts'
import { checkNetwork } from './tunnel.ts'
import { createTunDevice, refuseForeignRoute } from './tun-device.ts'
import { isKey, openWireguardDevice, publicKeyOf, type WireguardPeer } from './wireguard-device.ts'

const TYPE = 'wireguard'
const NEEDS = `the ${TYPE} backend`
const { reserved, outside, devices } = KINDS.wireguard
const [[, NAME]] = devices
const DEFAULT_KEY_FILE = '/run/flannel/wgkey'

/** What a lease says of its end of the tunnel; undefined when that is none. */
export function endOf(lease: Lease): WireguardPeer | undefined {
  if (!isIpv4Lease(lease)) return undefined
  const { attrs, subnet } = lease
  const data = attrs.backendData as { readonly PublicKey?: unknown; readonly Port?: unknown } | null | undefined
  const { PublicKey: publicKey, Port: given = outside.port } = typeof data === 'object' && data !== null ? data : {}
  const port = given === 0 ? outside.port : given
  if (typeof publicKey !== 'string' || !isKey(publicKey)) return undefined
  if (typeof port !== 'number' || !Number.isInteger(port) || port < 1 || port > 65_535) return undefined
  return { publicKey, endpoint: `${formatIpv4(attrs.publicIp.ipv4)}:${port}`, allowedIps: [formatIpv4Net(subnet.ipv4)] }
}

export function createWireguardBackend({
  config,
  settings,
  external: found,
  run,
  log,
}: BackendParts<'wireguard'>): Backend {
  const { psk, keepalive, mtu: givenMtu } = settings
  const port = settings.port || outside.port
  const keyFile = process.env['WIREGUARD_KEY_FILE'] || DEFAULT_KEY_FILE
  let external = found
  let ownKey = ''
  return {
    name: TYPE,
    words: {
      added: (peer) => {
        const end = peer.attrs.backendType === TYPE ? endOf(peer) : undefined
        return `Subnet added: ${netText(peer.subnet)}${end ? ` via ${end.endpoint}` : ''}`
      },
    },
    async prepare(): Promise<LeaseAttrs> {
      external = await currentExternal(run, external)
      checkNetwork(TYPE, config, external.address, log)
      ownKey = await publicKeyOf(run, keyFile)
      const backendData = { PublicKey: ownKey, Port: port }
      return { publicIp: { ipv4: external.publicIp }, backendType: TYPE, backendData }
    },
    async open(lease, signal): Promise<DataPath> {
      const { network } = ipv4For(NEEDS, config)
      const subnet = ipv4For(NEEDS, lease.subnet)
      await refuseForeignRoute(run, network, (name) => name === NAME)
      const opened = await openWireguardDevice({ name: NAME, keyFile, ownKey, port, psk, keepalive, run, log }, signal)
      const mtu = (givenMtu || external.mtu) - reserved
      const device = createTunDevice({ name: NAME, network, subnet, mtu, scope: 'link', run, log })
      try {
        await device.configure()
      } catch (error) {
        await opened.close()
        throw error
      }
      const filter = createPeerFilter({
        ...{ type: TYPE, lease, network, log },
        alsoUnusable: (peer) => (endOf(peer) ? undefined : 'it publishes no WireGuard key and port'),
        identity: {
          ...{ name: 'key', own: ownKey, of: (peer) => endOf(peer)?.publicKey },
          remedy: `where both are there, delete ${keyFile} on one of the two and restart its daemon`,
        },
      })
      const watch = watchExternal(run, external)
      let tellGone!: (reason: Error) => void
      const gone = new Promise<Error>((resolve) => (tellGone = resolve))
      let peers: readonly WireguardPeer[] = []
      let applied: readonly Ipv4Lease[] = []
      return inTurn({
        mtu,
        // Neither keys nor peers are in what rtnetlink reports.
        unreported: true,
        fault: Promise.race([opened.fault, watch.moved, gone]),
        async apply(leases, ownLeaseKey) {
          // A host that has several leases is one peer.
          const byKey = new Map<string, WireguardPeer>()
          const usable = filter.usable(leases, ownLeaseKey)
          for (const end of usable.flatMap((peer) => endOf(peer) ?? [])) {
            const allowedIps = [...(byKey.get(end.publicKey)?.allowedIps ?? []), ...end.allowedIps]
            byKey.set(end.publicKey, { ...end, allowedIps })
          }
          peers = [...byKey.values()]
          await opened.setPeers(peers)
          applied = usable
        },
        async resync() {
          if (await watch.hasMoved()) return []
          if (!(await findLink(run, NAME))) {
            tellGone(new Error(`${NAME} is gone`))
            return []
          }
          const mended = await device.resync()
          const others = await opened.setPeers(peers)
          return others > 0 ? [...mended, `${others} settings of ${NAME} were not as they had been set`] : mended
        },
        carrier: () => ({ device: NAME, engine: 'kernel', features: [] }),
        probeSource: subnet.address,
        peers: () =>
          applied.flatMap((peer) => {
            const end = endOf(peer)
            return end
              ? [{ key: peer.key, endpoint: end.endpoint, probe: peer.subnet.ipv4.address, way: 'kernel' as const }]
              : []
          }),
        async traffic() {
          const traffic = await opened.traffic()
          return new Map(
            applied.flatMap((peer) => {
              const passed = traffic.get(endOf(peer)?.publicKey ?? '')
              return passed ? [[peer.key, passed] as const] : []
            }),
          )
        },
        counters: () => ({ peers_unusable: BigInt(filter.skipped()) }),
        threads: () => ({}),
        close: () => opened.close(),
      })
    },
  }
}
