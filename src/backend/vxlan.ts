// vxlan.ts - VXLAN (RFC 7348) as flannel's: its options, its lease, and who carries the packets, the kernel or the engine.
//
// Both publish the same and send the same, so that a host may change from one to the other and no peer need know. Options
// and lease are flanneld's (pkg/backend/vxlan), but for DataPath, VerifySource and ProbePathMTU, which are ours.

import { isWeftError, messageOf } from '../errors.ts'
import { currentExternal } from '../host/external-interface.ts'
import { KINDS } from '../kinds.ts'
import type { Lease, LeaseAttrs } from '../lease/lease.ts'
import { formatIpv4, type Ipv4 } from '../net/ipv4.ts'
import { formatIpv6 } from '../net/ipv6.ts'
import type { Backend } from './backend.ts'
import { checkNetwork, type TunnelOptions } from './tunnel.ts'
import { TYPE, vtepMacOf, type VxlanCarrier, type VxlanSetup } from './vxlan-config.ts'
import { randomMac, vxlanMac } from './vxlan-device.ts'
import { prepareKernelVxlan } from './vxlan-kernel.ts'
import { prepareUserspaceVxlan } from './vxlan-userspace.ts'

const { overhead, outside, devices } = KINDS.vxlan
const [[, NAME]] = devices

/** flanneld's line for a lease that comes as for one that goes (pkg/backend/vxlan, pkg/lease). */
const describe = ({ attrs: { backendType, publicIp, backendData, backendV6Data } }: Lease): string => {
  const json = (data: unknown): string => (data === undefined ? '(nil)' : JSON.stringify(data))
  const ipv6 = publicIp.ipv6 === undefined ? '(nil)' : formatIpv6(publicIp.ipv6)
  return (
    `Received Subnet Event with VxLan: BackendType: ${backendType}, PublicIP: ${formatIpv4(publicIp.ipv4 ?? 0)}, PublicIPv6: ${ipv6}, ` +
    `BackendData: ${json(backendData)}, BackendV6Data: ${json(backendV6Data)}`
  )
}

export interface VxlanBackendOptions extends TunnelOptions<'vxlan'> {
  /** What this node published at an earlier time, if the store still has it. */
  readonly publishedBefore: (publicIp: Ipv4, signal: AbortSignal) => Promise<LeaseAttrs | undefined>
}

export function createVxlanBackend(options: VxlanBackendOptions): Backend {
  const { config, settings: own, log, run } = options
  const { vni, port, gbp, learning, directRouting, dataPath } = own
  const name = NAME.replace('%d', String(vni))
  let { external } = options
  let mac: string | undefined
  let said = ''
  let carrier: VxlanCarrier | undefined

  /** The kernel where it can, unless the configuration says who. */
  async function choose(setup: VxlanSetup): Promise<VxlanCarrier> {
    const say = (line: string): void => {
      if (line !== said) log.info(line)
      said = line
    }
    const userspace = (): VxlanCarrier => prepareUserspaceVxlan(setup, { ...options, external })
    if (dataPath === 'userspace') {
      say('VXLAN is carried by weftd itself: "DataPath" is "userspace"')
      return userspace()
    }
    try {
      const prepared = await prepareKernelVxlan(setup, options)
      const passedOver = own.tunnel.probePathMtu
        ? ', which lets routers fragment its datagrams: "ProbePathMTU" is passed over'
        : ''
      say(`VXLAN is carried by the kernel${passedOver}`)
      return prepared
    } catch (error) {
      if (dataPath === 'kernel' || !isWeftError(error, 'NO_DEVICE_TYPE')) throw error
      say(`VXLAN is carried by weftd itself: ${messageOf(error)}`)
      return userspace()
    }
  }

  log.info(`VXLAN config: VNI=${vni} Port=${port} GBP=${gbp} Learning=${learning} DirectRouting=${directRouting}`)
  return {
    name: TYPE,
    get tunName() {
      return carrier?.tunName
    },
    words: { added: describe, removed: describe },
    async prepare(signal): Promise<LeaseAttrs> {
      external = await currentExternal(run, external)
      checkNetwork(TYPE, config, external.address, log)
      const published = async (): Promise<string | undefined> => {
        const attrs = await options.publishedBefore(external.publicIp, signal)
        return attrs && vtepMacOf(attrs)
      }
      // Peers send to the MAC that they know: it is to outlive the process, the device and the host.
      mac = (await vxlanMac(run, name)) ?? mac ?? (await published()) ?? randomMac()
      const mtu = (own.mtu || external.mtu) - overhead
      carrier = await choose({ name, options: own, port: port || outside.port, mtu, mac, external })
      return { publicIp: { ipv4: external.publicIp }, backendType: TYPE, backendData: { VNI: vni, VtepMAC: mac } }
    },
    open: (lease, _signal, leases) => (carrier as VxlanCarrier).open(lease, leases), // by prepare, which comes first
  }
}
