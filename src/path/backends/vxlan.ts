// vxlan.ts - the vxlan backend (RFC 7348), which is compatible with flannel's. It reads the options, makes the lease,
// and chooses whether the kernel or weftd carries the packets.
//
// The kernel and weftd publish the same lease and send the same datagrams, so a host can change between them without an
// effect on its peers. The options and the lease are those of flanneld (pkg/backend/vxlan); DataPath, VerifySource and
// ProbePathMTU are weft's own.

import { isWeftError, messageOf } from '../../base/errors.ts'
import { seldom } from '../../base/log.ts'
import type { Lease, LeaseAttrs } from '../../control/lease/lease.ts'
import { currentExternal, sendingFromPublicIp, type ExternalInterface } from '../../host/external-interface.ts'
import { familiesOf, listed, onlyOf, type Addresses, type ByFamily, type Family } from '../../net/address.ts'
import { formatIpv4 } from '../../net/ipv4.ts'
import { formatIpv6 } from '../../net/ipv6.ts'
import { KINDS, overheadBy } from '../catalog.ts'
import type { Backend } from '../contract.ts'
import type { TunnelOptions } from '../tunnel/tunnel-options.ts'
import { checkNetwork } from '../tunnel/tunnel.ts'
import { namesOf, TYPE, vtepMacOf, type VxlanCarrier, type VxlanSetup } from './vxlan-config.ts'
import { prepareKernelVxlan } from './vxlan-kernel.ts'
import { randomMac, vxlanMac, vxlanName } from './vxlan-link.ts'
import { prepareUserspaceVxlan } from './vxlan-userspace.ts'

const { outside } = KINDS.vxlan

/**
 * Returns flanneld's log line for a peer's lease. flanneld logs the same line when the lease is added and when it is
 * removed (pkg/backend/vxlan, pkg/lease).
 */
const describe = ({ attrs: { backendType, publicIp, backendData, backendV6Data } }: Lease): readonly string[] => {
  const json = (data: unknown): string => (data === undefined ? '(nil)' : JSON.stringify(data))
  const ipv6 = publicIp.ipv6 === undefined ? '(nil)' : formatIpv6(publicIp.ipv6)
  return [
    `Received Subnet Event with VxLan: BackendType: ${backendType}, PublicIP: ${formatIpv4(publicIp.ipv4 ?? 0)}, PublicIPv6: ${ipv6}, ` +
      `BackendData: ${json(backendData)}, BackendV6Data: ${json(backendV6Data)}`,
  ]
}

export interface VxlanBackendOptions extends TunnelOptions<'vxlan'> {
  /**
   * Returns the lease attributes that this node published in an earlier run; undefined if the store no longer has them.
   */
  readonly publishedBefore: (publicIp: Addresses, signal: AbortSignal) => Promise<LeaseAttrs | undefined>
}

export function createVxlanBackend(options: VxlanBackendOptions): Backend {
  const { config, settings: own, log, kernel } = options
  const { vni, port, gbp, learning, directRouting, dataPath } = own
  const families = familiesOf(config)
  const names = onlyOf(families, namesOf(vni))
  const nameOf = async (family: Family): Promise<string> => {
    const [name = '', network] = [names[family], config[family]?.network]
    return network ? vxlanName(kernel, name, vni, network) : name
  }
  let { external } = options
  let macs: ByFamily<string> = {}
  let logged = ''
  let carrier: VxlanCarrier | undefined
  let setup: VxlanSetup
  let sending: ExternalInterface | undefined
  // A log that drops repeated lines. In a dual-stack network weftd calls `prepare` again and again while one of the two
  // families does not work.
  const calm = seldom(log)

  /**
   * Chooses whether the kernel or weftd carries the packets. Uses the configured choice. Without a configured choice,
   * chooses the kernel if it supports vxlan, and otherwise weftd.
   */
  async function choose(): Promise<VxlanCarrier> {
    const logOnce = (line: string): void => {
      if (line !== logged) log.info(line)
      logged = line
    }
    const userspace = (): VxlanCarrier => prepareUserspaceVxlan(() => setup, options)
    if (dataPath === 'userspace') {
      logOnce('VXLAN is carried by weftd itself: "DataPath" is "userspace"')
      return userspace()
    }
    try {
      const prepared = await prepareKernelVxlan(() => setup, options)
      const ignored = own.tunnel.probePathMtu
        ? ', which lets routers fragment its datagrams: "ProbePathMTU" is ignored'
        : ''
      logOnce(`VXLAN is carried by the kernel${ignored}`)
      return prepared
    } catch (error) {
      if (dataPath === 'kernel' || !isWeftError(error, 'NO_DEVICE_TYPE')) throw error
      logOnce(`VXLAN is carried by weftd itself: ${messageOf(error)}`)
      return userspace()
    }
  }

  log.info(`VXLAN config: VNI=${vni} Port=${port} GBP=${gbp} Learning=${learning} DirectRouting=${directRouting}`)
  return {
    name: TYPE,
    devices: listed(names),
    routesToHosts: directRouting,
    get external() {
      return external
    },
    get sending() {
      return sending
    },
    get tunNames() {
      return carrier?.tunNames
    },
    words: { watching: 'watching for new subnet leases', added: describe, removed: describe },
    async prepare(signal): Promise<LeaseAttrs> {
      external = await currentExternal(kernel, external)
      checkNetwork(config, external.address, calm)
      let attrs: Promise<LeaseAttrs | undefined> | undefined
      const published = async (family: Family): Promise<string | undefined> => {
        const before = await (attrs ??= options.publishedBefore(external.publicIp, signal))
        return before && vtepMacOf(before, family)
      }
      // Peers send to the MAC in the node's lease. So this node uses the same MAC again after a restart of weftd, a new
      // device or a reboot. It makes a random MAC only if no earlier MAC is known.
      const macOf = async (family: Family): Promise<string> =>
        (await vxlanMac(kernel, await nameOf(family))) ?? macs[family] ?? (await published(family)) ?? randomMac()
      const found: { ipv4?: string; ipv6?: string } = {}
      for (const family of families) found[family] = await macOf(family)
      macs = found
      const underlayMtu = own.mtu || external.mtu
      const mtus = { ipv4: underlayMtu - overheadBy(TYPE, 'ipv4'), ipv6: underlayMtu - overheadBy(TYPE, 'ipv6') }
      sending = await sendingFromPublicIp(kernel, external)
      setup = { names, options: own, port: port || outside.port, mtus, macs, external: sending }
      carrier = await choose()
      const dataOf = (mac: string | undefined) => (mac === undefined ? null : { VNI: vni, VtepMAC: mac })
      return {
        publicIp: external.publicIp,
        backendType: TYPE,
        backendData: external.publicIp.ipv4 === undefined ? null : dataOf(macs.ipv4), // null without IPv4, as in flanneld
        ...(macs.ipv6 === undefined || external.publicIp.ipv6 === undefined
          ? {}
          : { backendV6Data: dataOf(macs.ipv6) }),
      }
    },
    needs: () =>
      families
        .filter((family) => external.address[family] !== undefined && external.publicIp[family] !== undefined)
        .flatMap((family) => carrier?.needs(family) ?? []),
    plan: () => (carrier as VxlanCarrier).plan(), // `prepare` was called and set the carrier
  }
}
